/* SPDX-License-Identifier: MIT */
/* Copy-on-write and seal; case 100 of the catalogue of failures: the base is never altered, a
 * discard never shows it, a failure of the upper ends one request. */
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "bdev_port.h"
#include "memdev.h"

enum { BLOCKS = 300, SIZE = BLOCKS * BLOCK_SIZE };

/* A cow over a memory disk full of 0xaa. */
static struct bdev *open_cow(struct fixture *f, struct bdev **lower, uint64_t limit)
{
    struct err e = ERR_INIT;
    struct bdev *cow;
    struct bdev *base = memdev_new(SIZE, false);
    memset(memdev_bytes(base), 0xaa, SIZE);
    assert_ok(bdev_open_cow(&cow, base, store_tmp_dir(f->store), limit, &e));
    if (lower)
        *lower = base;
    return cow;
}

static void expect(struct bdev *d, uint64_t off, size_t len, uint8_t byte)
{
    AUTO_FREE uint8_t *data = mem_zalloc(len);
    assert_non_null(data);
    memset(data, ~byte, len);
    assert_int_equal(bdev_read(d, data, len, off), 0);
    for (size_t i = 0; i < len; i++)
        if (data[i] != byte)
            fail_msg("byte %llu is %#x, not %#x", (unsigned long long)off + i, data[i], byte);
}

static void write_byte(struct bdev *d, uint64_t off, size_t len, uint8_t byte)
{
    AUTO_FREE uint8_t *data = mem_zalloc(len);
    assert_non_null(data);
    memset(data, byte, len);
    assert_int_equal(bdev_write(d, data, len, off), 0);
}

/* What a range is before a write or a discard of a part of it. */
enum before { FRESH, WRITTEN_BEFORE, DISCARDED_BEFORE };

static void parts_of_blocks(void **state)
{
    static const struct {
        uint64_t off;
        size_t len;
    } cases[] = {
        {0, BLOCK_SIZE},
        {0, 1},
        {BLOCK_SIZE - 1, 1},
        {BLOCK_SIZE - 1, 2},
        {5, 10},
        {1, 3 * BLOCK_SIZE},
        {7, SIZE - 20},
        {BLOCK_SIZE, BLOCK_SIZE + 1},
        {SIZE - 1, 1},
        {0, SIZE},
        {3 * BLOCK_SIZE - 1, BLOCK_SIZE + 1},
        {31 * BLOCK_SIZE, 34 * BLOCK_SIZE},
        {32 * BLOCK_SIZE, 32 * BLOCK_SIZE},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(cases) * 6; i++) {
        uint64_t off = cases[i / 6].off;
        size_t len = cases[i / 6].len;
        enum before before = (enum before)(i % 3);
        bool discard = i % 6 >= 3;
        uint8_t around = before == FRESH ? 0xaa : before == WRITTEN_BEFORE ? 0x55 : 0;
        struct bdev *lower;
        AUTO_BDEV struct bdev *d = open_cow(f, &lower, 0);
        if (before == WRITTEN_BEFORE)
            write_byte(d, 0, SIZE, 0x55);
        else if (before == DISCARDED_BEFORE)
            assert_int_equal(bdev_discard(d, SIZE, 0), 0);
        if (discard)
            assert_int_equal(bdev_discard(d, len, off), 0);
        else
            write_byte(d, off, len, 0x33);
        expect(d, 0, (size_t)off, around);
        expect(d, off, len, discard ? 0 : 0x33);
        expect(d, off + len, (size_t)(SIZE - off - len), around);
        expect(lower, 0, SIZE, 0xaa);
    }
}

