/* SPDX-License-Identifier: MIT */
/* Pulls of manifests: a tag's digest, and the bytes. */
#include "registry/internal.h"

#include "base/mem.h"

#define ACCEPT_MANIFESTS                                                                           \
    "Accept: application/vnd.oci.image.index.v1+json, "                                            \
    "application/vnd.oci.image.manifest.v1+json, "                                                 \
    "application/vnd.docker.distribution.manifest.list.v2+json, "                                  \
    "application/vnd.docker.distribution.manifest.v2+json"

/* Some servers compress unless told not to; digests are over the bytes as they are. */
static const char *const manifest_headers[] = {ACCEPT_MANIFESTS, "Accept-Encoding: identity", NULL};

/* ---- Manifests -------------------------------------------------------------------------- */

/* "manifests/<digest or tag>" */
static char *manifest_path(const struct oci_ref *ref)
{
    char digest[DIGEST_TEXT_MAX];

    return mem_printf("manifests/%s",
                      ref->has_digest ? digest_print(&ref->digest, digest) : ref->tag);
}

/* Says which image an error is about, where the registry has judged it. */
static int image_error(const struct oci_ref *ref, struct err *e)
{
    AUTO_FREE char *name = oci_ref_print(ref);

    if (e->class == ERR_NOTFOUND && strstr(e->text, ": not found, status ") &&
        strncmp(e->text, "registry ", strlen("registry ")) == 0) {
        err_set(e, ERR_NOTFOUND, "image %s: not found in the registry", name ? name : "");
        return err_hint(e, "check the name and the tag");
    }
    if (e->class == ERR_NOTFOUND || e->class == ERR_DENIED || e->class == ERR_DIGEST ||
        e->class == ERR_UNSUPPORTED)
        return err_in(e, "image %s", name ? name : "");
    return -(int)e->class;
}

static int check_registry_ref(const struct oci_ref *ref, struct err *e)
{
    return ref->transport == OCI_REGISTRY
               ? 0
               : err_set(e, ERR_INPUT, "%s is an image layout, not a registry", ref->repository);
}

bool registry_has_digest_mirror(struct registry *r, const struct oci_ref *ref)
{
    return endpoints_have_digest_mirror(r->endpoints, ref);
}

/* A manifest on its way. */
struct manifest_pull {
    struct registry *registry;
    char *path;
    const struct oci_ref *ref; /* as the caller named it */
    struct digest *digest;     /* HEAD: result */
    struct oci_descriptor *out;
    struct buf *body;
};

static int head_once(const struct manifest_pull *p, const struct stop *stop, struct err *e)
{
    struct http_request request = {.method = "HEAD",
                                   .headers = manifest_headers,
                                   .total_timeout_ms = stop->endpoint->timeout_ms};
    AUTO_HTTP_RESPONSE struct http_response response;

    http_response_init(&response);
    p->registry->counters.manifest_heads++;
    if (stop_exchange(p->registry, stop, p->path, &request, &response, e) < 0)
        return -(int)e->class;
    if (!response.content_digest)
        return err_set(e, ERR_UNSUPPORTED, "registry %s: sends no digest with a HEAD",
                       stop->ref->host);
    if (digest_parse(p->digest, response.content_digest, e) < 0)
        return err_in(e, "registry %s", stop->ref->host);
    return 0;
}

static int head_at(void *ctx, const struct stop *stop, struct err *e)
{
    const struct manifest_pull *p = ctx;
    struct retry retry = stop_retry(p->registry, stop);

    while (head_once(p, stop, e) < 0) {
        if (!retry_again(&retry, e))
            return -(int)e->class;
        p->registry->counters.retries++;
    }
    return 0;
}

int registry_head(struct registry *r, const struct oci_ref *ref, struct digest *out, struct err *e)
{
    struct manifest_pull p = {.registry = r, .ref = ref, .digest = out};

    if (check_registry_ref(ref, e) < 0)
        return -(int)e->class;
    AUTO_FREE char *path = manifest_path(ref);
    if (!path)
        return err_nomem(e, "request");
    p.path = path;
    const struct errand errand = {ref, ref->has_digest, head_at, &p, image_error};
    return route_walk(r, &errand, e);
}

