/* SPDX-License-Identifier: MIT */
/* OverlayBD: what is written reads back, what the reference tools wrote reads right, and what is
 * damaged is refused. */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "blockdev/overlaybd.h"
#include "blockdev/overlaybd_internal.h"

enum { B = BLOCK_SIZE, DISK_BLOCKS = 3000 };

/* A disk's content: a number for each block; 0: nothing there. */
struct model {
    uint32_t block[DISK_BLOCKS];
    bool zeros[DISK_BLOCKS]; /* hides what lies below */
};

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void fill_block(uint8_t data[B], uint32_t number)
{
    memset(data, 0, B);
    if (number % 3 == 0 && number > 0)
        memset(data, (int)(number % 251) + 1, B); /* compresses */
    else if (number > 0)
        fixture_fill(data, B, number);
}

static struct block_map *new_map(void)
{
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    assert_ok(block_map_new(&m, (uint64_t)DISK_BLOCKS * B, &e));
    return m;
}

/* Stores the model's blocks in chunks of up to eight. */
static struct block_map *store_model(struct store *s, const struct model *model)
{
    struct err e = ERR_INIT;
    struct block_map *m = new_map();
    uint8_t data[8 * B];
    for (size_t at = 0, n; at < DISK_BLOCKS; at += n) {
        for (n = 0; n < 8 && at + n < DISK_BLOCKS && model->block[at + n] != 0; n++)
            fill_block(data + n * B, model->block[at + n]);
        struct map_extent x = {.off = at * B, .size = (uint32_t)(n * B)};
        if (n > 0) {
            assert_ok(store_put_chunk(s, data, n * B, &x.chunk, &e));
            assert_ok(block_map_add(m, &x, &e));
        } else {
            n = 1;
        }
    }
    assert_ok(block_map_finish(m, &e));
    return m;
}

static struct block_map *zeros_of(const struct model *model)
{
    struct err e = ERR_INIT;
    struct block_map *m = new_map();
    for (size_t i = 0; i < DISK_BLOCKS; i++) {
        struct map_extent x = {.off = i * B, .size = B, .chunk_off = (uint32_t)(i % 100 * B)};
        digest_bytes(&x.chunk, "", 0);
        if (model->zeros[i])
            assert_ok(block_map_add(m, &x, &e));
    }
    assert_ok(block_map_finish(m, &e));
    return m;
}

/* Runs of blocks, some of them repeated, and runs of zeros. */
static void random_model(struct model *m, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    uint64_t state = seed;
    for (size_t at = 0; at < DISK_BLOCKS;) {
        uint64_t kind = random_next(&state) % 4;
        uint32_t number =
            1 + (uint32_t)(random_next(&state) % 400) + (kind == 1 ? 0 : (uint32_t)seed);
        for (size_t n = 1 + random_next(&state) % 60; n > 0 && at < DISK_BLOCKS; n--, at++) {
            if (kind < 2)
                m->block[at] = number++;
            m->zeros[at] = kind == 2;
        }
    }
}

struct written {
    int fd;
    struct overlaybd_blob blob;
    struct source source;
    struct overlaybd_layer *layer;
};

static void write_layer(struct written *w, struct fixture *f, const struct model *model,
                        struct overlaybd_write_options o)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *data = store_model(f->store, model);
    AUTO_BLOCK_MAP struct block_map *zeros = zeros_of(model);
    o.data = data;
    o.zeros = zeros;
    w->fd = fixture_file(f);
    assert_ok(overlaybd_write(w->fd, f->store, &o, &w->blob, &e));
    assert_ok(source_from_fd(&w->source, w->fd, &e));
    assert_int_equal(w->source.size, w->blob.size);
    assert_ok(overlaybd_open(&w->layer, &w->source, &e));
}

static void written_fini(struct written *w)
{
    overlaybd_close(w->layer);
    source_close(&w->source);
}