static void two_disks_on_one_base(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *bytes = mem_zalloc(SIZE);
    assert_non_null(bytes);
    fixture_fill(bytes, SIZE, 3);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(block_map_new(&m, SIZE, &e));
    for (uint64_t off = 0; off < SIZE; off += CHUNK_SIZE_MAX) {
        uint64_t left = SIZE - off;
        struct map_extent extent = {
            .off = off, .size = left < CHUNK_SIZE_MAX ? (uint32_t)left : CHUNK_SIZE_MAX};
        assert_ok(store_put_chunk(f->store, bytes + off, extent.size, &extent.chunk, &e));
        assert_ok(block_map_add(m, &extent, &e));
    }
    assert_ok(block_map_finish(m, &e));

    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_BDEV struct bdev *leaf = NULL;
    struct bdev *lower;
    assert_ok(chunk_cache_new(&c, f->store, 64 << 20, &e));
    assert_ok(bdev_open_map(&leaf, m, c, &e));
    AUTO_BDEV struct bdev *one = NULL;
    AUTO_BDEV struct bdev *two = NULL;
    assert_ok(bdev_open_map(&lower, m, c, &e));
    assert_ok(bdev_open_cow(&one, lower, store_tmp_dir(f->store), 0, &e));
    assert_ok(bdev_open_map(&lower, m, c, &e));
    assert_ok(bdev_open_cow(&two, lower, store_tmp_dir(f->store), 0, &e));
    write_byte(one, 4096, 4096, 1);
    write_byte(two, 4096, 4000, 2);
    assert_int_equal(bdev_discard(two, 8192, 8192), 0);
    expect(one, 4096, 4096, 1);
    expect(two, 4096, 4000, 2);
    expect(two, 8192, 8192, 0);
    const struct disk_port port = bdev_port(leaf);
    assert_true(disk_model_equal(&port, bytes, SIZE));
}

static void limit_is_no_space(void **state)
{
    struct fixture *f = *state;
    AUTO_BDEV struct bdev *d = open_cow(f, NULL, 10 * BLOCK_SIZE);
    uint8_t data[2 * BLOCK_SIZE] = {0};
    write_byte(d, 0, 9 * BLOCK_SIZE, 1);
    assert_int_equal(bdev_write(d, data, 2 * BLOCK_SIZE, 9 * BLOCK_SIZE), -ENOSPC);
    expect(d, 9 * BLOCK_SIZE, 2 * BLOCK_SIZE, 0xaa);
    write_byte(d, 8 * BLOCK_SIZE, 2 * BLOCK_SIZE, 2); /* one of them is there already */
    assert_int_equal(bdev_write(d, data, 1, 20 * BLOCK_SIZE), -ENOSPC);
    assert_int_equal(bdev_discard(d, 100, 20 * BLOCK_SIZE), -ENOSPC); /* a part needs a block */
    write_byte(d, 3, 5, 3);                                           /* no further block */
    assert_int_equal(bdev_discard(d, 4 * BLOCK_SIZE, 2 * BLOCK_SIZE), 0);
    write_byte(d, 100 * BLOCK_SIZE, 4 * BLOCK_SIZE, 4); /* what was given back */
    assert_int_equal(bdev_write(d, data, 1, 20 * BLOCK_SIZE), -ENOSPC);
    expect(d, 20 * BLOCK_SIZE, BLOCK_SIZE, 0xaa);
}

static void lower_fails_one_request(void **state)
{
    struct fixture *f = *state;
    struct bdev *lower;
    AUTO_BDEV struct bdev *d = open_cow(f, &lower, 0);
    memdev_fail(lower, EIO);
    uint8_t data[BLOCK_SIZE] = {0};
    assert_int_equal(bdev_read(d, data, 1, 0), -EIO);
    assert_int_equal(bdev_write(d, data, 1, 0), -EIO); /* needs the rest of the block */
    write_byte(d, BLOCK_SIZE, BLOCK_SIZE, 1);          /* does not */
    expect(d, BLOCK_SIZE, BLOCK_SIZE, 1);
    memdev_fail(lower, 0);
    expect(d, 0, BLOCK_SIZE, 0xaa);
}

static void upper_fails_one_request(void **state)
{
    struct fixture *f = *state;
    AUTO_BDEV struct bdev *d = open_cow(f, NULL, 0);
    write_byte(d, 0, BLOCK_SIZE, 1);
    struct rlimit before, small = {.rlim_cur = 4 * BLOCK_SIZE};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    uint8_t data[3 * BLOCK_SIZE] = {0};
    int rc = bdev_write(d, data, sizeof(data), 3 * BLOCK_SIZE);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, -EFBIG);
    expect(d, 0, BLOCK_SIZE, 1);
    expect(d, BLOCK_SIZE, 10 * BLOCK_SIZE, 0xaa);
    write_byte(d, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE, 2);
}

