/* SPDX-License-Identifier: MIT */
#include "upkeep_world.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "bake/image/layer_store.h"
#include "bake/step/cache.h"
#include "bake/template.h"
#include "bake/template/kept.h"
#include "bake/template/record.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

/* In place of libc's: what survives a power cut is not looked at here, and waiting for disks takes
 * long. */
int fsync(int fd UNUSED)
{
    return 0;
}
int fdatasync(int fd UNUSED)
{
    return 0;
}
int syncfs(int fd UNUSED)
{
    return 0;
}

void world_open(struct world *w)
{
    struct err e = ERR_INIT;
    snprintf(w->path, sizeof(w->path), "%s/tb2-upkeep-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(w->path));
    assert_ok(store_open(&w->store, w->path, &e));
}

void world_close(struct world *w)
{
    struct err e = ERR_INIT;
    store_close(w->store);
    assert_ok(file_remove_tree(AT_FDCWD, w->path, &e));
}

/* splitmix64 */
uint64_t next_number(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

enum { PIECE = 2 * BLOCK_SIZE };

static void fill(uint8_t *data, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        data[i] = i % 1024 < 512 ? (uint8_t)next_number(&seed) : (uint8_t)(i / 64);
}

int put_map(struct store *s, struct digest *out, const uint64_t *seeds, size_t count, struct err *e)
{
    uint8_t data[PIECE];
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = block_map_new(&m, count * PIECE, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct map_extent x = {.off = i * PIECE, .size = PIECE};
        fill(data, sizeof(data), seeds[i]);
        rc = store_put_chunk(s, data, sizeof(data), &x.chunk, e);
        if (rc == 0)
            rc = block_map_add(m, &x, e);
    }
    if (rc == 0)
        rc = block_map_finish(m, e);
    return rc < 0 ? rc : store_put_map(s, m, out, e);
}

struct digest put_chunk(struct store *s, uint64_t seed)
{
    uint8_t data[PIECE];
    struct digest d;
    struct err e = ERR_INIT;
    fill(data, sizeof(data), seed);
    assert_ok(store_put_chunk(s, data, sizeof(data), &d, &e));
    return d;
}

struct digest put_step(struct store *s, const char *name, uint64_t seed)
{
    struct err e = ERR_INIT;
    const uint64_t seeds[] = {seed, seed + 1, seed + 2};
    struct digest key;
    struct digest map;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    digest_bytes(&key, name, strlen(name));
    assert_ok(put_map(s, &map, seeds, ARRAY_LEN(seeds), &e));
    assert_ok(store_get_map(s, &map, &m, &e));
    assert_ok(step_put(s, &key, m, &e));
    return key;
}

int put_template(struct store *s, const char *alias, uint64_t seed, const struct digest *manifest,
                 struct err *e)
{
    return put_template_of(s, alias, seed, manifest, NULL, e);
}

/* The document of such a template; its maps are in the store. */
static int make_document(struct json **out, struct store *s, const char *alias, uint64_t seed,
                         const struct digest *manifest, struct err *e)
{
    static const char *const texts[] = {"vmm", "accel", "kernel", "user", "workdir", "image"};
    static const char *const names[] = {"base_disk", "disk", "memory", "state"};
    const uint64_t seeds[] = {seed, seed + 1, seed + 2, seed + 3, seed + 4, seed + 5};
    const struct {
        size_t first, count;
    } parts[] = {{0, 3}, {1, 3}, {4, 1}, {5, 1}};
    AUTO_JSON struct json *j = json_new_object();
    struct digest key;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct digest map;
        int rc = put_map(s, &map, seeds + parts[i].first, parts[i].count, e);
        if (rc < 0)
            return rc;
        json_set(j, names[i], json_digest(&map));
    }
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        json_set(j, texts[i], json_new_string(texts[i]));
    digest_bytes(&key, alias, strlen(alias));
    json_set(j, "key", json_digest(&key));
    json_set(j, "manifest", json_digest(manifest ? manifest : &key));
    json_set(j, "alias", json_new_string(alias));
    json_set(j, "task", json_new_string(alias));
    json_set(j, "created", json_new_string("2026-01-02T03:04:05Z"));
    json_set(j, "state_size", json_new_integer(5000));
    json_set(j, "memory_mb", json_new_integer(2048));
    json_set(j, "storage_mb", json_new_integer(64));
    json_set(j, "cpus", json_new_integer(2));
    json_set(j, "env", json_new_array());
    *out = MOVE(j);
    return 0;
}

int put_kept(struct store *s, const char *name, uint64_t seed, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    int rc = make_document(&j, s, name, seed, NULL, e);
    return rc < 0 ? rc : kept_put(s, name, j, e);
}

int put_template_of(struct store *s, const char *alias, uint64_t seed,
                    const struct digest *manifest, const struct digest *step, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    struct digest key, record;
    struct json *steps = json_new_array();
    if (step)
        json_append(steps, json_digest(step));
    digest_bytes(&key, alias, strlen(alias));
    int rc = make_document(&j, s, alias, seed, manifest, e);
    json_set(j, "steps", steps);
    if (rc == 0)
        rc = template_put(s, &key, j, &record, e);
    return rc < 0 ? rc : catalog_put(s, alias, alias, &key, &record, e);
}

/* One ustar header (POSIX pax, "ustar Interchange Format"), the content, two blocks of zeros. */
static void add_tar(struct buf *tar, const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    char header[512] = "file";
    static const char zeros[2048];
    snprintf(header + 100, 8, "%07o", 0644U);
    snprintf(header + 108, 8, "%07o", 0U);
    snprintf(header + 116, 8, "%07o", 0U);
    snprintf(header + 124, 12, "%011zo", size);
    snprintf(header + 136, 12, "%011o", 1U);
    memset(header + 148, ' ', 8);
    header[156] = '0';
    memcpy(header + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(header); i++)
        sum += (unsigned char)header[i];
    snprintf(header + 148, 8, "%06o", sum);
    assert_ok(buf_add(tar, header, sizeof(header), &e));
    assert_ok(buf_add(tar, data, size, &e));
    assert_ok(buf_add(tar, zeros, mem_round_up(size, 512) - size + 1024, &e));
}

struct digest put_layer(struct store *s, uint64_t seed, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf tar;
    AUTO_FREE uint8_t *data = mem_zalloc(size);
    buf_init(&tar, size + 4096);
    assert_non_null(data);
    fill(data, size, seed);
    add_tar(&tar, data, size);
    struct digest d;
    char media_type[] = "application/vnd.oci.image.layer.v1.tar";
    struct source source = {0};
    digest_bytes(&d, tar.data, tar.len);
    struct oci_descriptor descriptor = {.media_type = media_type, .digest = d, .size = tar.len};
    struct layer_blob blob = {&source, &descriptor, &d};
    assert_ok(source_from_memory(&source, tar.data, tar.len, &e));
    struct ingest_gate *gate = NULL;
    assert_ok(ingest_gate_new(&gate, 1, &e));
    assert_ok(layer_ingest(s, &blob, gate, NULL, &e));
    ingest_gate_free(gate);
    source_close(&source);
    return d;
}

static struct digest put_blob(struct store *s, struct json *j)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *text = NULL;
    struct digest d;
    char path[BLOB_PATH_MAX];
    assert_ok(json_print(j, 0, &text, &e));
    digest_bytes(&d, text, strlen(text));
    image_blob_path(path, "blobs", &d);
    assert_ok(file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), &e));
    json_free(j);
    return d;
}

