/* SPDX-License-Identifier: MIT */
/* A list of lines under a mutex, and the thread that writes them. */
#include "cli/event_writer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Bytes that may wait before passing lines are dropped. */
enum { WAITING_MAX = 1 << 20 };

struct event_line {
    struct event_line *next;
    char *text;
};

struct event_writer {
    FILE *to;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct event_line *first;
    struct event_line **last; /* where the next one goes */
    size_t waiting;           /* bytes */
    size_t dropped;
    bool stop;
};

static void append(struct event_writer *w, char *text)
{
    struct event_line *line = text ? mem_zalloc(sizeof(*line)) : NULL;
    if (!line) {
        free(text);
        w->dropped++;
        return;
    }
    line->text = text;
    *w->last = line;
    w->last = &line->next;
    w->waiting += strlen(text);
}

void event_writer_put(struct event_writer *w, char *line, bool passing)
{
    pthread_mutex_lock(&w->lock);
    if (passing && w->waiting > WAITING_MAX) {
        w->dropped++;
        free(line);
    } else {
        size_t dropped = w->dropped;
        w->dropped = 0;
        if (dropped > 0)
            append(w, mem_printf("{\"count\":%zu,\"event\":\"dropped\"}", dropped));
        append(w, line);
    }
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Takes the whole list; NULL when the end has come. */
static struct event_line *take_lines(struct event_writer *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stop)
        pthread_cond_wait(&w->changed, &w->lock);
    struct event_line *lines = w->first;
    w->first = NULL;
    w->last = &w->first;
    pthread_mutex_unlock(&w->lock);
    return lines;
}

static void *write_thread(void *self)
{
    struct event_writer *w = self;
    struct event_line *lines;
    while ((lines = take_lines(w))) {
        while (lines) {
            struct event_line *line = lines;
            lines = line->next;
            fputs(line->text, w->to);
            fputc('\n', w->to);
            pthread_mutex_lock(&w->lock);
            w->waiting -= strlen(line->text);
            pthread_mutex_unlock(&w->lock);
            free(line->text);
            free(line);
        }
        fflush(w->to);
    }
    return NULL;
}

int event_writer_new(struct event_writer **out, FILE *to, struct err *e)
{
    struct event_writer *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "event writer");
    w->to = to;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int sys = pthread_create(&w->thread, NULL, write_thread, w);
    if (sys != 0) {
        free(w);
        return err_sysno(e, sys, "starting a thread");
    }
    *out = w;
    return 0;
}

void event_writer_free(struct event_writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
