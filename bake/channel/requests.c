/* SPDX-License-Identifier: MIT */
/*
 * Requests to the guest agent: see bake/channel.h. One at a time; a request owns a stream number, and a frame
 * of any other stream is refused. Every wait has a deadline of its own or, for a program without
 * a time limit, a heartbeat: a guest that stops answering is an error, not a hang.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    SYNC_MS = 900000,      /* sync, freeze: all dirty data goes through the disk */
    RUN_GRACE_MS = 120000, /* after a program's own limit, for its end to be reported */
    HEARTBEAT_MS = 10000,  /* silence after which a ping is sent */
    SILENCE_MS = 180000    /* silence after which the guest counts as dead */
};

int agent_add_string(struct buf *b, const char *text, struct err *e)
{
    size_t len = strlen(text);
    if (len > AGENT_STRING_MAX)
        return err_set(e, ERR_LIMIT, "argument of %zu bytes (Linux takes at most %d)", len,
                       AGENT_STRING_MAX);
    int rc = buf_add_u32(b, (uint32_t)len + 1, e);
    return rc < 0 ? rc : buf_add(b, text, len + 1, e);
}

int agent_request(struct agent *a, uint32_t type, const struct buf *payload, int64_t timeout_ms,
                  struct agent_frame *reply, struct err *e)
{
    uint32_t stream = agent_link_stream(a);
    int rc = agent_link_send(a, type, stream, payload ? payload->data : NULL,
                             payload ? payload->len : 0, e);
    int64_t deadline_ms = clock_ms() + timeout_ms;
    while (rc == 0) {
        bool got = false;
        rc = agent_link_receive(a, deadline_ms, reply, &got, e);
        if (rc < 0)
            break;
        if (!got) {
            agent_link_break(a);
            return err_set(e, ERR_TIMEOUT, "no answer from the guest agent after %lld ms",
                           (long long)timeout_ms);
        }
        if (reply->type == AGENT_OK && reply->stream == 0)
            continue; /* an answer to a ping that came late */
        if (reply->stream != stream || (reply->type != AGENT_OK && reply->type != AGENT_ERROR))
            return agent_link_refuse(a, reply, e);
        return reply->type == AGENT_OK ? 0 : agent_fault(reply, NULL, e);
    }
    return rc;
}

/* A request whose reply is one integer, or nothing when `out` is NULL. */
int agent_request_u64(struct agent *a, uint32_t type, const struct buf *payload, int64_t timeout_ms,
                      uint64_t *out, struct err *e)
{
    struct agent_frame reply = {.type = 0};
    int rc = agent_request(a, type, payload, timeout_ms, &reply, e);
    if (rc < 0)
        return rc;
    if (reply.len != (out ? 8u : 0u))
        return agent_link_refuse(a, &reply, e);
    if (out)
        *out = agent_get_u64(reply.payload);
    return 0;
}

/* ---- Programs ------------------------------------------------------------------------------- */

struct run {
    const struct agent_exec *exec;
    agent_output *output;
    void *ctx;
    uint32_t stream;
    size_t sent;      /* of the input */
    size_t window;    /* input bytes that may still be sent */
    bool input_ended; /* or there is none */
    bool started;
    bool done;
    int64_t pinged_ms; /* -1: no ping is under way */
    struct pollfd also[AGENT_ALSO_MAX];
    struct agent_result result;
};

static int add_strings(struct buf *b, const char *const *strings, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && strings[i]; i++)
        rc = agent_add_string(b, strings[i], e);
    return rc;
}

static size_t count_strings(const char *const *strings)
{
    size_t count = 0;
    while (strings[count])
        count++;
    return count;
}

static int add_size(struct buf *b, const struct agent_live *live, struct err *e)
{
    uint16_t rows = 0;
    uint16_t columns = 0;
    live->size(live->ctx, &rows, &columns);
    int rc = buf_add_u32(b, rows, e);
    return rc < 0 ? rc : buf_add_u32(b, columns, e);
}