struct part_write {
    struct bdev *device;
    uint64_t off;
    atomic_bool started;
    int rc;
    pthread_t thread;
};

static void *write_part(void *arg)
{
    struct part_write *w = arg;
    atomic_store(&w->started, true);
    w->rc = bdev_write(w->device, "part", 4, w->off);
    return NULL;
}

static void part_write_start(struct part_write *w, struct bdev *d, uint64_t off)
{
    *w = (struct part_write){.device = d, .off = off, .rc = 1};
    assert_int_equal(pthread_create(&w->thread, NULL, write_part, w), 0);
    while (!atomic_load(&w->started))
        ;
}

static void part_write_end(struct part_write *w)
{
    pthread_join(w->thread, NULL);
    assert_int_equal(w->rc, 0);
}

static void slow_lower_delays_its_range_alone(void **state)
{
    struct fixture *f = *state;
    struct bdev *lower;
    AUTO_BDEV struct bdev *d = open_cow(f, &lower, 0);
    struct part_write slow;
    memdev_close_gate(lower);
    part_write_start(&slow, d, 8);
    while (memdev_waiting(lower) == 0)
        ; /* it is about to read the block's other bytes */
    write_byte(d, BLOCK_SIZE, BLOCK_SIZE, 1);
    expect(d, BLOCK_SIZE, BLOCK_SIZE, 1);
    assert_int_equal(bdev_discard(d, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE), 0);
    memdev_open_gate(lower);
    part_write_end(&slow);
    uint8_t data[16];
    assert_int_equal(bdev_read(d, data, sizeof(data), 0), 0);
    assert_memory_equal(data, "\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaapart\xaa\xaa\xaa\xaa", 16);
}

/* Two parts of one block, the second written while the first still reads what is around it. */
static void parts_of_one_block_at_once(void **state)
{
    struct fixture *f = *state;
    struct bdev *lower;
    AUTO_BDEV struct bdev *d = open_cow(f, &lower, 0);
    for (uint64_t off = 0; off < SIZE; off += BLOCK_SIZE) {
        struct part_write first, second;
        memdev_close_gate(lower);
        part_write_start(&first, d, off);
        while (memdev_waiting(lower) == 0)
            ;
        part_write_start(&second, d, off + 8);
        sched_yield(); /* time for the second to do the wrong thing, were it able to */
        memdev_open_gate(lower);
        part_write_end(&first);
        part_write_end(&second);
        uint8_t data[12];
        assert_int_equal(bdev_read(d, data, sizeof(data), off), 0);
        assert_memory_equal(data, "part\xaa\xaa\xaa\xaapart", 12);
    }
}

static void knows_its_zeros(void **state)
{
    struct fixture *f = *state;
    AUTO_BDEV struct bdev *d = open_cow(f, NULL, 0);
    assert_int_equal(bdev_discard(d, 40 * BLOCK_SIZE, 2 * BLOCK_SIZE), 0);
    write_byte(d, 42 * BLOCK_SIZE, BLOCK_SIZE, 1);
    uint64_t run;
    assert_int_equal(bdev_content(d, SIZE, 0, &run), BDEV_DATA);
    assert_int_equal(run, 2 * BLOCK_SIZE);
    assert_int_equal(bdev_content(d, SIZE - run, run, &run), BDEV_ZEROS);
    assert_int_equal(run, 40 * BLOCK_SIZE);
    assert_int_equal(bdev_content(d, 5, 2 * BLOCK_SIZE + 9, &run), BDEV_ZEROS);
    assert_int_equal(run, 5);
    assert_int_equal(bdev_content(d, 2 * BLOCK_SIZE, 42 * BLOCK_SIZE, &run), BDEV_DATA);
}

static void odd_size_is_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct bdev *d;
    assert_class(bdev_open_cow(&d, memdev_new(4097, false), store_tmp_dir(f->store), 0, &e),
                 ERR_UNSUPPORTED);
}

