/* SPDX-License-Identifier: MIT */
/* Which file says where registries are. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cmd.h"

static int take_default(struct registry_network *out, char *path, bool *found, struct err *e)
{
    AUTO_FREE char *held = path;

    if (!held)
        return err_nomem(e, "registries");
    *found = file_exists(AT_FDCWD, held);
    return *found ? registries_load(out, held, e) : 0;
}

static int load(struct registry_network *out, const struct global_options *g, struct err *e)
{
    const char *variable = getenv("TB2_BAKE_REGISTRIES");
    const char *config = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    bool found = false;
    int rc = 0;

    if (g->registries)
        return registries_load(out, g->registries, e);
    if (variable)
        return *variable ? registries_load(out, variable, e) : 0; /* empty: none */
    if (config && config[0] == '/')
        rc = take_default(out, mem_printf("%s/tb2-bake/registries.yaml", config), &found, e);
    else if (home && home[0] == '/')
        rc = take_default(out, mem_printf("%s/.config/tb2-bake/registries.yaml", home), &found, e);
    if (rc == 0 && !found)
        rc = take_default(out, mem_strdup("/etc/tb2-bake/registries.yaml"), &found, e);
    return rc;
}

int open_network(struct registry_network *out, const struct global_options *g, struct err *e)
{
    *out = (struct registry_network){0};
    int rc = load(out, g, e);
    if (rc < 0 || !g->ca_file)
        return rc;
    free(out->ca_file);
    out->ca_file = mem_strdup(g->ca_file);
    return out->ca_file ? 0 : err_nomem(e, "registries");
}
