/* SPDX-License-Identifier: MIT */
/*
 * ingest [-j JOBS] [-w WORKERS] [-l LEVEL] STORE IMAGE...: ingests and assembles images (oci:DIR:TAG) into STORE, JOBS at a
 * time, as a bake does up to the disk, with WORKERS threads for chunks (default of both: the cores) and
 * zstd's LEVEL. Prints the disks' digests, then what it took, as one line of
 * JSON. Our side of tests/bench/ingest.py.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bake/common/slots.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { JOBS_MAX = 64, FREE_SIZE = 1 << 30 };

struct job {
    const char *text;
    char disk[DIGEST_TEXT_MAX];
    int64_t ingested_ms, assembled_ms;
    int rc;
    struct err err;
};

struct bench {
    struct image_room room;
    struct job *jobs;
    size_t count;
    atomic_size_t next;
    size_t threads, workers;
    int level;
};

static int make_disk(struct image_room *room, struct job *job, struct err *e)
{
    AUTO_IMAGE struct image *image = NULL;
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    struct digest digest;
    int64_t start = clock_ms();
    int rc = image_resolve(&image, room, job->text, e);
    if (rc == 0)
        rc = image_pull(image, room, NULL, e);
    if (rc == 0)
        rc = image_ingest(image, room, e);
    job->ingested_ms = clock_ms() - start;
    if (rc == 0)
        rc = image_assemble(image, room, FREE_SIZE, &disk, &digest, e);
    job->assembled_ms = clock_ms() - start - job->ingested_ms;
    if (rc == 0)
        digest_print(&digest, job->disk);
    return rc;
}

static void *work(void *self)
{
    struct bench *b = self;
    for (;;) {
        size_t n = atomic_fetch_add(&b->next, 1);
        if (n >= b->count)
            return NULL;
        b->jobs[n].rc = make_disk(&b->room, &b->jobs[n], &b->jobs[n].err);
    }
}

static double seconds(const struct timeval *t)
{
    return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

/* MiB; not ru_maxrss, in which a process starts with what its starter had. */
static double peak_memory(void)
{
    struct err ignored = ERR_INIT;
    AUTO_BUF struct buf status;
    buf_init(&status, 64 << 10);
    if (file_read(AT_FDCWD, "/proc/self/status", &status, &ignored) < 0)
        return 0;
    const char *at = strstr(buf_text(&status), "VmHWM:");
    return at ? strtod(at + strlen("VmHWM:"), NULL) / 1024 : 0;
}

static void report(const struct bench *b, struct store *s, int64_t wall_ms)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    struct store_stats stats = store_stats(s);
    int64_t ingest_ms = 0;
    int64_t assemble_ms = 0;
    for (size_t i = 0; i < b->count; i++) {
        printf("%s %s\n", b->jobs[i].text, b->jobs[i].disk);
        ingest_ms += b->jobs[i].ingested_ms;
        assemble_ms += b->jobs[i].assembled_ms;
    }
    printf("{\"wall_s\": %.3f, \"user_s\": %.3f, \"system_s\": %.3f, \"max_rss_mib\": %.1f, "
           "\"ingest_s\": %.3f, \"assemble_s\": %.3f, \"chunks_put\": %" PRIu64
           ", \"chunks_new\": %" PRIu64 ", \"chunk_bytes_new\": %" PRIu64 "}\n",
           (double)wall_ms / 1e3, seconds(&usage.ru_utime), seconds(&usage.ru_stime), peak_memory(),
           (double)ingest_ms / 1e3, (double)assemble_ms / 1e3, stats.chunks_put, stats.chunks_new,
           stats.chunk_bytes_new);
}

static int open_room(struct bench *b, struct store *s, struct err *e)
{
    struct image_options options = {0};
    store_set_compression_level(s, b->level);
    int rc = image_room_open(&b->room, s, &options, NULL, e);
    if (rc < 0)
        return rc;
    ingest_gate_free(b->room.ingest);
    b->room.ingest = NULL;
    return ingest_gate_new(&b->room.ingest, b->workers, e);
}

static int run(struct bench *b, const char *path, struct err *e)
{
    AUTO_STORE struct store *s = NULL;
    pthread_t thread[JOBS_MAX];
    int64_t start = clock_ms();
    int rc = store_open(&s, path, e);
    if (rc == 0)
        rc = open_room(b, s, e);
    size_t started = 0;
    while (rc == 0 && started < b->threads && pthread_create(&thread[started], NULL, work, b) == 0)
        started++;
    for (size_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    image_room_close(&b->room);
    for (size_t i = 0; rc == 0 && i < b->count; i++) {
        rc = b->jobs[i].rc;
        *e = b->jobs[i].err;
    }
    if (rc == 0)
        report(b, s, clock_ms() - start);
    return rc;
}

int main(int argc, char **argv)
{
    struct bench b = {
        .threads = machine_cores(), .workers = machine_cores(), .level = CHUNK_LEVEL_DEFAULT};
    int option;
    while ((option = getopt(argc, argv, "j:w:l:")) != -1) {
        unsigned long value = optarg ? strtoul(optarg, NULL, 10) : 0;
        if (option == 'j')
            b.threads = value;
        else if (option == 'w')
            b.workers = value;
        else if (option == 'l')
            b.level = (int)value;
        if (value < 1 || value > JOBS_MAX)
            optind = argc;
    }
    if (argc - optind < 2) {
        fprintf(stderr, "usage: ingest [-j JOBS] [-w WORKERS] [-l LEVEL] STORE IMAGE...\n");
        return 2;
    }
    b.count = (size_t)(argc - optind - 1);
    b.jobs = mem_array(b.count, sizeof(*b.jobs));
    if (!b.jobs)
        return 1;
    for (size_t i = 0; i < b.count; i++)
        b.jobs[i] = (struct job){.text = argv[optind + 1 + (int)i], .err = ERR_INIT};
    struct err e = ERR_INIT;
    int rc = run(&b, argv[optind], &e);
    free(b.jobs);
    if (rc < 0)
        fprintf(stderr, "%s\n", e.text);
    return rc < 0;
}