/* ---- Seal ---- */

static void seal_has_the_changes_alone(void **state)
{
    enum { WINDOW = CHUNK_SIZE_MAX / BLOCK_SIZE };
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct bdev *lower;
    AUTO_BDEV struct bdev *d = open_cow(f, &lower, 0);
    memset(memdev_bytes(lower) + 200 * BLOCK_SIZE, 0, 10 * BLOCK_SIZE);
    write_byte(d, 0, 4 * BLOCK_SIZE, 0xaa);                      /* as it was */
    write_byte(d, 8 * BLOCK_SIZE, BLOCK_SIZE, 0);                /* zeros, written */
    write_byte(d, 10 * BLOCK_SIZE + 5, 1, 1);                    /* a byte of one block */
    write_byte(d, (WINDOW - 2) * BLOCK_SIZE, 4 * BLOCK_SIZE, 2); /* across a window */
    write_byte(d, 200 * BLOCK_SIZE, BLOCK_SIZE, 0);              /* zeros over zeros */
    assert_int_equal(bdev_discard(d, 3 * BLOCK_SIZE, 20 * BLOCK_SIZE), 0);

    AUTO_BLOCK_MAP struct block_map *upper = NULL;
    AUTO_BLOCK_MAP struct block_map *zeros = NULL;
    assert_ok(bdev_cow_seal(d, NULL, f->store, &upper, &zeros, &e));
    static const struct {
        uint64_t block, count;
    } changed[] = {{10, 1}, {WINDOW - 2, 2}, {WINDOW, 2}}, cleared[] = {{8, 1}, {20, 3}};
    assert_int_equal(block_map_count(upper), ARRAY_LEN(changed));
    for (size_t i = 0; i < ARRAY_LEN(changed); i++) {
        const struct map_extent *x = block_map_extent(upper, i);
        assert_int_equal(x->off, changed[i].block * BLOCK_SIZE);
        assert_int_equal(x->size, changed[i].count * BLOCK_SIZE);
    }
    assert_int_equal(block_map_count(zeros), ARRAY_LEN(cleared));
    for (size_t i = 0; i < ARRAY_LEN(cleared); i++) {
        const struct map_extent *x = block_map_extent(zeros, i);
        assert_int_equal(x->off, cleared[i].block * BLOCK_SIZE);
        assert_int_equal(x->size, cleared[i].count * BLOCK_SIZE);
    }

    memdev_fail(lower, EIO);
    write_byte(d, 12 * BLOCK_SIZE, BLOCK_SIZE, 3);
    struct block_map *none;
    assert_class(bdev_cow_seal(d, NULL, f->store, &none, &none, &e), ERR_SYS);
}

static void encode(const struct block_map *m, struct buf *out)
{
    struct err e = ERR_INIT;
    buf_init(out, 1 << 20);
    assert_ok(block_map_encode(m, out, &e));
}

static void seal_depends_on_contents_alone(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct buf encoded[2];
    for (int way = 0; way < 2; way++) {
        AUTO_BDEV struct bdev *d = open_cow(f, NULL, 0);
        for (unsigned i = 0; i < 250; i++) {
            unsigned block = way ? 249 - i : i;
            if (way) /* written before with something else, in another order */
                write_byte(d, (uint64_t)block * BLOCK_SIZE, BLOCK_SIZE, 0x77);
            if (block % 5 == 2)
                continue;
            write_byte(d, (uint64_t)block * BLOCK_SIZE, BLOCK_SIZE, (uint8_t)(block % 7));
        }
        for (unsigned block = 2; way && block < 250; block += 5)
            write_byte(d, (uint64_t)block * BLOCK_SIZE, BLOCK_SIZE, 0xaa);
        AUTO_BLOCK_MAP struct block_map *upper = NULL;
        AUTO_BLOCK_MAP struct block_map *zeros = NULL;
        assert_ok(bdev_cow_seal(d, NULL, f->store, &upper, &zeros, &e));
        encode(upper, &encoded[way]);
        assert_int_not_equal(block_map_count(zeros), 0);
    }
    assert_int_equal(encoded[0].len, encoded[1].len);
    assert_memory_equal(encoded[0].data, encoded[1].data, encoded[0].len);
    buf_fini(&encoded[0]);
    buf_fini(&encoded[1]);
}

