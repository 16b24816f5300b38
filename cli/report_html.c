/* SPDX-License-Identifier: MIT */
/*
 * The report for people: one HTML file that asks for nothing outside itself and runs no script. What
 * failed and why comes first. Text from outside passes report_escape, and stands in elements that
 * keep its writing direction to themselves.
 */
#include "cli/report_html.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/report.h"

enum {
    FAILURES_OPEN = 20, /* more of them are folded */
    FAILURES_MAX = 500,
    TIMELINE_MAX = 400,
    LARGEST_SHOWN = 10,
    TICKS = 4
};

/* Stages as colours; five can be told apart. */
struct stage_group {
    const char *name;
    enum bake_stage first, last;
};
static const struct stage_group groups[] = {
    {"look up and pull the image", STAGE_PLAN, STAGE_PULL},
    {"make the disk", STAGE_INGEST, STAGE_ASSEMBLE},
    {"boot, run the steps", STAGE_BOOT, STAGE_READY},
    {"snapshot and prove it", STAGE_SNAPSHOT, STAGE_PROVE},
    {"register", STAGE_REGISTER, STAGE_REGISTER},
};

static int group_of(enum bake_stage stage)
{
    int found = 0;
    for (int i = 0; i < (int)ARRAY_LEN(groups); i++) {
        if (stage >= groups[i].first && stage <= groups[i].last)
            found = i;
    }
    return found + 1;
}

/* Writes on until the first error, which is kept. */
struct page {
    struct buf *out;
    struct err *e;
    int rc;
};

