/* SPDX-License-Identifier: MIT */
/*
 * The disk of a snapshot, judged by e2fsck(8). It was frozen, so it must be clean, with one honest
 * exception: files that were deleted and are still open. With a journal they are on the superblock's list
 * of orphans (s_last_orphan, or the orphan file of newer kernels; Linux
 * Documentation/filesystems/ext4), which the next mount works off; without one they are inodes in use
 * that no directory names. e2fsck -n must leave them, and then calls the disk broken. So where there are
 * any, and nothing else is wrong, e2fsck -p frees them in a copy that is thrown away, and what it leaves
 * must be clean.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bake/common/slots.h"
#include "bake/guest/machine_room.h"
#include "bake/template/copy.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/blockdev.h"

enum {
    CHECK_TIMEOUT_MS = 900000,
    OUTPUT_MAX = 1 << 20,
    SHOWN_MAX = 600,
    /* struct ext4_super_block, fs/ext4/ext4.h */
    SUPER_AT = 1024,
    SUPER_LEN = 1024,
    LAST_ORPHAN_AT = 0xe8,
    RO_COMPAT_AT = 0x64,
    RO_COMPAT_ORPHANS = 0x10000,
    LEFT_UNCORRECTED = 4,  /* e2fsck(8), "exit code" */
    NO_SUCH_PROGRAM = 127, /* env(1) */
};

/* ---- e2fsck ---- */

/* Runs it over the file; *status is its exit status. */
static int run_e2fsck(const char *how, const char *path, const struct cancel *c, struct buf *out,
                      int *status, struct err *e)
{
    const char *given = getenv("PATH");
    AUTO_FREE char *search =
        mem_printf("PATH=%s%s/usr/sbin:/sbin", given ? given : "", given ? ":" : "");
    if (!search)
        return err_nomem(e, "e2fsck");
    const char *const argv[] = {"env",    search, "LC_ALL=C", "E2FSCK_CONFIG=/dev/null",
                                "e2fsck", how,    path,       NULL};
    struct proc_io io = {.out = out, .err_out = out, .timeout_ms = CHECK_TIMEOUT_MS, .cancel = c};
    int wait_status = 0;
    int rc = proc_run(argv, &io, &wait_status, e);
    if (rc < 0)
        return err_in(e, "e2fsck");
    if (!WIFEXITED(wait_status))
        return err_set(e, ERR_SYS, "e2fsck was killed by signal %d", WTERMSIG(wait_status));
    *status = WEXITSTATUS(wait_status);
    if (*status != NO_SUCH_PROGRAM)
        return 0;
    err_set(e, ERR_NOTFOUND, "there is no e2fsck, which checks each template's disk");
    return err_hint(e, "install it: apt-get install e2fsprogs");
}

static int not_clean(const struct buf *out, int status, struct err *e)
{
    size_t skip = out->len > SHOWN_MAX ? out->len - SHOWN_MAX : 0;
    err_set(e, ERR_CORRUPT, "the snapshot's disk is not clean (e2fsck: exit status %d):\n%s",
            status, buf_text(out) + skip);
    return err_hint(e, "does a step write to the disk's device, or is memory of this machine bad?");
}

/* Counts what was worked off; false when e2fsck did anything else. Lines are "DISK: TEXT", where the disk
 * is named by its path or its label. */
static bool only_orphans(const struct buf *out, uint32_t *orphans)
{
    static const char *const allowed[] = {": Clearing orphaned inode ",
                                          ": Truncating orphaned inode ", ": Clearing orphan file",
                                          " files (" /* the sum at the end */};
    for (const char *at = buf_text(out); *at; at += strspn(at, "\n")) {
        size_t len = strcspn(at, "\n");
        bool known = false;
        for (size_t i = 0; !known && i < ARRAY_LEN(allowed); i++) {
            known = memmem(at, len, allowed[i], strlen(allowed[i])) != NULL;
            *orphans += known && i < 2;
        }
        if (!known)
            return false;
        at += len;
    }
    return true;
}

/* Of a disk without a journal, which has no list: text of one line of e2fsck -fn that deleted files, and
 * nothing else, can give. Blocks and inodes may be in use for nobody ("-"), never the other way. */
static bool of_deleted(const char *line, size_t len, uint32_t *deleted)
{
    static const char *const plain[] = {"e2fsck ", "Pass ", "Fix? no", "Free blocks count wrong",
                                        "Free inodes count wrong"};
    static const char *const inside[] = {": ********** WARNING: ", " files ("};
    static const char *const lists[] = {"Block bitmap differences:", "Inode bitmap differences:"};
    unsigned number;
    int end = 0;
    if (len == 0)
        return true;
    if (sscanf(line, "Deleted inode %u has zero dtime.%n", &number, &end) == 1 && end > 0) {
        ++*deleted;
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        size_t skip = strlen(lists[i]);
        if (len >= skip && strncmp(line, lists[i], skip) == 0)
            return memchr(line, '+', len) == NULL;
    }
    bool known = false;
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        known = known || strncmp(line, plain[i], strlen(plain[i])) == 0;
    for (size_t i = 0; i < ARRAY_LEN(inside); i++)
        known = known || memmem(line, len, inside[i], strlen(inside[i])) != NULL;
    return known;
}