static void assert_disk(struct bdev *d, const struct model *models, size_t count)
{
    uint8_t wanted[B], got[B];
    assert_int_equal(d->size, (uint64_t)DISK_BLOCKS * B);
    for (size_t i = 0; i < DISK_BLOCKS; i++) {
        uint32_t number = 0;
        for (size_t l = 0; l < count; l++) {
            if (models[l].block[i] != 0 || models[l].zeros[i])
                number = models[l].block[i];
        }
        fill_block(wanted, number);
        assert_int_equal(bdev_read(d, got, B, i * B), 0);
        assert_memory_equal(got, wanted, B);
        uint64_t run;
        assert_int_equal(bdev_content(d, B, i * B, &run), number ? BDEV_DATA : BDEV_ZEROS);
    }
}

/* Reads that start and end anywhere give the same as whole blocks do. */
static void assert_any_range(struct bdev *d)
{
    static uint8_t all[DISK_BLOCKS * B], part[300000];
    assert_int_equal(bdev_read(d, all, sizeof(all), 0), 0);
    uint64_t state = 5;
    for (int i = 0; i < 200; i++) {
        size_t off = random_next(&state) % sizeof(all);
        size_t len = random_next(&state) % sizeof(part);
        if (len > sizeof(all) - off)
            len = sizeof(all) - off;
        assert_int_equal(bdev_read(d, part, len, off), 0);
        assert_memory_equal(part, all + off, len);
    }
}

static void test_stack(void **state)
{
    struct fixture *f = *state;
    static const struct {
        enum overlaybd_compression compression;
        uint32_t block_size;
        size_t workers;
    } kinds[] = {{OVERLAYBD_LZ4, 4096, 1}, {OVERLAYBD_ZSTD, 16384, 2}, {OVERLAYBD_ZSTD, 32768, 3}};
    struct err e = ERR_INIT;
    static struct model models[3];
    struct written w[3];
    struct overlaybd_layer *layers[3];
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        random_model(&models[i], i + 1);
        struct overlaybd_write_options o = {.compression = kinds[i].compression,
                                            .block_size = kinds[i].block_size,
                                            .workers = kinds[i].workers};
        write_layer(&w[i], f, &models[i], o);
        layers[i] = w[i].layer;
    }
    for (size_t count = 1; count <= 3; count++) {
        AUTO_BDEV struct bdev *d = NULL;
        assert_ok(bdev_open_overlaybd(&d, layers, count, &e));
        assert_disk(d, models, count);
        assert_any_range(d);
    }
    for (size_t i = 0; i < 3; i++)
        written_fini(&w[i]);
}

static void test_same_bytes(void **state)
{
    struct fixture *f = *state;
    static struct model model;
    random_model(&model, 7);
    struct overlaybd_write_options o = {
        .compression = OVERLAYBD_ZSTD, .block_size = 16384, .workers = 1};
    struct written one, many;
    write_layer(&one, f, &model, o);
    o.workers = 4;
    write_layer(&many, f, &model, o);
    assert_true(digest_equal(&one.blob.digest, &many.blob.digest));
    written_fini(&one);
    written_fini(&many);
}

/* Blocks that several extents take from one chunk are in the file once. */
static void test_shared_pieces(void **state)
{
    struct fixture *f = *state;
    static struct model once, often;
    for (uint32_t i = 0; i < 8; i++) {
        once.block[i] = 1 + 3 * i;
        for (size_t copy = 0; copy < 100; copy++)
            often.block[copy * 10 + i] = 1 + 3 * i;
    }
    struct overlaybd_write_options o = {
        .compression = OVERLAYBD_LZ4, .block_size = 4096, .workers = 1};
    struct written a, b;
    write_layer(&a, f, &once, o);
    write_layer(&b, f, &often, o);
    assert_true(b.blob.size < a.blob.size + B);
    written_fini(&a);
    written_fini(&b);
}

static void test_empty(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    static struct model nothing;
    struct overlaybd_write_options o = {
        .compression = OVERLAYBD_ZSTD, .block_size = 16384, .workers = 1};
    struct written w;
    write_layer(&w, f, &nothing, o);
    AUTO_BDEV struct bdev *d = NULL;
    assert_ok(bdev_open_overlaybd(&d, &w.layer, 1, &e));
    assert_disk(d, &nothing, 1);
    bdev_close(MOVE(d));
    written_fini(&w);
    AUTO_BLOCK_MAP struct block_map *m = new_map();
    o.data = m;
    o.block_size = 65536;
    struct overlaybd_blob blob;
    assert_class(overlaybd_write(-1, f->store, &o, &blob, &e), ERR_INPUT);
    assert_class(bdev_open_overlaybd(&d, NULL, 0, &e), ERR_UNSUPPORTED);
}

