/* SPDX-License-Identifier: MIT */
/*
 * Reports for other programs: JUnit XML (the form that CI systems read), Markdown (GitHub's and GitLab's
 * summaries) and Prometheus' text exposition format, version 0.0.4.
 */
#include <string.h>

#include "base/attr.h"
#include "base/text.h"
#include "cli/cmd.h"
#include "cli/report.h"

/* Marks that change the order of what is shown (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to
 * U+2069): a name must not look like another one. */
static bool turns_text(const char *at, size_t len)
{
    if (len == 2)
        return memcmp(at, "\xd8\x9c", 2) == 0;
    unsigned char last = len == 3 ? (unsigned char)at[2] : 0;
    if (len == 3 && memcmp(at, "\xe2\x80", 2) == 0)
        return last == 0x8e || last == 0x8f || (last >= 0xaa && last <= 0xae);
    return len == 3 && memcmp(at, "\xe2\x81", 2) == 0 && last >= 0xa6 && last <= 0xa9;
}

int report_escape(struct buf *out, const char *text, struct err *e)
{
    static const char replacement[] = "\xef\xbf\xbd";
    int rc = 0;
    for (const char *at = text; rc == 0 && *at;) {
        size_t len = utf8_sequence((const uint8_t *)at, strnlen(at, 4));
        unsigned char c = (unsigned char)*at;
        /* XML 1.0, section 2.2: no control characters, no U+FFFE and U+FFFF. */
        bool bad = len == 0 || (c < 0x20 && c != '\t' && c != '\n') || c == 0x7f ||
                   (len == 2 && c == 0xc2 && (unsigned char)at[1] < 0xa0) ||
                   (len == 3 && memcmp(at, "\xef\xbf", 2) == 0 && (unsigned char)at[2] >= 0xbe);
        if (bad || turns_text(at, len))
            rc = buf_add_text(out, replacement, e);
        else if (strchr("&<>\"'", c))
            rc = buf_printf(out, e, "&#%u;", (unsigned)c);
        else
            rc = buf_add(out, at, len, e);
        at += len ? len : 1;
    }
    return rc;
}

/* ` NAME="VALUE"` */
static int add_attribute(struct buf *out, const char *name, const char *value, struct err *e)
{
    int rc = buf_printf(out, e, " %s=\"", name);
    if (rc == 0)
        rc = report_escape(out, value, e);
    return rc < 0 ? rc : buf_add_text(out, "\"", e);
}

/* The lines that a task's steps printed last, each after `between`. */
static int add_output(struct buf *out, const struct report_task *t, struct err *e)
{
    size_t first =
        t->output_count > REPORT_OUTPUT_LINES ? t->output_count - REPORT_OUTPUT_LINES : 0;
    int rc = 0;
    for (size_t i = first; rc == 0 && i < t->output_count; i++) {
        rc = report_escape(out, t->output[i % REPORT_OUTPUT_LINES], e);
        if (rc == 0)
            rc = buf_add_text(out, "\n", e);
    }
    return rc;
}

/* ---- JUnit ---- */

/* `<failure>` or `<error>` with what went wrong; the message alone is its first line. */
static int add_fault(struct buf *out, const char *element, const char *class, const char *error,
                     const char *hint, struct err *e)
{
    char first[ERR_TEXT_MAX];
    snprintf(first, sizeof(first), "%.*s", (int)strcspn(error, "\n"), error);
    int rc = buf_printf(out, e, "      <%s", element);
    if (rc == 0)
        rc = add_attribute(out, "type", class, e);
    if (rc == 0)
        rc = add_attribute(out, "message", first, e);
    if (rc == 0)
        rc = buf_add_text(out, ">", e);
    if (rc == 0)
        rc = report_escape(out, error, e);
    if (rc == 0 && hint && *hint) {
        rc = buf_add_text(out, "\n\n", e);
        if (rc == 0)
            rc = report_escape(out, hint, e);
    }
    return rc < 0 ? rc : buf_printf(out, e, "</%s>\n", element);
}