static bool only_deleted(const struct buf *out, uint32_t *deleted)
{
    const char *at = buf_text(out);
    bool known = true;
    while (known && *at) {
        size_t len = strcspn(at, "\n");
        known = of_deleted(at, len, deleted);
        at += len + (at[len] != 0);
    }
    return known && *deleted > 0;
}

/* With a list of orphans e2fsck may do nothing but work it off; without one its findings were judged. */
static int work_off_orphans(const char *path, const struct cancel *c, bool listed,
                            uint32_t *orphans, struct err *e)
{
    AUTO_BUF struct buf out;
    buf_init(&out, OUTPUT_MAX);
    int status = 0;
    int rc = run_e2fsck("-fp", path, c, &out, &status, e);
    if (rc < 0)
        return rc;
    return status > 1 || (listed && !only_orphans(&out, orphans)) ? not_clean(&out, status, e) : 0;
}

/* *deleted: the disk is clean but for so many deleted files. */
static int check_clean(const char *path, const struct cancel *c, uint32_t *deleted, struct err *e)
{
    AUTO_BUF struct buf out;
    buf_init(&out, OUTPUT_MAX);
    int status = 0;
    *deleted = 0;
    int rc = run_e2fsck("-fn", path, c, &out, &status, e);
    if (rc < 0 || status == 0)
        return rc;
    return status == LEFT_UNCORRECTED && only_deleted(&out, deleted) ? 0
                                                                     : not_clean(&out, status, e);
}

/* ---- The disk as a file ---- */

static uint32_t le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static int has_orphans(bool *out, struct bdev *disk, struct err *e)
{
    uint8_t super[SUPER_LEN];
    int rc = bdev_read(disk, super, sizeof(super), SUPER_AT);
    if (rc < 0)
        return err_sysno(e, -rc, "reading the disk's superblock");
    *out = le32(super + LAST_ORPHAN_AT) != 0 || (le32(super + RO_COMPAT_AT) & RO_COMPAT_ORPHANS);
    return 0;
}

/* In a copy of the whole disk, which is written to where there are orphans; then it must be clean. */
static int check_copy(const struct block_map *map, const struct machine_room *r, bool listed,
                      uint32_t *orphans, struct err *e)
{
    AUTO_FILE_TMP struct file_tmp tmp = {.fd = -1};
    uint32_t deleted = 0;
    int rc = file_tmp_open(&tmp, store_tmp_dir(r->store), e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *path = mem_printf("%s/%s", store_tmp_path(r->store), tmp.name);
    rc = path ? store_export_map(r->store, map, tmp.fd, machine_cores(), r->cancel, e)
              : err_nomem(e, "disk");
    if (rc == 0 && !listed)
        rc = check_clean(path, r->cancel, orphans, e);
    if (rc == 0 && (listed || *orphans > 0))
        rc = work_off_orphans(path, r->cancel, listed, orphans, e);
    if (rc == 0 && (listed || *orphans > 0))
        rc = check_clean(path, r->cancel, &deleted, e);
    if (rc == 0 && deleted > 0)
        rc = err_set(e, ERR_CORRUPT,
                     "the snapshot's disk has deleted files that e2fsck cannot free");
    return rc;
}

/* Through a file whose bytes are fetched when e2fsck reads them, which are few. */
static int check_served(struct bdev_files *files, struct bdev *disk, const struct cancel *c,
                        uint32_t *deleted, struct err *e)
{
    struct bdev_file *file = NULL;
    int rc = bdev_file_add(&file, files, disk, e);
    if (rc == 0)
        rc = check_clean(bdev_file_path(file), c, deleted, e);
    bdev_file_remove(file);
    return rc;
}

int disk_check(const struct digest *disk, const struct machine_room *r, uint32_t *orphans,
               struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *map = NULL;
    AUTO_BDEV_FILES struct bdev_files *files = NULL;
    struct bdev *device = NULL;
    struct err why = ERR_INIT;
    bool listed = false;
    uint32_t deleted = 0;
    *orphans = 0;
    int rc = store_get_map(r->store, disk, &map, e);
    if (rc == 0)
        rc = bdev_open_map(&device, map, r->cache, e);
    if (rc == 0)
        rc = has_orphans(&listed, device, e);
    if (rc == 0 && !listed && bdev_files_start(&files, &why) < 0)
        log_event(LOG_INFO, "bake", "disks are copied for e2fsck: %s", why.text);
    if (rc == 0 && files)
        rc = check_served(files, device, r->cancel, &deleted, e);
    if (rc == 0 && (!files || deleted > 0))
        rc = check_copy(map, r, listed, orphans, e);
    bdev_close(device);
    return rc;
}