static int encode_exec(struct buf *b, const struct agent_exec *exec, struct err *e)
{
    static const char *const none[] = {NULL};
    const char *const *env = exec->env ? exec->env : none;
    size_t argc = count_strings(exec->argv);
    size_t envc = count_strings(env);
    if (argc == 0)
        return err_set(e, ERR_INPUT, "no program to run");
    if (argc > AGENT_STRINGS_MAX || envc > AGENT_STRINGS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d arguments or variables", AGENT_STRINGS_MAX);
    uint32_t flags = exec->detach ? AGENT_EXEC_DETACH : 0;
    flags |= exec->input_len || (exec->live && exec->live->input_fd >= 0) ? AGENT_EXEC_STDIN : 0;
    flags |= exec->live && exec->live->terminal ? AGENT_EXEC_TERMINAL : 0;
    flags |= exec->apart ? AGENT_EXEC_APART : 0;
    flags |= exec->alone ? AGENT_EXEC_ALONE : 0;
    flags |= exec->no_network ? AGENT_EXEC_NO_NETWORK : 0;
    uint64_t timeout_ms = exec->timeout_ms > 0 ? (uint64_t)exec->timeout_ms : 0;
    int rc = buf_add_u32(b, flags, e);
    if (rc == 0)
        rc = buf_add_u64(b, timeout_ms, e);
    if (rc == 0)
        rc = buf_add_u32(b, (uint32_t)argc, e);
    if (rc == 0)
        rc = buf_add_u32(b, (uint32_t)envc, e);
    if (rc == 0)
        rc = agent_add_string(b, exec->workdir ? exec->workdir : "", e);
    if (rc == 0)
        rc = agent_add_string(b, exec->user ? exec->user : "", e);
    if (rc == 0)
        rc = add_strings(b, exec->argv, e);
    if (rc == 0)
        rc = add_strings(b, env, e);
    if (rc == 0 && exec->live && exec->live->terminal)
        rc = add_size(b, exec->live, e);
    if (rc == -ERR_LIMIT)
        return err_hint(e, "pass long text on stdin or in a file, not as an argument");
    return rc;
}

/* Sends what the window allows of the input, and its end. */
static int run_feed(struct agent *a, struct run *r, struct err *e)
{
    const uint8_t *input = r->exec->input;
    size_t total = r->exec->live ? 0 : r->exec->input_len;
    while (r->sent < total && r->window) {
        size_t len = total - r->sent;
        if (len > AGENT_DATA_MAX)
            len = AGENT_DATA_MAX;
        if (len > r->window)
            len = r->window;
        int rc = agent_link_send(a, AGENT_STDIN, r->stream, input + r->sent, len, e);
        if (rc < 0)
            return rc;
        r->sent += len;
        r->window -= len;
    }
    if (total == 0 || r->sent < total || r->input_ended)
        return 0;
    r->input_ended = true;
    return agent_link_send(a, AGENT_STDIN, r->stream, NULL, 0, e);
}

static bool decode_end(const uint8_t *payload, bool *running, struct agent_result *out)
{
    uint32_t end = agent_get_u32(payload);
    uint32_t status = agent_get_u32(payload + 4);
    if (end > AGENT_END_SIGNALLED || status > 255)
        return false;
    *running = end == AGENT_END_RUNNING;
    out->exited = end == AGENT_END_EXITED;
    out->status = (int)status;
    out->timed_out = agent_get_u32(payload + 8) != 0;
    out->oom_kills = agent_get_u32(payload + 12);
    return true;
}

static const char *path_of(const struct agent_exec *exec)
{
    for (size_t i = 0; exec->env && exec->env[i]; i++) {
        if (strncmp(exec->env[i], "PATH=", 5) == 0 && exec->env[i][5])
            return exec->env[i] + 5;
    }
    return NULL;
}

static int run_output(struct agent *a, struct run *r, const struct agent_frame *f, struct err *e)
{
    int stream = f->type == AGENT_STDOUT ? 1 : 2;
    int rc = r->output ? r->output(r->ctx, stream, f->payload, f->len, e) : 0;
    if (rc < 0)
        agent_link_break(a); /* the program is killed by the agent */
    return rc;
}

static int run_frame(struct agent *a, struct run *r, const struct agent_frame *f, struct err *e)
{
    bool running = false;
    if (f->stream == 0 && f->type == AGENT_OK) {
        r->pinged_ms = -1;
        return 0;
    }
    if (f->stream != r->stream)
        return agent_link_refuse(a, f, e);
    if (f->type == AGENT_ERROR && !r->started)
        return agent_fault(f, path_of(r->exec), e);
    if (f->type == AGENT_STARTED && f->len == 8 && !r->started) {
        r->started = true;
        r->result.id = agent_get_u64(f->payload);
        r->done = r->exec->detach;
        return 0;
    }
    if (f->type == AGENT_CREDIT && f->len == 4 &&
        agent_get_u32(f->payload) <= AGENT_WINDOW - r->window) {
        r->window += agent_get_u32(f->payload);
        return run_feed(a, r, e);
    }
    if (!r->started || r->exec->detach)
        return agent_link_refuse(a, f, e);
    if ((f->type == AGENT_STDOUT || f->type == AGENT_STDERR) && f->len > 0 &&
        f->len <= AGENT_DATA_MAX)
        return run_output(a, r, f, e);
    if (f->type == AGENT_EXIT && f->len == AGENT_END_LEN &&
        decode_end(f->payload, &running, &r->result) && !running) {
        r->done = true;
        return 0;
    }
    return agent_link_refuse(a, f, e);
}

/* Nothing came for a while: is the guest still there? */
static int run_heartbeat(struct agent *a, struct run *r, struct err *e)
{
    int64_t silent_ms = clock_ms() - a->heard_ms;
    if (silent_ms >= SILENCE_MS && r->pinged_ms >= 0) {
        agent_link_break(a);
        return err_set(e, ERR_TIMEOUT, "the guest agent is silent for %lld s",
                       (long long)silent_ms / 1000);
    }
    if (silent_ms < HEARTBEAT_MS || r->pinged_ms >= 0)
        return 0;
    r->pinged_ms = clock_ms();
    return agent_link_send(a, AGENT_PING, 0, NULL, 0, e);
}

/* ---- Input as it comes ---- */

/* One read of what there is, as much as the program's window takes. */
static int live_input(struct agent *a, struct run *r, struct err *e)
{
    uint8_t bytes[AGENT_DATA_MAX];
    size_t room = r->window < sizeof(bytes) ? r->window : sizeof(bytes);
    ssize_t got = read(r->exec->live->input_fd, bytes, room);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0) { /* its end; a terminal that is gone reads as an error */
        r->input_ended = true;
        return agent_link_send(a, AGENT_STDIN, r->stream, NULL, 0, e);
    }
    r->window -= (size_t)got;
    return agent_link_send(a, AGENT_STDIN, r->stream, bytes, (size_t)got, e);
}