struct digest put_image(struct store *s, const struct digest *layers, size_t count)
{
    struct json *config = json_new_object();
    struct json *rootfs = json_new_object();
    struct json *list = json_new_array();
    struct json *manifest = json_new_object();
    struct json *descriptor = json_new_object();
    for (size_t i = 0; i < count; i++)
        json_append(list, json_digest(&layers[i]));
    json_set(rootfs, "diff_ids", list);
    json_set(config, "rootfs", rootfs);
    struct digest d = put_blob(s, config);
    json_set(descriptor, "digest", json_digest(&d));
    json_set(manifest, "config", descriptor);
    return put_blob(s, manifest);
}

struct digest put_pushed(struct store *s, uint64_t seed, char path[96])
{
    struct err e = ERR_INIT;
    char hex[DIGEST_TEXT_MAX];
    struct digest key, diff_id;
    AUTO_FREE char *text = NULL;
    struct json *blob = json_new_object();
    json_set(blob, "seed", json_new_integer((int64_t)seed));
    struct digest d = put_blob(s, blob);
    digest_bytes(&key, &seed, sizeof(seed));
    digest_bytes(&diff_id, &key, sizeof(key));
    AUTO_JSON struct json *record = json_new_object();
    json_set(record, "blob", json_digest(&d));
    json_set(record, "size", json_new_integer(20));
    if (seed % 2) /* a plain image's */
        json_set(record, "diff_id", json_digest(&diff_id));
    assert_ok(catalog_seal(record, &e));
    assert_ok(json_print(record, 0, &text, &e));
    assert_ok(file_make_dirs(store_dir(s), "pushed", &e));
    snprintf(path, 96, "pushed/%s.json", digest_hex(&key, hex));
    assert_ok(file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), &e));
    return d;
}

