/* SPDX-License-Identifier: MIT */
/* Digests in documents, and of them. */
#include <string.h>

#include "bake/common/document.h"
#include "base/mem.h"

struct json *json_digest(const struct digest *d)
{
    char text[DIGEST_TEXT_MAX];
    return json_new_string(digest_print(d, text));
}

int json_hash(struct digest *out, const struct json *j, struct err *e)
{
    AUTO_FREE char *text = NULL;
    int rc = json_print(j, 0, &text, e);
    if (rc == 0)
        digest_bytes(out, text, strlen(text));
    return rc;
}

int json_get_digest(const struct json *j, const char *key, struct digest *out, struct err *e)
{
    const char *text = NULL;
    int rc = json_get_string(j, key, &text, e);
    if (rc == 0 && digest_parse(out, text, e) < 0)
        rc = err_in(e, "'%s'", key);
    return rc;
}

int catalog_seal(struct json *entry, struct err *e)
{
    struct digest d;
    int rc = json_hash(&d, entry, e);
    if (rc < 0)
        return rc;
    json_set(entry, "check", json_digest(&d));
    return 0;
}
