/* SPDX-License-Identifier: MIT */
/*
 * Guest memory on demand: serves the page faults of a virtual machine monitor that gives us its
 * userfaultfd, from a device that holds the memory's bytes.
 *
 * The far end (Firecracker, docs/snapshotting/handling-page-faults-on-snapshot-resume.md) connects to
 * a unix socket and sends one JSON list of regions, each
 * {base_host_virt_addr, size, offset, page_size}, with the descriptor as SCM_RIGHTS.
 */
#ifndef TB2_BAKE_VM_PAGE_SERVER_H
#define TB2_BAKE_VM_PAGE_SERVER_H

#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"

struct bdev;
struct page_server;

struct page_server_options {
    int dir;             /* the socket is made in it; borrowed for the call */
    const char *name;    /* of the socket */
    pid_t pid;           /* the far end, a child of ours: nobody else is served */
    struct bdev *memory; /* borrowed until page_server_stop */
};

/* Pages of 4096 bytes, since the start. */
struct page_counts {
    uint64_t faults;  /* that were told of */
    uint64_t copied;  /* pages with bytes */
    uint64_t zeros;   /* pages of zeros */
    uint64_t removed; /* pages that the far end gave back */
};

/* 0 if this user may handle page faults of the kernel (KVM's are); else ERR_DENIED or
 * ERR_UNSUPPORTED with what to do. */
int page_server_possible(struct err *e) MUST_USE;

/* Listens, and serves from a thread of its own. When memory cannot be read, or the far end sends
 * what it should not, the far end is killed: it would wait for ever. */
int page_server_start(struct page_server **out, const struct page_server_options *o,
                      struct err *e) MUST_USE;
/* 0, or why the far end was killed. Thread-safe. */
int page_server_check(struct page_server *p, struct err *e) MUST_USE;
struct page_counts page_server_counts(const struct page_server *p); /* thread-safe */
/* After the far end's death. NULL is fine. */
void page_server_stop(struct page_server *p);
DEFINE_AUTO(page_server, page_server_stop)
#define AUTO_PAGE_SERVER CLEANUP(page_server_stop_auto_)

#endif