static void put(struct page *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(struct page *p, const char *fmt, ...)
{
    if (p->rc < 0)
        return;
    va_list args;
    va_start(args, fmt);
    char text[1024]; /* own text and numbers only, which are short */
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    p->rc = buf_add_text(p->out, text, p->e);
}

static void put_text(struct page *p, const char *text)
{
    if (p->rc == 0 && text)
        p->rc = report_escape(p->out, text, p->e);
}

static void put_span(struct page *p, const char *element, const char *text)
{
    put(p, "<%s class=\"x\">", element);
    put_text(p, text);
    put(p, "</%s>", element);
}

static double share(int64_t part, int64_t whole)
{
    double percent = whole > 0 ? 100.0 * (double)part / (double)whole : 0;
    return percent > 100 ? 100 : percent;
}

/* ---- Head and failures ---- */

static const char *mood(const struct report *r)
{
    if (r->error || r->outcomes[OUTCOME_FAILED] > 0)
        return "bad";
    return r->outcomes[OUTCOME_CANCELLED] + r->outcomes[OUTCOME_PENDING] > 0 ? "warn" : "good";
}

static void put_head(struct page *p, const struct report *r)
{
    char title[128];
    char start[CLOCK_TEXT_MAX];
    char wall[SIZE_TEXT_MAX];
    report_headline(r, title, sizeof(title));
    put(p,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\">\n<title>tb2-bake: %s</title>\n<style>\n",
        title);
    if (p->rc == 0)
        p->rc = buf_add_text(p->out, report_style, p->e);
    put(p, "</style></head><body>\n<header class=\"head %s\"><h1>%s</h1>\n", mood(r), title);
    put(p, "<p>%zu ready, %zu unchanged, %zu failed, %zu not baked, in %s</p>\n",
        r->outcomes[OUTCOME_READY], r->outcomes[OUTCOME_UNCHANGED], r->outcomes[OUTCOME_FAILED],
        r->outcomes[OUTCOME_CANCELLED] + r->outcomes[OUTCOME_PENDING],
        print_duration(r->wall_ms, wall));
    put(p, "<p class=\"dim\">tb2-bake, run of %s</p></header>\n",
        clock_print(r->start_ms / 1000, start));
    if (!r->complete)
        put(p,
            "<p class=\"failed\">This run did not come to its end: what follows is what it wrote "
            "until then.</p>\n");
    if (r->error) {
        put(p, "<div class=\"fail\"><p class=\"why x\">");
        put_text(p, r->error);
        put(p, "</p><p>");
        put_text(p, r->hint);
        put(p, "</p></div>\n");
    }
}

static void put_output(struct page *p, const struct report_task *t, const char *rest)
{
    if (*rest) {
        put(p, "<pre>");
        put_text(p, rest);
        put(p, "</pre>");
    }
    if (t->output_count == 0)
        return;
    size_t first =
        t->output_count > REPORT_OUTPUT_LINES ? t->output_count - REPORT_OUTPUT_LINES : 0;
    put(p, "<details%s><summary>Last %zu lines that its steps printed</summary><pre>",
        *rest ? "" : " open", t->output_count - first);
    for (size_t i = first; i < t->output_count; i++) {
        put_text(p, t->output[i % REPORT_OUTPUT_LINES]);
        put(p, "\n");
    }
    put(p, "</pre></details>");
}

static void put_failure(struct page *p, const struct report_task *t)
{
    const char *error = t->error ? t->error : "";
    size_t first = strcspn(error, "\n");
    char time[SIZE_TEXT_MAX];
    put(p, "<article class=\"fail\"><h3>");
    put_span(p, "span", t->name);
    put(p, " <span class=\"tag\">failed in stage: %s</span> <span class=\"tag\">after %s",
        bake_stage_name(t->stage), print_duration(t->busy_ms, time));
    if (t->retries > 0)
        put(p, ", %u tries", t->retries + 1);
    put(p, "</span></h3>\n<p class=\"why x\">");
    AUTO_FREE char *line = mem_strndup(error, first);
    put_text(p, line ? line : error);
    put(p, "</p>");
    if (t->hint && *t->hint) {
        put(p, "<p><b>What to do:</b> ");
        put_span(p, "span", t->hint);
        put(p, "</p>");
    }
    put_output(p, t, error[first] ? error + first + 1 : "");
    if (t->image) {
        put(p, "<p class=\"dim\">image ");
        put_span(p, "span", t->image);
        put(p, "</p>");
    }
    put(p, "</article>\n");
}

static void put_failures(struct page *p, const struct report *r)
{
    size_t count = r->outcomes[OUTCOME_FAILED];
    if (count == 0)
        return;
    put(p, "<h2>What failed, and why</h2>\n");
    for (size_t i = 0; i < count && i < FAILURES_MAX; i++) {
        if (i == FAILURES_OPEN)
            put(p, "<details><summary>%zu more</summary>\n", count - i);
        put_failure(p, &r->tasks[r->order[i]]);
    }
    if (count > FAILURES_OPEN)
        put(p, "</details>\n");
    if (count > FAILURES_MAX)
        put(p, "<p>%zu more are only in the table below.</p>\n", count - FAILURES_MAX);
}

/* ---- Time ---- */

static void put_legend(struct page *p)
{
    put(p, "<div class=\"legend\">");
    for (size_t i = 0; i < ARRAY_LEN(groups); i++)
        put(p, "<span><i class=\"s%zu\"></i>%s</span>", i + 1, groups[i].name);
    put(p, "<span><i class=\"kept\"></i>steps from the cache</span>"
           "<span><i class=\"end\"></i>failed here</span></div>\n");
}

static void put_kept(struct page *p, const struct report_task *t)
{
    put(p, "%s%llu of %llu from the cache", t->steps_kept > 1 ? "steps 1-" : "step ",
        (unsigned long long)t->steps_kept, (unsigned long long)t->steps);
}

static void put_bars(struct page *p, const struct report_task *t, int64_t wall_ms)
{
    int64_t end_ms = 0;
    for (size_t i = 0; i < t->span_count; i++) {
        const struct report_span *span = &t->spans[i];
        char time[SIZE_TEXT_MAX];
        end_ms = span->start_ms + span->ms;
        if (span->ms == 0)
            continue;
        put(p, "<i class=\"s%d\" style=\"left:%.3f%%;width:%.3f%%\" title=\"%s: %s\"></i>",
            group_of(span->stage), share(span->start_ms, wall_ms), share(span->ms, wall_ms),
            bake_stage_name(span->stage), print_duration(span->ms, time));
    }
    if (t->steps_kept > 0) {
        put(p, "<i class=\"kept\" style=\"left:min(%.3f%%,100%% - 9px);width:9px\" title=\"",
            share(t->kept_ms, wall_ms));
        put_kept(p, t);
        put(p, "\"></i>");
    }
    if (report_task_failed(t))
        put(p,
            "<i class=\"end\" style=\"left:min(%.3f%%,100%% - 9px);width:9px\" title=\"failed: "
            "%s\"></i>",
            share(end_ms, wall_ms), bake_stage_name(t->stage));
}

static void put_axis(struct page *p, int64_t wall_ms)
{
    put(p, "<div class=\"row\"><span class=\"dim\">task</span><div class=\"axis\">");
    for (int i = 0; i <= TICKS; i++) {
        char time[SIZE_TEXT_MAX];
        put(p, "<b style=\"left:%d%%\">%s</b>", i * 100 / TICKS,
            i == 0 ? "0" : print_duration(wall_ms * i / TICKS, time));
    }
    put(p, "</div><span class=\"dim\">worked</span></div>\n");
}

static int by_start(const void *a, const void *b)
{
    const struct report_task *left = *(const struct report_task *const *)a;
    const struct report_task *right = *(const struct report_task *const *)b;
    int64_t left_ms = left->span_count ? left->spans[0].start_ms : INT64_MAX;
    int64_t right_ms = right->span_count ? right->spans[0].start_ms : INT64_MAX;
    if (left_ms != right_ms)
        return left_ms < right_ms ? -1 : 1;
    return strcmp(left->name, right->name);
}

/* Tasks in the order in which they began; what is up to date is left out, failed ones never are. */
static void put_timeline(struct page *p, const struct report *r)
{
    AUTO_FREE const struct report_task **list = mem_array(r->count + 1, sizeof(*list));
    if (!list) {
        p->rc = p->rc < 0 ? p->rc : err_nomem(p->e, "report");
        return;
    }
    size_t count = 0;
    size_t hidden = 0;
    for (size_t i = 0; i < r->count; i++) { /* failed ones are first */
        const struct report_task *t = &r->tasks[r->order[i]];
        bool unchanged = t->outcome && strcmp(t->outcome, "unchanged") == 0;
        if (t->span_count > 0 && !unchanged && count < TIMELINE_MAX)
            list[count++] = t;
        else
            hidden += !unchanged;
    }
    if (count == 0)
        return;
    qsort(list, count, sizeof(*list), by_start);
    put(p, "<h2>When each task did what</h2>\n");
    put_legend(p);
    put_axis(p, r->wall_ms);
    for (size_t i = 0; i < count; i++) {
        char time[SIZE_TEXT_MAX];
        put(p, "<div class=\"row\"><span class=\"x%s\" title=\"",
            report_task_failed(list[i]) ? " failed" : "");
        put_text(p, list[i]->name);
        put(p, "\">");
        put_text(p, list[i]->name);
        put(p, "</span><div class=\"track\">");
        put_bars(p, list[i], r->wall_ms);
        put(p, "</div><span>%s</span></div>\n", print_duration(list[i]->busy_ms, time));
    }
    if (hidden > 0)
        put(p, "<p class=\"dim\">%zu more tasks are not shown here.</p>\n", hidden);
    if (r->outcomes[OUTCOME_UNCHANGED] > 0)
        put(p, "<p class=\"dim\">Up to date, with unchanged templates: %zu.</p>\n",
            r->outcomes[OUTCOME_UNCHANGED]);
}

static void put_stages(struct page *p, const struct report *r)
{
    int64_t sums[STAGE_COUNT] = {0};
    int64_t most[STAGE_COUNT] = {0};
    const struct report_task *slowest[STAGE_COUNT] = {NULL};
    int64_t largest = 0;
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        for (size_t i = 0; i < r->count; i++) {
            sums[stage] += r->tasks[i].stage_ms[stage];
            if (r->tasks[i].stage_ms[stage] > most[stage]) {
                most[stage] = r->tasks[i].stage_ms[stage];
                slowest[stage] = &r->tasks[i];
            }
        }
        largest = sums[stage] > largest ? sums[stage] : largest;
    }
    if (largest == 0)
        return;
    put(p,
        "<h2>Where the time went</h2>\n<p class=\"dim\">Time of all tasks in each stage, added up, "
        "and the task that took longest.</p>\n");
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        char sum[SIZE_TEXT_MAX];
        char time[SIZE_TEXT_MAX];
        if (sums[stage] == 0)
            continue;
        put(p, "<div class=\"row\"><span>%s <span class=\"dim x\">",
            bake_stage_name((enum bake_stage)stage));
        put_text(p, slowest[stage]->name);
        put(p, " %s</span></span>", print_duration(most[stage], time));
        put(p,
            "<div class=\"track\"><i class=\"s%d\" style=\"left:0;width:%.3f%%\"></i></div>"
            "<span>%s</span></div>\n",
            group_of((enum bake_stage)stage), share(sums[stage], largest),
            print_duration(sums[stage], sum));
    }
}

