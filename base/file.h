/* SPDX-License-Identifier: MIT */
/*
 * Files, reached from a directory descriptor, always close-on-exec. Results appear by commit:
 * written under a temporary name, fsync, rename, fsync of the directory; a reader sees all or
 * nothing. Paths are relative to `dir` (AT_FDCWD is allowed). Thread-safe.
 */
#ifndef TB2_BASE_FILE_H
#define TB2_BASE_FILE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"

/* Closes a descriptor at the end of its scope; -1 is nothing. Keeps errno. */
void file_close(int *fd);
#define AUTO_FD CLEANUP(file_close)

/* openat with O_CLOEXEC added, EINTR retried. *out is the descriptor. */
int file_open(int *out, int dir, const char *path, int flags, mode_t mode, struct err *e) MUST_USE;

/* Opens a directory, making it and its missing parents (mode 0777 before umask) first. */
int file_open_dir(int *out, int dir, const char *path, struct err *e) MUST_USE;

/* Makes a directory and its missing parents, durably. */
int file_make_dirs(int dir, const char *path, struct err *e) MUST_USE;

/* Reads or writes exactly `len` bytes, retrying short transfers. */
int file_write_full(int fd, const void *data, size_t len, struct err *e) MUST_USE;
int file_pwrite_full(int fd, const void *data, size_t len, uint64_t off, struct err *e) MUST_USE;
int file_pread_full(int fd, void *data, size_t len, uint64_t off, struct err *e) MUST_USE;

/* Whole file into `out`; ERR_LIMIT past the buffer's ceiling, ERR_NOTFOUND if it is not there. It may be a pipe,
 * also one that nobody has opened for writing yet: that is waited for until a signal is caught, ERR_CANCELLED. */
int file_read(int dir, const char *path, struct buf *out, struct err *e) MUST_USE;

/* True if something of that name exists (links are not followed). */
bool file_exists(int dir, const char *path);

/* Size in bytes of a regular file; ERR_NOTFOUND if it is not there. */
int file_size(int dir, const char *path, uint64_t *out, struct err *e) MUST_USE;

/* Fails, as a write to a full disk would, when the file system of `fd` has less than `need` bytes free;
 * the message tells both. */
int file_need_room(int fd, uint64_t need, struct err *e) MUST_USE;

/* Removes a file or a whole directory tree, never following links; absence is success. */
int file_remove_tree(int dir, const char *path, struct err *e) MUST_USE;

/*
 * A file that does not exist under its name until it is committed. Temporaries are named
 * ".tmp-<pid>-<counter>" and live in `tmp_dir`, which must be on the same file system as the
 * destination; file_tmp_abort (or dying) leaves at most such a temporary, never a partial result.
 */
struct file_tmp {
    int fd;      /* open for reading and writing; -1 when none */
    int tmp_dir; /* borrowed */
    char name[64];
};

int file_tmp_open(struct file_tmp *t, int tmp_dir, struct err *e) MUST_USE;
/*
 * fsync, rename to dir/path (replacing), fsync the directory; closes the temporary. With `durable`
 * false both fsyncs are left out: for caches that are verified when they are read.
 */
int file_tmp_commit(struct file_tmp *t, int dir, const char *path, bool durable,
                    struct err *e) MUST_USE;
void file_tmp_abort(struct file_tmp *t); /* no-op after a commit */
#define AUTO_FILE_TMP CLEANUP(file_tmp_abort)

/* Whole small file, committed durably. */
int file_put(int tmp_dir, int dir, const char *path, const void *data, size_t len,
             struct err *e) MUST_USE;
/* The same without waiting for the disk: for what is verified when it is read, and got again. */
int file_put_unsynced(int tmp_dir, int dir, const char *path, const void *data, size_t len,
                      struct err *e) MUST_USE;

/*
 * Takes an advisory whole-file lock (flock) on dir/path, creating it. *fd holds the lock until it
 * is closed. Without `wait`, ERR_BUSY when someone else holds it.
 */
int file_lock(int *fd, int dir, const char *path, bool exclusive, bool wait,
              struct err *e) MUST_USE;
/* The exclusive lock, waited for until `c` is set: for what another process may hold for minutes. */
int file_lock_wait(int *fd, int dir, const char *path, const struct cancel *c,
                   struct err *e) MUST_USE;

#endif