/* ---- Layers of the reference tools ---- */

static void open_sample(struct written *w, const char *name)
{
    struct err e = ERR_INIT;
    char path[512];
    snprintf(path, sizeof(path), "%s/overlaybd/%s", TB2_TEST_DATA, name);
    assert_ok(file_open(&w->fd, AT_FDCWD, path, O_RDONLY, 0, &e));
    assert_ok(source_from_fd(&w->source, w->fd, &e));
    assert_ok(overlaybd_open(&w->layer, &w->source, &e));
}

static void assert_disk_digest(struct overlaybd_layer *const *layers, size_t count,
                               const char *wanted)
{
    struct err e = ERR_INIT;
    AUTO_BDEV struct bdev *d = NULL;
    assert_ok(bdev_open_overlaybd(&d, layers, count, &e));
    AUTO_FREE uint8_t *data = mem_zalloc(d->size);
    assert_non_null(data);
    assert_int_equal(bdev_read(d, data, d->size, 0), 0);
    struct digest sum;
    digest_bytes(&sum, data, d->size);
    char text[DIGEST_TEXT_MAX];
    assert_string_equal(digest_print(&sum, text), wanted);
}

static void test_samples(void **state)
{
    (void)state;
    static const char *const upper[] = {"l2.lsmt", "l2.lz4.zfile", "l2.lz4.zfile.tar",
                                        "l2.zstd.zfile"};
    struct written bottom;
    open_sample(&bottom, "l1.zstd.zfile");
    assert_disk_digest(&bottom.layer, 1,
                       "sha256:ea34dae3e3850f56e0992e1d634a895d465cd9da22be914b7aa56e0513b70d78");
    for (size_t i = 0; i < ARRAY_LEN(upper); i++) {
        struct written top;
        open_sample(&top, upper[i]);
        struct overlaybd_layer *layers[] = {bottom.layer, top.layer};
        assert_disk_digest(
            layers, 2, "sha256:0d9be45576cfe88d0eade78c61ab6c74dcadd94b7f2292cf8033c87ebbc0c26f");
        written_fini(&top);
    }
    written_fini(&bottom);
}

/* ---- Damage ---- */

static size_t read_sample(const char *name, uint8_t *data, size_t room)
{
    struct err e = ERR_INIT;
    char path[512];
    snprintf(path, sizeof(path), "%s/overlaybd/%s", TB2_TEST_DATA, name);
    AUTO_BUF struct buf b;
    buf_init(&b, room);
    assert_ok(file_read(AT_FDCWD, path, &b, &e));
    memcpy(data, b.data, b.len);
    return b.len;
}

/* Opens the bytes as a layer and reads its whole disk; returns the class of what went wrong. */
static enum err_class judge_blob(const struct source *blob)
{
    struct err e = ERR_INIT;
    AUTO_OVERLAYBD_LAYER struct overlaybd_layer *l = NULL;
    AUTO_BDEV struct bdev *d = NULL;
    if (overlaybd_open(&l, blob, &e) < 0 || bdev_open_overlaybd(&d, &l, 1, &e) < 0)
        return e.class;
    AUTO_FREE uint8_t *disk = mem_zalloc(d->size);
    assert_non_null(disk);
    return bdev_read(d, disk, d->size, 0) < 0 ? ERR_CORRUPT : ERR_NONE;
}

static enum err_class judge(const uint8_t *data, size_t len)
{
    struct err e = ERR_INIT;
    struct source blob;
    assert_ok(source_from_memory(&blob, data, len, &e));
    enum err_class class = judge_blob(&blob);
    source_close(&blob);
    return class;
}