/* Random requests, the upper closed and taken up again, seal, the sealed disk reopened as the next
 * lower: again and again. */
static void behaves_as_memory(void **state)
{
    enum { ROUNDS = 4, PORTS = 4, STEPS = 300, DISK = 4 << 20 };
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint64_t seed = disk_model_seed(20251129);
    AUTO_FREE uint8_t *model = mem_zalloc(DISK);
    assert_non_null(model);
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    assert_ok(chunk_cache_new(&c, f->store, 1 << 20, &e));
    struct block_map *disk;
    assert_ok(block_map_new(&disk, DISK, &e));
    assert_ok(block_map_finish(disk, &e));
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct bdev *leaf, *cow;
        assert_ok(bdev_open_map(&leaf, disk, c, &e));
        int dir = store_tmp_dir(f->store);
        size_t steps = disk_model_steps(STEPS);
        struct disk_port port;
        for (unsigned part = 0; part < 2; part++) {
            if (part > 0) {
                bdev_close(cow);
                assert_ok(bdev_open_map(&leaf, disk, c, &e));
            }
            assert_ok(bdev_open_cow_kept(&cow, leaf, dir, "upper", 0, &e));
            port = bdev_port(cow);
            const struct disk_port ports[PORTS] = {port, port, port, port};
            assert_true(disk_model_exercise(ports, PORTS, model, DISK, steps / 2,
                                            seed + round * 100 + part * 10));
            assert_true(disk_model_equal(&port, model, DISK));
        }

        struct block_map *upper, *zeros, *sealed;
        assert_ok(bdev_cow_seal(cow, NULL, f->store, &upper, &zeros, &e));
        assert_true(disk_model_equal(&port, model, DISK)); /* sealing changes nothing */
        bdev_close(cow);
        assert_ok(bdev_cow_forget(dir, "upper", &e));
        assert_ok(block_map_overlay(&sealed, disk, upper, zeros, &e));
        block_map_free(upper);
        block_map_free(zeros);
        block_map_free(disk);
        disk = sealed;
        AUTO_BDEV struct bdev *reopened = NULL;
        assert_ok(bdev_open_map(&reopened, disk, c, &e));
        const struct disk_port again = bdev_port(reopened);
        assert_true(disk_model_equal(&again, model, DISK));
    }
    block_map_free(disk);
}

static struct bdev *open_kept(struct fixture *f, uint64_t size, uint64_t limit)
{
    struct err e = ERR_INIT;
    struct bdev *cow, *base = memdev_new(size, false);
    memset(memdev_bytes(base), 0xaa, size);
    assert_ok(bdev_open_cow_kept(&cow, base, store_tmp_dir(f->store), "kept", limit, &e));
    return cow;
}

static void kept_uppers_are_taken_up_again(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    int dir = store_tmp_dir(f->store);
    struct bdev *d = open_kept(f, SIZE, 8 * BLOCK_SIZE), *other;
    write_byte(d, 0, 6 * BLOCK_SIZE, 1);
    assert_int_equal(bdev_discard(d, 3 * BLOCK_SIZE, 5 * BLOCK_SIZE), 0);
    assert_class(bdev_open_cow_kept(&other, memdev_new(SIZE, false), dir, "kept", 0, &e), ERR_BUSY);
    bdev_close(d);
    assert_class(bdev_open_cow_kept(&other, memdev_new(2 * SIZE, false), dir, "kept", 0, &e),
                 ERR_CORRUPT);

    d = open_kept(f, SIZE, 8 * BLOCK_SIZE);
    expect(d, 0, 5 * BLOCK_SIZE, 1);
    expect(d, 5 * BLOCK_SIZE, 3 * BLOCK_SIZE, 0);
    expect(d, 8 * BLOCK_SIZE, SIZE - 8 * BLOCK_SIZE, 0xaa);
    write_byte(d, 100 * BLOCK_SIZE, 3 * BLOCK_SIZE, 2); /* five blocks were written before */
    AUTO_FREE uint8_t *data = mem_zalloc(BLOCK_SIZE);
    assert_int_equal(bdev_write(d, data, BLOCK_SIZE, 200 * BLOCK_SIZE), -ENOSPC);
    bdev_close(d);

    AUTO_FD int fd = -1;
    assert_ok(file_open(&fd, dir, "kept.states", O_WRONLY, 0, &e));
    assert_ok(file_pwrite_full(fd, "\x03", 1, 0, &e)); /* no state has this number */
    assert_class(bdev_open_cow_kept(&other, memdev_new(SIZE, false), dir, "kept", 0, &e),
                 ERR_CORRUPT);
    assert_ok(bdev_cow_forget(dir, "kept", &e));
    assert_false(file_exists(dir, "kept") || file_exists(dir, "kept.states"));
    d = open_kept(f, SIZE, 0);
    expect(d, 0, SIZE, 0xaa);
    bdev_close(d);
}

