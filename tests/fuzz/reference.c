/* SPDX-License-Identifier: MIT */
/* Image names: the full form of a name is a name, and its own full form. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "oci/oci.h"

static char *full_form(const char *text)
{
    struct err e = ERR_INIT;
    struct oci_ref ref;
    int rc = oci_ref_parse(&ref, text, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return NULL;
    PROMISE(ref.repository && (ref.host != NULL) == (ref.transport == OCI_REGISTRY));
    PROMISE(ref.transport == OCI_LAYOUT || ref.tag || ref.has_digest);
    char *full = oci_ref_print(&ref);
    oci_ref_fini(&ref);
    PROMISE(full);
    return full;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = mem_strndup((const char *)data, size);
    PROMISE(text);
    AUTO_FREE char *full = full_form(text);
    if (!full)
        return 0;
    AUTO_FREE char *again = full_form(full);
    PROMISE(again && strcmp(full, again) == 0);
    return 0;
}