static void test_damage(void **state)
{
    (void)state;
    static uint8_t lsmt[65536], zfile[4096], changed[65536];
    size_t lsmt_len = read_sample("l2.lsmt", lsmt, sizeof(lsmt));
    size_t zfile_len = read_sample("l2.lz4.zfile", zfile, sizeof(zfile));
    assert_int_equal(judge(lsmt, lsmt_len), ERR_NONE);
    assert_int_equal(judge(zfile, zfile_len), ERR_NONE);
    const struct row {
        const char *name;
        const uint8_t *from;
        size_t len, at;
        uint8_t change; /* xor */
        enum err_class wanted;
    } rows[] = {
        {"lsmt: first magic", lsmt, lsmt_len, 1, 1, ERR_CORRUPT},
        {"lsmt: header bit", lsmt, lsmt_len, 28, 1, ERR_CORRUPT},
        {"lsmt: data bit", lsmt, lsmt_len, 28, 2, ERR_CORRUPT},
        {"lsmt: sealed bit of the header is not asked for", lsmt, lsmt_len, 28, 4, ERR_NONE},
        {"lsmt: unknown flag", lsmt, lsmt_len, 29, 0x80, ERR_NONE},
        {"lsmt: no uuid", lsmt, lsmt_len, 56, 0xff, ERR_NONE},
        {"lsmt: trailer's magic", lsmt, lsmt_len, lsmt_len - 4096, 1, ERR_CORRUPT},
        {"lsmt: trailer not sealed", lsmt, lsmt_len, lsmt_len - 4096 + 28, 4, ERR_CORRUPT},
        {"lsmt: trailer is a header", lsmt, lsmt_len, lsmt_len - 4096 + 28, 1, ERR_CORRUPT},
        {"lsmt: index beyond the file", lsmt, lsmt_len, lsmt_len - 4096 + 36, 1, ERR_CORRUPT},
        {"lsmt: index too long", lsmt, lsmt_len, lsmt_len - 4096 + 41, 0x10, ERR_CORRUPT},
        {"lsmt: index past the cap", lsmt, lsmt_len, lsmt_len - 4096 + 43, 0x10, ERR_LIMIT},
        {"lsmt: size not of sectors", lsmt, lsmt_len, lsmt_len - 4096 + 48, 1, ERR_CORRUPT},
        {"lsmt: 2 TiB", lsmt, lsmt_len, lsmt_len - 4096 + 53, 2, ERR_UNSUPPORTED},
        {"lsmt: cut short", lsmt, lsmt_len - 512, 0, 0, ERR_CORRUPT},
        {"lsmt: nothing", lsmt, 0, 0, 0, ERR_CORRUPT},
        {"zfile: header's digest", zfile, zfile_len, 60, 1, ERR_CORRUPT},
        {"zfile: a block", zfile, zfile_len, 600, 1, ERR_CORRUPT},
        {"zfile: table of blocks", zfile, zfile_len, zfile_len - 520, 1, ERR_CORRUPT},
        {"zfile: trailer is not read", zfile, zfile_len, zfile_len - 500, 1, ERR_NONE},
        {"zfile: cut short", zfile, zfile_len / 2, 0, 0, ERR_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *r = &rows[i];
        memcpy(changed, r->from, r->len);
        changed[r->at] ^= r->change;
        enum err_class got = judge(changed, r->len);
        if (got != r->wanted)
            fail_msg("%s: %s, not %s", r->name, err_class_name(got), err_class_name(r->wanted));
    }
}

/* No bit of a compressed layer can change without being seen, but for the one that says whether
 * header and table have checksums. */
static void test_flipped_bits(void **state)
{
    (void)state;
    static uint8_t zfile[4096];
    size_t len = read_sample("l2.zstd.zfile", zfile, sizeof(zfile));
    for (size_t at = 0; at < len - ZFILE_HEADER_SIZE; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            if (at == 32 && 1 << bit == ZFILE_HAS_CRCS)
                continue;
            zfile[at] ^= (uint8_t)(1U << bit);
            if (judge(zfile, len) == ERR_NONE)
                fail_msg("bit %u of byte %zu went unseen", bit, at);
            zfile[at] ^= (uint8_t)(1U << bit);
        }
    }
}

static void test_checksums(void **state)
{
    (void)state;
    assert_int_equal(crc32c_raw(0, "123456789", 9), 0x58E3FA20);
    assert_int_equal(crc32c_raw(ZFILE_CRC_START, "123456789", 9), 0x3C9BD4E0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stack, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_same_bytes, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_shared_pieces, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_empty, fixture_setup, fixture_teardown),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_checksums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