/* What was answered before the kill is there; the block under way is as before or after. */
static void kept_uppers_survive_a_kill(void **state)
{
    struct fixture *f = *state;
    _Atomic int *written =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(written != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        struct bdev *d = open_kept(f, SIZE, 0);
        for (int i = 0;; i++) {
            write_byte(d, (uint64_t)(i % BLOCKS) * BLOCK_SIZE, BLOCK_SIZE,
                       (uint8_t)(i / BLOCKS % 100 + 1));
            *written = i + 1;
        }
    }
    while (*written < 5 * BLOCKS / 2)
        sched_yield();
    int status;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    AUTO_BDEV struct bdev *d = open_kept(f, SIZE, 0);
    int last = *written;
    for (int block = 0; block < BLOCKS; block++) {
        int round = (last - block + BLOCKS - 1) / BLOCKS; /* so often was it answered */
        uint8_t data[BLOCK_SIZE];
        assert_int_equal(bdev_read(d, data, BLOCK_SIZE, (uint64_t)block * BLOCK_SIZE), 0);
        int found = data[0];
        if (block == last % BLOCKS && found == round % 100 + 1)
            continue;
        expect(d, (uint64_t)block * BLOCK_SIZE, BLOCK_SIZE, (uint8_t)((round - 1) % 100 + 1));
    }
    assert_int_equal(munmap((void *)(uintptr_t)written, 4096), 0);
}

static void memory_short(void **state)
{
    struct fixture *f = *state;
    int rc = -1;
    for (unsigned long nth = 1; rc != 0; nth++) {
        struct err e = ERR_INIT;
        struct bdev *lower = memdev_new(SIZE, false);
        AUTO_BDEV struct bdev *d = NULL;
        AUTO_BLOCK_MAP struct block_map *upper = NULL;
        AUTO_BLOCK_MAP struct block_map *zeros = NULL;
        mem_fail_nth(nth);
        rc = bdev_open_cow(&d, lower, store_tmp_dir(f->store), 0, &e);
        if (rc == 0)
            rc = bdev_write(d, "1", 1, 0);
        if (rc == 0)
            rc = bdev_cow_seal(d, NULL, f->store, &upper, &zeros, &e);
        mem_fail_nth(0);
        if (rc < 0)
            assert_int_equal(e.class, ERR_NOMEM);
    }
}

/* Seals one after another, each over the one before: the last map is the disk, and each holds what was
 * changed since the one before and nothing else. */