/* What became ready besides the link. */
static int run_live(struct agent *a, struct run *r, struct err *e)
{
    int rc = r->also[0].revents ? live_input(a, r, e) : 0;
    if (rc < 0 || !r->also[1].revents)
        return rc;
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    rc = add_size(&b, r->exec->live, e);
    return rc < 0 ? rc : agent_link_send(a, AGENT_RESIZE, r->stream, b.data, b.len, e);
}

/* Says what the link is to wait for besides: input only while the program takes some. */
static void watch_live(struct agent *a, struct run *r)
{
    const struct agent_live *live = r->exec->live;
    a->also = live ? r->also : NULL;
    a->also_count = live ? ARRAY_LEN(r->also) : 0;
    if (!live)
        return;
    bool wants = r->started && !r->input_ended && r->window > 0;
    r->also[0] = (struct pollfd){.fd = wants ? live->input_fd : -1, .events = POLLIN};
    r->also[1] = (struct pollfd){.fd = r->started ? live->resize_fd : -1, .events = POLLIN};
}

static int run_loop(struct agent *a, struct run *r, int64_t deadline_ms, struct err *e)
{
    while (!r->done) {
        struct agent_frame frame = {.type = 0};
        bool got = false;
        watch_live(a, r);
        int64_t slice_ms = clock_ms() + HEARTBEAT_MS;
        if (deadline_ms >= 0 && deadline_ms < slice_ms)
            slice_ms = deadline_ms;
        int rc = agent_link_receive(a, slice_ms, &frame, &got, e);
        if (rc == 0 && got)
            rc = run_frame(a, r, &frame, e);
        else if (rc == 0 && a->woken)
            rc = run_live(a, r, e);
        else if (rc == 0)
            rc = run_heartbeat(a, r, e);
        if (rc < 0)
            return rc;
        if (!r->done && deadline_ms >= 0 && clock_ms() >= deadline_ms) {
            agent_link_break(a);
            return err_set(e, ERR_TIMEOUT,
                           "the guest agent does not report the program's end (limit %lld ms)",
                           (long long)r->exec->timeout_ms);
        }
    }
    return 0;
}

