/* SPDX-License-Identifier: MIT */
/* What http.c and http_url.c share. */
#ifndef TB2_REGISTRY_HTTP_INTERNAL_H
#define TB2_REGISTRY_HTTP_INTERNAL_H

#include "registry/internal.h"

/* What decides whether credentials may be sent and plain HTTP spoken. */
struct origin {
    char *scheme; /* "http" or "https" */
    char *host;
    char *port;
};
void origin_fini(struct origin *o);

/* ERR_INPUT for what is no http or https URL; *out is then as it was. */
int origin_of(struct origin *out, const char *url, struct err *e) MUST_USE;

#endif