static int add_case(struct buf *out, const struct report_task *t, struct err *e)
{
    char class[64];
    snprintf(class, sizeof(class), "tb2-bake.%s", bake_stage_name(t->stage));
    int rc = buf_add_text(out, "    <testcase", e);
    if (rc == 0)
        rc = add_attribute(out, "name", t->name, e);
    if (rc == 0)
        rc = add_attribute(out, "classname", report_task_failed(t) ? class : "tb2-bake", e);
    if (rc == 0)
        rc = buf_printf(out, e, " time=\"%.3f\">\n", (double)t->busy_ms / 1000);
    if (rc == 0 && report_task_failed(t)) {
        rc = add_fault(out, "failure", t->error_class ? t->error_class : "unknown",
                       t->error ? t->error : "", t->hint, e);
    } else if (rc == 0 && (!t->outcome || strcmp(t->outcome, "cancelled") == 0)) {
        rc = buf_add_text(out, "      <skipped message=\"the run ended before it\"/>\n", e);
    }
    if (rc == 0 && report_task_failed(t) && t->output_count > 0) {
        rc = buf_add_text(out, "      <system-out>", e);
        if (rc == 0)
            rc = add_output(out, t, e);
        if (rc == 0)
            rc = buf_add_text(out, "</system-out>\n", e);
    }
    return rc < 0 ? rc : buf_add_text(out, "    </testcase>\n", e);
}

int report_junit(struct buf *out, const struct report *r, struct err *e)
{
    bool whole = r->error != NULL;
    size_t skipped = r->outcomes[OUTCOME_CANCELLED] + r->outcomes[OUTCOME_PENDING];
    int rc =
        buf_printf(out, e,
                   "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n"
                   "  <testsuite name=\"tb2-bake\" tests=\"%zu\" failures=\"%zu\" errors=\"%d\" "
                   "skipped=\"%zu\" time=\"%.3f\">\n",
                   r->count + whole, r->outcomes[OUTCOME_FAILED], (int)whole, skipped,
                   (double)r->wall_ms / 1000);
    if (rc == 0 && whole) {
        rc = buf_add_text(out, "    <testcase name=\"run\" classname=\"tb2-bake\">\n", e);
        if (rc == 0)
            rc = add_fault(out, "error", "run", r->error, r->hint, e);
        if (rc == 0)
            rc = buf_add_text(out, "    </testcase>\n", e);
    }
    for (size_t i = 0; rc == 0 && i < r->count; i++)
        rc = add_case(out, &r->tasks[r->order[i]], e);
    return rc < 0 ? rc : buf_add_text(out, "  </testsuite>\n</testsuites>\n", e);
}

/* ---- Markdown ---- */

enum { MARKDOWN_FAILURES_MAX = 50 }; /* summaries of CI systems are cut at 1 MB */

/* A text within a paragraph or a cell: punctuation stands as an entity, which is never markup. */
static int add_words(struct buf *out, const char *text, struct err *e)
{
    int rc = 0;
    for (const char *at = text; rc == 0 && *at;) {
        size_t plain = strcspn(at, "\\`*_{}[]<>#|!~@&\"'\n\r\t$^");
        rc = buf_add(out, at, plain, e);
        at += plain;
        if (rc == 0 && *at) {
            unsigned char c = (unsigned char)*at++;
            rc = c < 0x20 ? buf_add_text(out, " ", e) : buf_printf(out, e, "&#%u;", (unsigned)c);
        }
    }
    return rc;
}

static int add_failure_row(struct buf *out, const struct report_task *t, struct err *e)
{
    char first[ERR_TEXT_MAX];
    const char *error = t->error ? t->error : "";
    snprintf(first, sizeof(first), "%.*s", (int)strcspn(error, "\n"), error);
    int rc = buf_add_text(out, "| ", e);
    if (rc == 0)
        rc = add_words(out, t->name, e);
    if (rc == 0)
        rc = buf_printf(out, e, " | %s | ", bake_stage_name(t->stage));
    if (rc == 0)
        rc = add_words(out, first, e);
    if (rc == 0)
        rc = buf_add_text(out, " | ", e);
    if (rc == 0)
        rc = add_words(out, t->hint ? t->hint : "", e);
    return rc < 0 ? rc : buf_add_text(out, " |\n", e);
}