/* ---- Files ---- */

static struct file_list *walked; /* nftw passes no context */
static size_t walked_capacity;
static size_t walked_prefix;

static int add_walked(const char *path, const struct stat *st, int kind, struct FTW *at UNUSED)
{
    struct err e = ERR_INIT;
    const char *name = path + walked_prefix;
    size_t len = strlen(name);
    if (kind != FTW_F || strncmp(name, "tmp/", 4) == 0 ||
        (len >= 4 && strcmp(name + len - 4, "lock") == 0))
        return 0;
    size_t capacity = walked_capacity;
    assert_ok(mem_grow(&walked->paths, &capacity, walked->count + 1, sizeof(char *), &e));
    assert_ok(mem_grow(&walked->sizes, &walked_capacity, walked->count + 1, sizeof(uint64_t), &e));
    walked->paths[walked->count] = mem_strdup(name);
    walked->sizes[walked->count++] = (uint64_t)st->st_size;
    return 0;
}

void list_files(struct file_list *out, struct world *w)
{
    *out = (struct file_list){0};
    walked = out;
    walked_capacity = 0;
    walked_prefix = strlen(w->path) + 1;
    assert_int_equal(nftw(w->path, add_walked, 16, FTW_PHYS), 0);
}

void file_list_fini(struct file_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->paths[i]);
    free(l->paths);
    free(l->sizes);
}

void age(struct world *w, const char *path, int64_t seconds)
{
    struct stat st;
    int dir = store_dir(w->store);
    assert_int_equal(fstatat(dir, path, &st, 0), 0);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    times[1].tv_sec -= seconds;
    assert_int_equal(utimensat(dir, path, times, 0), 0);
}

void age_all(struct world *w, int64_t seconds)
{
    struct file_list l;
    list_files(&l, w);
    for (size_t i = 0; i < l.count; i++)
        age(w, l.paths[i], seconds);
    file_list_fini(&l);
}

/* ---- Templates ---- */

static int read_map(struct store *s, const struct digest *map, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = store_get_map(s, map, &m, e);
    for (size_t i = 0; rc == 0 && i < block_map_count(m); i++)
        rc = store_audit_chunk(s, &block_map_extent(m, i)->chunk, e);
    return rc;
}

int read_template(struct store *s, const char *alias, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = template_load(&t, s, alias, e);
    if (rc == 0)
        rc = read_map(s, &t->base_disk, e);
    if (rc == 0)
        rc = read_map(s, &t->disk, e);
    if (rc == 0)
        rc = read_map(s, &t->memory, e);
    return rc < 0 ? rc : read_map(s, &t->state, e);
}
