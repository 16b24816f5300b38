/* SPDX-License-Identifier: MIT */
/*
 * Remote stores (docs/formats/remote-store.md): layers and templates that bakers share.
 *
 * A unit of work (a layer, named by its diff_id; a template, named by its key) that the remote store
 * has is taken over instead of done: its small files at once, its chunks when they are first read.
 * One that it has not is claimed, done, and published, so that bakers who share it do each once.
 */
#ifndef TB2_BAKE_REMOTE_H
#define TB2_BAKE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"
#include "blockdev/blockdev.h"

/* Pointers are borrowed until remote_close. */
struct remote_options {
    /* http://, https://: a store's directory behind a web server, read only.
     * s3://BUCKET/PREFIX: see registry/object.h. oci://HOST/REPOSITORY: an OCI registry. */
    const char *url;
    const char *docker_config; /* of an OCI registry, as in registry_options */
    const char *const *plain_http_hosts;
    /* A claim that its owner has not renewed for this long is someone else's to take; 0: one minute. */
    int64_t lease_ms;
    const struct cancel *cancel; /* may be NULL */
};

struct template;

/* Thread-safe but for opening and closing. */
struct remote;

/* Opens the remote store and makes it the source of the store's chunks, until remote_close. A
 * writable one that is empty becomes a remote store. ERR_INPUT (URL, or it is something else),
 * ERR_DENIED, ERR_NET. */
int remote_open(struct remote **out, struct store *s, const struct remote_options *o,
                struct err *e) MUST_USE;
void remote_close(struct remote *r); /* gives back what is still claimed */
DEFINE_AUTO(remote, remote_close)
#define AUTO_REMOTE CLEANUP(remote_close_auto_)
const char *remote_name(const struct remote *r); /* for people; borrowed */
bool remote_is_writable(const struct remote *r);

struct remote_stats {
    uint64_t layers_taken, templates_taken;
    uint64_t layers_sent, templates_sent;
    uint64_t chunks_sent, chunk_bytes_sent;       /* that it did not have */
    uint64_t chunks_fetched, chunk_bytes_fetched; /* that were read */
    uint64_t requests;
    uint64_t claims_lost; /* to others, who took this baker for dead */
};
struct remote_stats remote_stats(const struct remote *r);

/* Brings a template that the remote store's catalog lists into the store and its catalog; its chunks
 * follow when they are read. ERR_NOTFOUND. */
int remote_pull_template(struct remote *r, const char *alias, struct err *e) MUST_USE;
/* Makes the chunks of a template that the store has already, but perhaps not all of it, readable. */
void remote_use_template(struct remote *r, const struct template *t);
/* Sends a template with all that it needs, and its catalog entry. */
int remote_push_template(struct remote *r, const struct template *t, struct err *e) MUST_USE;
/* Reads each chunk of a template, so that the store has all of it. */
int remote_complete_template(struct remote *r, const struct template *t, struct err *e) MUST_USE;

#endif