static int add_failure_output(struct buf *out, const struct report_task *t, struct err *e)
{
    if (!strchr(t->error ? t->error : "", '\n') && t->output_count == 0)
        return 0;
    int rc = buf_add_text(out, "\n<details><summary>Output of ", e);
    if (rc == 0)
        rc = report_escape(out, t->name, e);
    if (rc == 0)
        rc = buf_add_text(out, "</summary>\n<pre>", e);
    if (rc == 0)
        rc = report_escape(out, t->error ? t->error : "", e);
    if (rc == 0 && t->output_count > 0)
        rc = buf_add_text(out, "\n\n", e);
    if (rc == 0)
        rc = add_output(out, t, e);
    return rc < 0 ? rc : buf_add_text(out, "</pre>\n</details>\n", e);
}

static int add_failures(struct buf *out, const struct report *r, struct err *e)
{
    size_t shown = r->outcomes[OUTCOME_FAILED];
    if (shown == 0)
        return 0;
    if (shown > MARKDOWN_FAILURES_MAX)
        shown = MARKDOWN_FAILURES_MAX;
    int rc = buf_add_text(out, "\n| task | failed in | why | what to do |\n|---|---|---|---|\n", e);
    for (size_t i = 0; rc == 0 && i < shown; i++)
        rc = add_failure_row(out, &r->tasks[r->order[i]], e);
    if (rc == 0 && shown < r->outcomes[OUTCOME_FAILED])
        rc = buf_printf(out, e, "\n%zu more failed.\n", r->outcomes[OUTCOME_FAILED] - shown);
    for (size_t i = 0; rc == 0 && i < shown; i++)
        rc = add_failure_output(out, &r->tasks[r->order[i]], e);
    return rc;
}

int report_markdown(struct buf *out, const struct report *r, struct err *e)
{
    char text[128];
    char wall[SIZE_TEXT_MAX];
    char pulled[SIZE_TEXT_MAX];
    char stored[SIZE_TEXT_MAX];
    int rc = buf_printf(out, e, "## tb2-bake: %s\n\n", report_headline(r, text, sizeof(text)));
    if (rc == 0 && r->error) {
        rc = add_words(out, r->error, e);
        if (rc == 0)
            rc = buf_add_text(out, "\n\n", e);
        if (rc == 0)
            rc = add_words(out, r->hint, e);
        return rc < 0 ? rc : buf_add_text(out, "\n", e);
    }
    if (rc == 0)
        rc = buf_printf(out, e,
                        "%zu ready, %zu unchanged, %zu failed, %zu not baked, in %s; %s pulled, %s "
                        "stored\n",
                        r->outcomes[OUTCOME_READY], r->outcomes[OUTCOME_UNCHANGED],
                        r->outcomes[OUTCOME_FAILED],
                        r->outcomes[OUTCOME_CANCELLED] + r->outcomes[OUTCOME_PENDING],
                        print_duration(r->wall_ms, wall), print_size(r->blob_bytes, pulled),
                        print_size(r->stored, stored));
    if (rc == 0 && r->rate_waits > 0)
        rc = buf_printf(out, e, "\nA registry limited the rate of requests %llu times.\n",
                        (unsigned long long)r->rate_waits);
    return rc < 0 ? rc : add_failures(out, r, e);
}

/* ---- Metrics ---- */

static int add_head(struct buf *out, const char *name, const char *help, struct err *e)
{
    return buf_printf(out, e, "# HELP tb2_bake_%s %s\n# TYPE tb2_bake_%s gauge\n", name, help,
                      name);
}