/* ---- Bytes ---- */

static int by_pulled(const void *a, const void *b)
{
    const struct report_task *left = *(const struct report_task *const *)a;
    const struct report_task *right = *(const struct report_task *const *)b;
    if (left->pulled != right->pulled)
        return left->pulled > right->pulled ? -1 : 1;
    return strcmp(left->name, right->name);
}

static void put_largest(struct page *p, const struct report *r)
{
    AUTO_FREE const struct report_task **list = mem_array(r->count + 1, sizeof(*list));
    if (!list) {
        p->rc = p->rc < 0 ? p->rc : err_nomem(p->e, "report");
        return;
    }
    for (size_t i = 0; i < r->count; i++)
        list[i] = &r->tasks[i];
    qsort(list, r->count, sizeof(*list), by_pulled);
    for (size_t i = 0; i < r->count && i < LARGEST_SHOWN && list[i]->pulled > 0; i++) {
        char size[SIZE_TEXT_MAX];
        put(p, "<div class=\"row\">");
        put_span(p, "span", list[i]->name);
        put(p,
            "<div class=\"track\"><i class=\"s1\" style=\"left:0;width:%.3f%%\"></i></div>"
            "<span>%s</span></div>\n",
            share((int64_t)list[i]->pulled, (int64_t)list[0]->pulled),
            print_size(list[i]->pulled, size));
    }
}