int agent_run(struct agent *a, const struct agent_exec *exec, agent_output *output, void *ctx,
              struct agent_result *out, struct err *e)
{
    struct run r = {
        .exec = exec, .output = output, .ctx = ctx, .window = AGENT_WINDOW, .pinged_ms = -1};
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    if (exec->detach && exec->input_len > AGENT_WINDOW)
        return err_set(e, ERR_LIMIT, "input of a detached program: more than %d bytes",
                       AGENT_WINDOW);
    int rc = encode_exec(&b, exec, e);
    r.stream = agent_link_stream(a);
    a->heard_ms = clock_ms();
    if (rc == 0)
        rc = agent_link_send(a, AGENT_EXEC, r.stream, b.data, b.len, e);
    if (rc == 0)
        rc = run_feed(a, &r, e);
    int64_t deadline_ms = -1;
    if (exec->detach)
        deadline_ms = clock_ms() + AGENT_REQUEST_MS;
    else if (exec->timeout_ms > 0 && exec->timeout_ms < INT64_MAX / 4)
        deadline_ms = clock_ms() + exec->timeout_ms + RUN_GRACE_MS;
    if (rc == 0)
        rc = run_loop(a, &r, deadline_ms, e);
    a->also = NULL;
    if (rc < 0)
        return rc;
    *out = r.result;
    return 0;
}

int agent_process(struct agent *a, uint64_t id, bool *running, struct agent_result *out,
                  struct buf *tail, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    struct agent_frame reply = {.type = 0};
    struct agent_result result = {.id = id};
    bool still = false;
    int rc = buf_add_u64(&b, id, e);
    if (rc == 0)
        rc = agent_request(a, AGENT_PROCESS, &b, AGENT_REQUEST_MS, &reply, e);
    if (rc < 0)
        return rc;
    if (reply.len < AGENT_END_LEN || reply.len > AGENT_END_LEN + AGENT_TAIL_MAX ||
        !decode_end(reply.payload, &still, &result))
        return agent_link_refuse(a, &reply, e);
    rc = tail ? buf_add(tail, reply.payload + AGENT_END_LEN, reply.len - AGENT_END_LEN, e) : 0;
    if (rc < 0)
        return rc;
    *running = still;
    *out = result;
    return 0;
}

static int probe(struct agent *a, uint32_t type, const struct agent_web_page *page,
                 int64_t timeout_ms, uint64_t *answer, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    uint32_t wait_ms = timeout_ms < 0 ? 0 : timeout_ms > 3600000 ? 3600000 : (uint32_t)timeout_ms;
    int rc = buf_add_u32(&b, page->port, e);
    if (rc == 0)
        rc = buf_add_u32(&b, wait_ms, e);
    if (rc == 0 && page->path)
        rc = agent_add_string(&b, page->path, e);
    if (rc == 0)
        rc = agent_request_u64(a, type, &b, AGENT_REQUEST_MS + (int64_t)wait_ms, answer, e);
    return rc;
}

int agent_probe_port(struct agent *a, uint16_t port, int64_t timeout_ms, bool *open, struct err *e)
{
    uint64_t connected = 0;
    int rc =
        probe(a, AGENT_PROBE, &(struct agent_web_page){.port = port}, timeout_ms, &connected, e);
    if (rc == 0)
        *open = connected == 1;
    return rc;
}