/* Digest of a manifest's bytes, in the algorithm that is asked for. */
static int hash_bytes(struct digest *out, enum digest_algorithm algorithm, const struct buf *body,
                      struct err *e)
{
    AUTO_HASHER struct hasher *hasher = NULL;

    if (hasher_new(&hasher, algorithm, e) < 0)
        return -(int)e->class;
    hasher_add(hasher, body->data, body->len);
    hasher_finish(hasher, out);
    return 0;
}

/* The bytes must have the digest that was asked for, else the one that the registry states. */
static int check_manifest(struct digest *out, const struct oci_ref *ref,
                          const struct http_response *response, const struct buf *body,
                          struct err *e)
{
    const char *encoding = response->encoding;
    char wanted_text[DIGEST_TEXT_MAX];
    char got_text[DIGEST_TEXT_MAX];
    struct digest wanted = ref->digest;

    if (!ref->has_digest) {
        if (!response->content_digest) {
            digest_bytes(out, body->data, body->len);
            return 0;
        }
        if (digest_parse(&wanted, response->content_digest, e) < 0)
            return err_in(e, "registry %s", ref->host);
    }
    if (hash_bytes(out, wanted.algorithm, body, e) < 0)
        return -(int)e->class;
    if (!digest_equal(out, &wanted))
        return err_set(e, ERR_DIGEST, "manifest: expected %s, received %s%s%s",
                       digest_print(&wanted, wanted_text), digest_print(out, got_text),
                       encoding ? ", with the encoding " : "", encoding ? encoding : "");
    return 0;
}

static int manifest_once(const struct manifest_pull *p, const struct stop *stop, struct err *e)
{
    struct http_request request = {.method = "GET",
                                   .headers = manifest_headers,
                                   .reply = p->body,
                                   .total_timeout_ms = stop->endpoint->timeout_ms};
    AUTO_HTTP_RESPONSE struct http_response response;
    struct oci_descriptor d = {0};

    http_response_init(&response);
    p->registry->counters.manifest_gets++;
    if (stop_exchange(p->registry, stop, p->path, &request, &response, e) < 0)
        return -(int)e->class;
    if (response.status == 416)
        return err_set(e, ERR_UNSUPPORTED, "registry %s: status 416", stop->ref->host);
    if (check_manifest(&d.digest, p->ref, &response, p->body, e) < 0)
        return err_in(e, "%s %s", stop->endpoint->mirror ? "mirror" : "registry", stop->ref->host);
    d.size = p->body->len;
    d.media_type = response.content_type ? MOVE(response.content_type) : mem_strdup("");
    if (!d.media_type)
        return err_nomem(e, "manifest");
    *p->out = d;
    return 0;
}

static int manifest_at(void *ctx, const struct stop *stop, struct err *e)
{
    const struct manifest_pull *p = ctx;
    struct retry retry = stop_retry(p->registry, stop);
    bool refetched = !stop->last;

    while (manifest_once(p, stop, e) < 0) {
        bool again = e->class == ERR_DIGEST && !refetched;
        if (again)
            refetched = true;
        else
            again = retry_again(&retry, e);
        if (!again)
            return -(int)e->class;
        p->registry->counters.retries++;
    }
    return 0;
}

int registry_manifest(struct registry *r, const struct oci_ref *ref, struct oci_descriptor *out,
                      struct buf *body, struct err *e)
{
    struct manifest_pull p = {.registry = r, .ref = ref, .out = out, .body = body};

    buf_init(body, LIMIT_MANIFEST);
    if (check_registry_ref(ref, e) < 0)
        return -(int)e->class;
    AUTO_FREE char *path = manifest_path(ref);
    if (!path)
        return err_nomem(e, "request");
    p.path = path;
    const struct errand errand = {ref, ref->has_digest, manifest_at, &p, image_error};
    int rc = route_walk(r, &errand, e);
    if (rc < 0)
        buf_fini(body);
    return rc;
}