static void seals_follow_one_another(void **state)
{
    enum { ROUNDS = 6, STEPS = 120, DISK = 4 << 20 };
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    uint64_t seed = disk_model_seed(20251130);
    AUTO_FREE uint8_t *model = mem_zalloc(DISK);
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    assert_non_null(model);
    assert_ok(chunk_cache_new(&c, f->store, 1 << 20, &e));
    AUTO_BDEV struct bdev *cow = NULL;
    assert_ok(bdev_open_cow(&cow, memdev_new(DISK, false), store_tmp_dir(f->store), 0, &e));
    const struct disk_port port = bdev_port(cow);
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    assert_ok(block_map_new(&disk, DISK, &e));
    assert_ok(block_map_finish(disk, &e));
    for (unsigned round = 0; round < ROUNDS; round++) {
        assert_true(
            disk_model_exercise(&port, 1, model, DISK, disk_model_steps(STEPS), seed + round));
        AUTO_BDEV struct bdev *last = NULL;
        AUTO_BLOCK_MAP struct block_map *upper = NULL;
        AUTO_BLOCK_MAP struct block_map *zeros = NULL;
        struct block_map *sealed = NULL;
        assert_ok(bdev_open_map(&last, disk, c, &e));
        assert_ok(bdev_cow_seal(cow, last, f->store, &upper, &zeros, &e));
        assert_ok(block_map_overlay(&sealed, disk, upper, zeros, &e));
        bdev_close(MOVE(last));
        block_map_free(disk);
        disk = sealed;
        AUTO_BDEV struct bdev *reopened = NULL;
        assert_ok(bdev_open_map(&reopened, disk, c, &e));
        const struct disk_port again = bdev_port(reopened);
        assert_true(disk_model_equal(&again, model, DISK));
    }
}

static void seal_looks_at_what_was_touched(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct bdev *lower;
    AUTO_BDEV struct bdev *d = open_cow(f, &lower, 0);
    AUTO_BDEV struct bdev *last = memdev_new(SIZE, true);
    memcpy(memdev_bytes(last), memdev_bytes(lower), SIZE);
    for (unsigned round = 0; round < 3; round++) {
        AUTO_BLOCK_MAP struct block_map *upper = NULL;
        AUTO_BLOCK_MAP struct block_map *zeros = NULL;
        unsigned block = 63 + round; /* on both sides of a word */
        write_byte(d, block * BLOCK_SIZE, BLOCK_SIZE, (uint8_t)(round + 1));
        assert_int_equal(bdev_discard(d, BLOCK_SIZE, (100 + round) * BLOCK_SIZE), 0);
        assert_ok(bdev_cow_seal(d, last, f->store, &upper, &zeros, &e));
        assert_int_equal(block_map_count(upper), 1);
        assert_int_equal(block_map_extent(upper, 0)->off, block * BLOCK_SIZE);
        assert_int_equal(block_map_extent(upper, 0)->size, BLOCK_SIZE);
        assert_int_equal(block_map_count(zeros), 1);
        assert_int_equal(block_map_extent(zeros, 0)->off, (100 + round) * BLOCK_SIZE);
        memset(memdev_bytes(last) + block * BLOCK_SIZE, (int)round + 1, BLOCK_SIZE);
        memset(memdev_bytes(last) + (100 + round) * BLOCK_SIZE, 0, BLOCK_SIZE);
    }
    /* Back to what lower holds is a change against the last seal. */
    AUTO_BLOCK_MAP struct block_map *upper = NULL;
    AUTO_BLOCK_MAP struct block_map *zeros = NULL;
    write_byte(d, 64 * BLOCK_SIZE, BLOCK_SIZE, 0xaa);
    assert_ok(bdev_cow_seal(d, last, f->store, &upper, &zeros, &e));
    assert_int_equal(block_map_count(upper), 1);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(parts_of_blocks),
        WITH_STORE(two_disks_on_one_base),
        WITH_STORE(limit_is_no_space),
        WITH_STORE(lower_fails_one_request),
        WITH_STORE(upper_fails_one_request),
        WITH_STORE(slow_lower_delays_its_range_alone),
        WITH_STORE(parts_of_one_block_at_once),
        WITH_STORE(knows_its_zeros),
        WITH_STORE(odd_size_is_refused),
        WITH_STORE(seal_has_the_changes_alone),
        WITH_STORE(seal_depends_on_contents_alone),
        WITH_STORE(seals_follow_one_another),
        WITH_STORE(seal_looks_at_what_was_touched),
        WITH_STORE(behaves_as_memory),
        WITH_STORE(kept_uppers_are_taken_up_again),
        WITH_STORE(kept_uppers_survive_a_kill),
        WITH_STORE(memory_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
