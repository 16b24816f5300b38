/* SPDX-License-Identifier: MIT */
/*
 * The serial console, bounded. A guest can print without end, so QEMU does not write the file
 * itself: it writes to a pipe, and a thread here copies that into the file. When the file is full
 * it starts over with the last CONSOLE_TAIL_LEN bytes, so that the end (a panic, usually) is always
 * there. Failing to write the file (a full disk) loses the log, never the machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bake/channel/console.h"
#include "base/clock.h"
#include "base/cond.h"
#include "base/file.h"
#include "base/mem.h"

struct console {
    pthread_t thread;
    bool running; /* the thread is to be joined */
    int input;
    int file;
    int stop; /* eventfd: ends the thread */
    uint64_t file_size;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t ended_cond;
    bool ended;
    size_t tail_len;
    char tail[CONSOLE_TAIL_LEN];
};

static void tail_add(struct console *c, const char *data, size_t len)
{
    pthread_mutex_lock(&c->lock);
    size_t keep = CONSOLE_TAIL_LEN - len < c->tail_len ? CONSOLE_TAIL_LEN - len : c->tail_len;
    memmove(c->tail, c->tail + c->tail_len - keep, keep);
    memcpy(c->tail + keep, data, len);
    c->tail_len = keep + len;
    pthread_mutex_unlock(&c->lock);
}

static void file_add(struct console *c, const char *data, size_t len)
{
    struct err ignored = ERR_INIT;
    if (c->file_size + len > CONSOLE_FILE_MAX) {
        if (ftruncate(c->file, 0) < 0)
            return;
        c->file_size = 0;
        data = c->tail; /* this thread is the only writer of the tail; it ends with `data` */
        len = c->tail_len;
    }
    if (file_pwrite_full(c->file, data, len, c->file_size, &ignored) == 0)
        c->file_size += len;
}

static void *console_main(void *argument)
{
    struct console *c = argument;
    for (;;) {
        struct pollfd fds[2] = {{.fd = c->input, .events = POLLIN},
                                {.fd = c->stop, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[1].revents)
            break;
        if (!fds[0].revents)
            continue;
        char piece[4096];
        ssize_t n = read(c->input, piece, sizeof(piece));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        tail_add(c, piece, (size_t)n);
        file_add(c, piece, (size_t)n);
    }
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    pthread_cond_broadcast(&c->ended_cond);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int init_sync(struct console *c)
{
    int sys = cond_init(&c->ended_cond);
    return sys != 0 ? sys : pthread_mutex_init(&c->lock, NULL);
}

int console_start(struct console **out, int input, int dir, const char *path, struct err *e)
{
    AUTO_FD int taken = input;
    struct console *raw = mem_zalloc(sizeof(*raw));
    if (!raw)
        return err_nomem(e, "console");
    raw->input = raw->file = raw->stop = -1;
    int sys = init_sync(raw);
    if (sys != 0) {
        free(raw);
        return err_sysno(e, sys, "making a lock for the console log");
    }
    AUTO_CONSOLE struct console *c = raw;
    c->input = taken;
    taken = -1;
    int rc = file_open(&c->file, dir, path, O_WRONLY | O_CREAT | O_TRUNC, 0666, e);
    if (rc < 0)
        return rc;
    c->stop = eventfd(0, EFD_CLOEXEC);
    if (c->stop < 0)
        return err_sys(e, "making an event for the console log");
    sys = pthread_create(&c->thread, NULL, console_main, c);
    if (sys != 0)
        return err_sysno(e, sys, "starting the console's thread");
    c->running = true;
    *out = MOVE(c);
    return 0;
}

void console_drain(struct console *c, int64_t timeout_ms)
{
    int64_t end = clock_ms() + timeout_ms;
    pthread_mutex_lock(&c->lock);
    bool in_time = true;
    while (!c->ended && in_time)
        in_time = cond_wait_until(&c->ended_cond, &c->lock, end);
    pthread_mutex_unlock(&c->lock);
}

size_t console_tail(struct console *c, char *out, size_t len)
{
    pthread_mutex_lock(&c->lock);
    size_t n = c->tail_len < len - 1 ? c->tail_len : len - 1;
    memcpy(out, c->tail + c->tail_len - n, n);
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        if (!out[i])
            out[i] = '?'; /* callers search it as a string */
    }
    out[n] = 0;
    return n;
}

void console_free(struct console *c)
{
    if (!c)
        return;
    if (c->running) {
        uint64_t one = 1;
        ssize_t n = write(c->stop, &one, sizeof(one));
        (void)n;
        pthread_join(c->thread, NULL);
    }
    file_close(&c->input);
    file_close(&c->file);
    file_close(&c->stop);
    pthread_cond_destroy(&c->ended_cond);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Where the last `lines` lines begin. */
static const char *last_lines(const char *text, size_t len, unsigned lines)
{
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    while (len > 0) {
        if (text[len - 1] == '\n' && --lines == 0)
            break;
        len--;
    }
    return text + len;
}

void console_summary(const char *text, unsigned lines, char *out, size_t len)
{
    size_t used = 0;
    for (const char *at = last_lines(text, strlen(text), lines); *at; at++) {
        bool newline = *at == '\n';
        if (*at == '\r')
            continue;
        const char *piece = newline ? " | " : (char[2]){*at, 0};
        if (!newline && (*at < 0x20 || *at > 0x7e))
            piece = "?";
        if (used + strlen(piece) >= len)
            break;
        memcpy(out + used, piece, strlen(piece));
        used += strlen(piece);
    }
    while (used > 0 && (out[used - 1] == ' ' || out[used - 1] == '|'))
        used--;
    out[used] = 0;
}