int agent_probe_http(struct agent *a, const struct agent_web_page *page, int64_t timeout_ms,
                     unsigned *status, struct err *e)
{
    uint64_t answer = 0;
    const struct agent_web_page whole = {page->port, page->path ? page->path : "/"};
    int rc = probe(a, AGENT_HTTP_PROBE, &whole, timeout_ms, &answer, e);
    if (rc == 0)
        *status = answer <= 999 ? (unsigned)answer : 0;
    return rc;
}

/* ---- Files ---------------------------------------------------------------------------------- */

static int encode_path(struct buf *b, const char *path, struct err *e)
{
    if (strlen(path) >= LIMIT_PATH)
        return err_set(e, ERR_LIMIT, "path of %zu bytes", strlen(path));
    return agent_add_string(b, path, e);
}

static int path_request(struct agent *a, uint32_t type, const char *path, uint32_t mode,
                        struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    int rc = buf_add_u32(&b, mode, e);
    if (rc == 0)
        rc = encode_path(&b, path, e);
    if (rc == 0)
        rc = agent_request_u64(a, type, &b, AGENT_REQUEST_MS, NULL, e);
    return rc;
}

int agent_make_dirs(struct agent *a, const char *path, uint32_t mode, struct err *e)
{
    return path_request(a, AGENT_MAKE_DIRS, path, mode, e);
}

int agent_put(struct agent *a, const char *path, uint32_t mode, const void *data, size_t len,
              struct err *e)
{
    const uint8_t *at = data;
    int rc = path_request(a, AGENT_PUT_OPEN, path, mode, e);
    while (rc == 0 && len > 0) {
        AUTO_BUF struct buf b;
        buf_init(&b, AGENT_PAYLOAD_MAX);
        size_t chunk = len < AGENT_CHUNK_MAX ? len : AGENT_CHUNK_MAX;
        rc = buf_add(&b, at, chunk, e);
        if (rc == 0)
            rc = agent_request_u64(a, AGENT_PUT_DATA, &b, AGENT_REQUEST_MS, NULL, e);
        at += chunk;
        len -= chunk;
    }
    if (rc == 0)
        rc = agent_request_u64(a, AGENT_PUT_COMMIT, NULL, AGENT_REQUEST_MS, NULL, e);
    return rc < 0 ? err_in(e, "writing %s", path) : 0;
}

static int get_chunks(struct agent *a, struct buf *out, struct err *e)
{
    for (;;) {
        struct agent_frame reply = {.type = 0};
        int rc = agent_request(a, AGENT_GET_READ, NULL, AGENT_REQUEST_MS, &reply, e);
        if (rc < 0)
            return rc;
        if (reply.len > AGENT_CHUNK_MAX)
            return agent_link_refuse(a, &reply, e);
        if (reply.len == 0)
            return 0;
        rc = buf_add(out, reply.payload, reply.len, e);
        if (rc < 0)
            return rc;
    }
}

int agent_get(struct agent *a, const char *path, struct buf *out, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    uint64_t size = 0;
    size_t before = out->len;
    int rc = encode_path(&b, path, e);
    if (rc == 0)
        rc = agent_request_u64(a, AGENT_GET_OPEN, &b, AGENT_REQUEST_MS, &size, e);
    if (rc == 0 && size > out->ceiling - out->len)
        rc =
            err_set(e, ERR_LIMIT, "%llu bytes (limit %zu)", (unsigned long long)size, out->ceiling);
    if (rc == 0)
        rc = get_chunks(a, out, e);
    if (rc == 0)
        return 0;
    out->len = before;
    if (out->data)
        out->data[before] = 0;
    return err_in(e, "reading %s", path);
}

/* The kernel's buffers of the channel are used again and again: bytes that mean nothing take the place of
 * what went through them (drivers/char/virtio_console.c: at most 128 pages each way). */