static int add_value(struct buf *out, const char *name, const char *help, double value,
                     struct err *e)
{
    int rc = add_head(out, name, help, e);
    return rc < 0 ? rc : buf_printf(out, e, "tb2_bake_%s %.15g\n", name, value);
}

/* A label's value: backslash, quote and newline are escaped. */
static int add_label(struct buf *out, const char *text, struct err *e)
{
    int rc = 0;
    for (const char *at = text; rc == 0 && *at; at++) {
        if (*at == '\n')
            rc = buf_add_text(out, "\\n", e);
        else if (*at == '\\' || *at == '"')
            rc = buf_printf(out, e, "\\%c", *at);
        else
            rc = buf_add(out, at, 1, e);
    }
    return rc;
}

static int add_task_metrics(struct buf *out, const struct report *r, struct err *e)
{
    int rc = add_head(out, "tasks", "Tasks by what became of them.", e);
    for (enum bake_outcome o = OUTCOME_PENDING; rc == 0 && o <= OUTCOME_CANCELLED; o++)
        rc = buf_printf(out, e, "tb2_bake_tasks{outcome=\"%s\"} %zu\n", bake_outcome_name(o),
                        r->outcomes[o]);
    if (rc == 0)
        rc = add_head(out, "stage_seconds", "Time of all tasks in a stage.", e);
    for (int stage = 0; rc == 0 && stage < STAGE_COUNT; stage++) {
        int64_t sum = 0;
        for (size_t i = 0; i < r->count; i++)
            sum += r->tasks[i].stage_ms[stage];
        rc = buf_printf(out, e, "tb2_bake_stage_seconds{stage=\"%s\"} %.3f\n",
                        bake_stage_name((enum bake_stage)stage), (double)sum / 1000);
    }
    if (rc == 0)
        rc = add_head(out, "task_failed", "1 for each task that failed.", e);
    for (size_t i = 0; rc == 0 && i < r->outcomes[OUTCOME_FAILED]; i++) {
        const struct report_task *t = &r->tasks[r->order[i]];
        rc = buf_add_text(out, "tb2_bake_task_failed{task=\"", e);
        if (rc == 0)
            rc = add_label(out, t->name, e);
        if (rc == 0)
            rc = buf_printf(out, e, "\",stage=\"%s\",class=\"", bake_stage_name(t->stage));
        if (rc == 0)
            rc = add_label(out, t->error_class ? t->error_class : "", e);
        if (rc == 0)
            rc = buf_add_text(out, "\"} 1\n", e);
    }
    return rc;
}

int report_metrics(struct buf *out, const struct report *r, struct err *e)
{
    const struct {
        const char *name;
        const char *help;
        double value;
    } values[] = {
        {"run_start_seconds", "When the run began, seconds of the epoch.",
         (double)r->start_ms / 1000},
        {"run_end_seconds", "When it ended.", (double)(r->start_ms + r->wall_ms) / 1000},
        {"run_seconds", "How long it took.", (double)r->wall_ms / 1000},
        {"exit_status", "Its exit status.", r->status},
        {"pulled_bytes", "Bytes of blobs that were pulled.", (double)r->blob_bytes},
        {"pulled_blobs", "Blobs that were pulled.", (double)r->blob_gets},
        {"manifest_requests", "Requests for tags and manifests.",
         (double)(r->manifest_heads + r->manifest_gets)},
        {"rate_limited", "Times that a registry limited the rate of requests.",
         (double)r->rate_waits},
        {"stored_bytes", "Bytes that the store grew by.", (double)r->stored},
        {"chunks", "Chunks that came up.", (double)r->chunks_put},
        {"chunks_new", "Of these, not in the store before.", (double)r->chunks_new},
        {"layers_ingested", "Layers that were ingested.", (double)r->layers_ingested},
        {"machines", "Tasks that started machines.", (double)r->vm_tasks},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(values); i++)
        rc = add_value(out, values[i].name, values[i].help, values[i].value, e);
    return rc < 0 ? rc : add_task_metrics(out, r, e);
}