static void put_bytes(struct page *p, const struct report *r)
{
    char pulled[SIZE_TEXT_MAX];
    char stored[SIZE_TEXT_MAX];
    if (r->count == 0 || !r->complete)
        return;
    put(p,
        "<h2>Where the bytes went</h2>\n<p>%s pulled in %llu blobs; the store grew by %s; %llu "
        "layers were turned into chunks.</p>\n",
        print_size(r->blob_bytes, pulled), (unsigned long long)r->blob_gets,
        print_size(r->stored, stored), (unsigned long long)r->layers_ingested);
    if (r->rate_waits > 0)
        put(p, "<p class=\"failed\">A registry limited the rate of requests %llu times.</p>\n",
            (unsigned long long)r->rate_waits);
    if (r->chunks_put > 0) {
        uint64_t known = r->chunks_put > r->chunks_new ? r->chunks_put - r->chunks_new : 0;
        double new_share = share((int64_t)r->chunks_new, (int64_t)r->chunks_put);
        put(p,
            "<div class=\"row\"><span>chunks</span><div class=\"track\">"
            "<i class=\"s2\" style=\"left:0;width:%.3f%%\"></i>"
            "<i class=\"s5\" style=\"left:%.3f%%;width:%.3f%%\"></i></div><span>%llu</span></div>\n"
            "<div class=\"legend\"><span><i class=\"s2\"></i>%llu stored anew</span>"
            "<span><i class=\"s5\"></i>%llu (%.0f %%) there already: shared, not stored twice"
            "</span></div>\n",
            new_share, new_share, 100 - new_share, (unsigned long long)r->chunks_put,
            (unsigned long long)r->chunks_new, (unsigned long long)known, 100 - new_share);
    }
    if (r->blob_bytes > 0)
        put(p, "<p class=\"dim\">Pulled by task; a layer that several share counts for the "
               "first.</p>\n");
    put_largest(p, r);
}

/* ---- All tasks ---- */

static void put_row(struct page *p, const struct report_task *t)
{
    char time[SIZE_TEXT_MAX];
    char size[SIZE_TEXT_MAX];
    bool failed = report_task_failed(t);
    put(p, "<tr><td class=\"x\">");
    put_text(p, t->name);
    put(p, "</td><td%s>", failed ? " class=\"failed\"" : "");
    put_text(p, t->outcome ? t->outcome : "unfinished");
    if (failed || !t->outcome)
        put(p, " in %s", bake_stage_name(t->stage));
    put(p, "</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"x opt\">",
        print_duration(t->busy_ms, time), print_size(t->pulled, size));
    put_text(p, t->why);
    if (t->steps_kept > 0) {
        put(p, "%s", t->why ? "; " : "");
        put_kept(p, t);
    }
    put(p, "</td><td class=\"x opt\">");
    put_text(p, t->alias);
    put(p, "</td></tr>\n");
}

int report_html(struct buf *out, const struct report *r, struct err *e)
{
    struct page p = {.out = out, .e = e};
    put_head(&p, r);
    put_failures(&p, r);
    put_timeline(&p, r);
    put_stages(&p, r);
    put_bytes(&p, r);
    if (r->count > 0) {
        put(&p, "<h2>All tasks</h2>\n<div "
                "class=\"wide\"><table><thead><tr><th>task</th><th>outcome</th>"
                "<th class=\"n\">worked</th><th class=\"n\">pulled</th><th class=\"opt\">what was "
                "new</th><th class=\"opt\">template</th></tr></thead><tbody>\n");
        for (size_t i = 0; i < r->count; i++)
            put_row(&p, &r->tasks[r->order[i]]);
        put(&p, "</tbody></table></div>\n");
    }
    put(&p, "<p class=\"dim\">Journal: ");
    put_span(&p, "span", r->run);
    put(&p, "</p></body></html>\n");
    return p.rc;
}