int agent_forget(struct agent *a, struct err *e)
{
    enum { PADDING_FRAMES = 32 };
    AUTO_BUF struct buf zeros;
    AUTO_FREE uint8_t *padding = mem_zalloc(AGENT_CHUNK_MAX);
    buf_init(&zeros, AGENT_PAYLOAD_MAX);
    int rc = padding ? buf_add(&zeros, padding, AGENT_CHUNK_MAX, e) : err_nomem(e, "agent");
    if (rc == 0)
        rc = agent_request_u64(a, AGENT_FORGET, NULL, AGENT_REQUEST_MS, NULL, e);
    for (int i = 0; rc == 0 && i < PADDING_FRAMES; i++)
        rc = agent_request_u64(a, AGENT_PING, &zeros, AGENT_REQUEST_MS, NULL, e);
    return rc;
}

/* ---- The machine ---------------------------------------------------------------------------- */

int agent_sync(struct agent *a, bool drop_caches, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    int rc = buf_add_u32(&b, drop_caches, e);
    return rc < 0 ? rc : agent_request_u64(a, AGENT_SYNC, &b, SYNC_MS, NULL, e);
}

int agent_end_all(struct agent *a, struct err *e)
{
    return agent_request_u64(a, AGENT_END_ALL, NULL, SYNC_MS, NULL, e);
}

int agent_freeze(struct agent *a, struct err *e)
{
    return agent_request_u64(a, AGENT_FREEZE, NULL, SYNC_MS, NULL, e);
}

int agent_thaw(struct agent *a, struct err *e)
{
    return agent_request_u64(a, AGENT_THAW, NULL, SYNC_MS, NULL, e);
}

int agent_set_clock(struct agent *a, int64_t *before_ns, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    uint64_t before = 0;
    int rc = buf_add_u64(&b, (uint64_t)clock_wall_ns(), e);
    if (rc == 0)
        rc = agent_request_u64(a, AGENT_SET_CLOCK, &b, AGENT_REQUEST_MS, &before, e);
    if (rc == 0 && before_ns)
        *before_ns = before > INT64_MAX ? INT64_MAX : (int64_t)before;
    return rc;
}

int agent_clock(struct agent *a, int64_t *now_ns, struct err *e)
{
    uint64_t now = 0;
    int rc = agent_request_u64(a, AGENT_CLOCK, NULL, AGENT_REQUEST_MS, &now, e);
    if (rc == 0)
        *now_ns = now > INT64_MAX ? INT64_MAX : (int64_t)now;
    return rc;
}

int agent_reseed(struct agent *a, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    uint8_t entropy[AGENT_ENTROPY_LEN];
    if (getrandom(entropy, sizeof(entropy), 0) != (ssize_t)sizeof(entropy))
        return err_sys(e, "random bytes for the guest");
    int rc = buf_add(&b, entropy, sizeof(entropy), e);
    explicit_bzero(entropy, sizeof(entropy));
    return rc < 0 ? rc : agent_request_u64(a, AGENT_RESEED, &b, AGENT_REQUEST_MS, NULL, e);
}

int agent_network(struct agent *a, const struct agent_address *address, struct err *e)
{
    static const struct agent_address user = {
        .address = 0x0a00020f, .prefix = 24, .gateway = 0x0a000202, .resolver = 0x0a000203};
    const struct agent_address *at = address ? address : &user;
    const uint32_t fields[] = {at->address, at->prefix, at->gateway, at->resolver};
    AUTO_BUF struct buf b;
    buf_init(&b, AGENT_PAYLOAD_MAX);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(fields); i++)
        rc = buf_add_u32(&b, fields[i], e);
    return rc < 0 ? rc : agent_request_u64(a, AGENT_NETWORK, &b, AGENT_REQUEST_MS, NULL, e);
}

int agent_mount(struct agent *a, struct err *e)
{
    return agent_request_u64(a, AGENT_MOUNT, NULL, SYNC_MS, NULL, e);
}

int agent_power_off(struct agent *a, struct err *e)
{
    int rc = agent_request_u64(a, AGENT_POWER_OFF, NULL, SYNC_MS, NULL, e);
    if (rc == 0)
        agent_link_break(a);
    return rc;
}
