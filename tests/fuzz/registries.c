/* SPDX-License-Identifier: MIT */
/* registries.yaml. */
#include <string.h>

#include "bake/image.h"
#include "fuzz.h"
#include "registry/registry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct registry_network network;
    struct err e = ERR_INIT;
    int rc = registries_parse(&network, "r", data, size, &e);
    PROMISE_ERROR(rc, &e);
    for (size_t i = 0; i < network.host_count; i++) {
        const struct registry_host *host = &network.hosts[i];
        PROMISE(host->name && host->name[0]);
        for (size_t k = 0; k < host->mirror_count; k++) {
            struct err other = ERR_INIT;
            PROMISE(registry_mirror_check(host->mirrors[k].url, &other) == 0);
        }
    }
    registry_network_fini(&network);
    return 0;
}
