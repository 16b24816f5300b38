/* SPDX-License-Identifier: MIT */
/*
 * Requests: checked, done, answered. All but EXEC, STDIN and PROBE are answered at once. While the
 * disk is frozen anything that could touch it is refused, since it would block the only thread that
 * can thaw it again.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

void guest_log(const struct guest *g, const char *fmt, ...)
{
    if (g->console < 0)
        return;
    char line[AGENT_DETAIL_MAX + 64];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (len > 0)
        dprintf(g->console, "tb2-agent: %s\n", line);
}

/* ---- Decoding ------------------------------------------------------------------------------- */

uint32_t read_u32(struct reader *r)
{
    if (r->left < 4) {
        r->bad = true;
        return 0;
    }
    uint32_t value = agent_get_u32(r->at);
    r->at += 4;
    r->left -= 4;
    return value;
}

uint64_t read_u64(struct reader *r)
{
    uint64_t low = read_u32(r);
    return low | (uint64_t)read_u32(r) << 32;
}

/* Strings carry their terminator, so that they can be used where they lie. */
const char *read_string(struct reader *r)
{
    uint32_t len = read_u32(r);
    if (r->bad || len == 0 || len > r->left || memchr(r->at, 0, len) != r->at + len - 1) {
        r->bad = true;
        return "";
    }
    const char *text = (const char *)r->at;
    r->at += len;
    r->left -= len;
    return text;
}

/* ---- Requests ------------------------------------------------------------------------------- */

void answer(struct guest *g, uint32_t stream, int result, enum agent_stage stage,
            const char *detail)
{
    if (result < 0)
        channel_send_error(&g->channel, stream, stage, -result, detail);
    else
        channel_send(&g->channel, AGENT_OK, stream, NULL, 0);
}

void answer_u64(struct guest *g, uint32_t stream, uint64_t value)
{
    uint8_t payload[8];
    agent_put_u64(payload, value);
    channel_send(&g->channel, AGENT_OK, stream, payload, sizeof(payload));
}

static void session_end(struct guest *g)
{
    process_abandon(g, false);
    if (!g->frozen) {
        transfer_abort(&g->transfer);
        copy_abort(&g->copy);
    }
    for (size_t i = 0; i < PROBES_MAX; i++)
        source_close(&g->probes[i].link);
}

static void serve_hello(struct guest *g, const struct agent_frame *f)
{
    struct channel *c = &g->channel;
    if (f->len != AGENT_HELLO_LEN)
        return;
    if (!c->session || memcmp(c->nonce, f->payload, AGENT_NONCE_LEN) != 0) {
        session_end(g);
        channel_desync(c);
        memcpy(c->nonce, f->payload, AGENT_NONCE_LEN);
        c->session = true;
    }
    uint8_t payload[AGENT_HELLO_REPLY_MIN + AGENT_DETAIL_MAX];
    size_t error_len = strnlen(g->boot_error, AGENT_DETAIL_MAX);
    memcpy(payload, c->nonce, AGENT_NONCE_LEN);
    agent_put_u32(payload + AGENT_NONCE_LEN, AGENT_VERSION);
    memcpy(payload + AGENT_NONCE_LEN + 4, g->boot_id, AGENT_BOOT_ID_LEN);
    memcpy(payload + AGENT_HELLO_REPLY_MIN, g->boot_error, error_len);
    channel_send(c, AGENT_HELLO_REPLY, 0, payload, AGENT_HELLO_REPLY_MIN + error_len);
}

static bool read_exec(struct reader *r, struct exec_request *request)
{
    uint32_t flags = read_u32(r);
    request->timeout_ms = read_u64(r);
    uint32_t argc = read_u32(r);
    uint32_t envc = read_u32(r);
    if (argc == 0 || argc > AGENT_STRINGS_MAX || envc > AGENT_STRINGS_MAX)
        return false;
    request->has_input = flags & AGENT_EXEC_STDIN;
    request->detach = flags & AGENT_EXEC_DETACH;
    request->apart = flags & AGENT_EXEC_APART;
    request->terminal = flags & AGENT_EXEC_TERMINAL;
    request->alone = flags & AGENT_EXEC_ALONE;
    request->no_network = flags & AGENT_EXEC_NO_NETWORK;
    request->workdir = read_string(r);
    request->user = read_string(r);
    for (uint32_t i = 0; i < argc; i++)
        request->argv[i] = read_string(r);
    for (uint32_t i = 0; i < envc; i++)
        request->env[i] = read_string(r);
    request->argv[argc] = NULL;
    request->env[envc] = NULL;
    if (request->terminal) {
        request->rows = read_u32(r);
        request->columns = read_u32(r);
    }
    return !r->bad && r->left == 0;
}

static void serve_exec(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    if (read_exec(&r, &g->request))
        process_start(g, f->stream, &g->request);
    else
        answer(g, f->stream, -EINVAL, AGENT_AT_REQUEST, "exec");
}

static void serve_put_open(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    uint32_t mode = read_u32(&r);
    const char *path = read_string(&r);
    int result = r.bad ? -EINVAL : transfer_put_open(&g->transfer, path, mode);
    answer(g, f->stream, result, AGENT_AT_FILE, path);
}

static void serve_get_open(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    const char *path = read_string(&r);
    uint64_t size = 0;
    int result = r.bad ? -EINVAL : transfer_get_open(&g->transfer, path, &size);
    if (result < 0)
        answer(g, f->stream, result, AGENT_AT_FILE, path);
    else
        answer_u64(g, f->stream, size);
}

static void serve_get_read(struct guest *g, const struct agent_frame *f)
{
    uint8_t *at = channel_reserve(&g->channel, AGENT_CHUNK_MAX);
    long got = at ? transfer_get_read(&g->transfer, at, AGENT_CHUNK_MAX) : -ENOBUFS;
    if (got < 0)
        answer(g, f->stream, (int)got, AGENT_AT_FILE, "the file being read");
    else
        channel_send_reserved(&g->channel, AGENT_OK, f->stream, (size_t)got);
}

static void serve_make_dirs(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    uint32_t mode = read_u32(&r);
    const char *path = read_string(&r);
    int result = r.bad ? -EINVAL : files_make_dirs(path, mode);
    answer(g, f->stream, result, AGENT_AT_FILE, path);
}

static void serve_copy(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    enum agent_stage stage = AGENT_AT_FILE;
    const char *what = "";
    int result;
    if (f->type == AGENT_COPY_OPEN)
        result = copy_open(&g->copy, &r, &stage, &what);
    else if (f->type == AGENT_COPY)
        result = copy_records(&g->copy, &r, &what);
    else
        result = copy_close(&g->copy, &what);
    answer(g, f->stream, result, stage, what);
    if (result < 0)
        copy_abort(&g->copy);
}

static void serve_freeze(struct guest *g, const struct agent_frame *f, bool freeze)
{
    if (freeze) {
        transfer_abort(&g->transfer);
        copy_abort(&g->copy);
    }
    int result = g->machine ? machine_freeze(g->root, freeze) : 0;
    if (result == 0)
        g->frozen = freeze;
    answer(g, f->stream, result, AGENT_AT_MACHINE,
           freeze ? "freezing the root file system" : "thawing the root file system");
}

static void serve_set_clock(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    uint64_t now_ns = read_u64(&r);
    uint64_t before_ns = machine_clock();
    int result = r.bad ? -EINVAL : machine_set_clock(now_ns);
    if (result < 0)
        answer(g, f->stream, result, AGENT_AT_MACHINE, "setting the clock");
    else
        answer_u64(g, f->stream, before_ns);
}

static void serve_reseed(struct guest *g, const struct agent_frame *f)
{
    int result = f->len == AGENT_ENTROPY_LEN ? machine_reseed(f->payload) : -EINVAL;
    answer(g, f->stream, result, AGENT_AT_MACHINE, "reseeding the random generator");
}

/* Packages, as they are seen from the image's root. */
static void serve_packages(struct guest *g, const struct agent_frame *f)
{
    static struct packages found;
    uint8_t payload[12 + 2 * AGENT_DETAIL_MAX];
    packages_look(&found, "", "/proc");
    size_t busy_len = strlen(found.busy);
    size_t broken_len = strlen(found.broken);
    agent_put_u32(payload, found.broken_count);
    agent_put_u32(payload + 4, found.broken_sum);
    agent_put_u32(payload + 8, (uint32_t)busy_len);
    memcpy(payload + 12, found.busy, busy_len);
    memcpy(payload + 12 + busy_len, found.broken, broken_len);
    channel_send(&g->channel, AGENT_OK, f->stream, payload, 12 + busy_len + broken_len);
}

static void serve_random(struct guest *g, const struct agent_frame *f)
{
    uint8_t payload[2 * AGENT_RANDOM_LEN];
    int result = machine_random(payload);
    if (result < 0)
        answer(g, f->stream, result, AGENT_AT_MACHINE, "reading random numbers");
    else
        channel_send(&g->channel, AGENT_OK, f->stream, payload, sizeof(payload));
}

static void serve_echo(struct guest *g, const struct agent_frame *f)
{
    if (f->len > AGENT_CHUNK_MAX)
        answer(g, f->stream, -EMSGSIZE, AGENT_AT_REQUEST, "echo");
    else
        channel_send(&g->channel, AGENT_OK, f->stream, f->payload, f->len);
}

static void serve_network(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    struct network_address a = {.address = read_u32(&r), .prefix = read_u32(&r)};
    a.gateway = read_u32(&r);
    a.resolver = read_u32(&r);
    const char *what = "network";
    int result =
        r.bad || r.left || a.prefix < 1 || a.prefix > 31 ? -EINVAL : network_configure(&a, &what);
    answer(g, f->stream, result, AGENT_AT_MACHINE, what);
}

static void serve_mount(struct guest *g, const struct agent_frame *f)
{
    int result = machine_mount(g);
    if (result < 0)
        guest_log(g, "%s", g->boot_error);
    answer(g, f->stream, result, AGENT_AT_MACHINE,
           result == -EALREADY ? "mounting the root disk" : g->boot_error);
}

static void serve_power_off(struct guest *g, const struct agent_frame *f)
{
    answer(g, f->stream, 0, AGENT_AT_MACHINE, "");
    for (int round = 0; g->channel.out_len && round < 50; round++) {
        struct pollfd wait = {.fd = g->channel.link.fd, .events = POLLOUT, .revents = 0};
        if (poll(&wait, 1, 20) <= 0)
            continue;
        loop_begin(&g->loop);
        loop_watch(&g->loop, &g->channel.link, POLLOUT);
        loop_wait(&g->loop);
        if (!channel_pump(&g->channel, &g->loop))
            break;
    }
    machine_power_off();
}

/* Requests about the machine: they must not reach the host of a test. */
static void serve_machine(struct guest *g, const struct agent_frame *f)
{
    if (!g->machine) {
        answer(g, f->stream, -EOPNOTSUPP, AGENT_AT_MACHINE, "not a machine");
        return;
    }
    if (f->type == AGENT_SET_CLOCK)
        serve_set_clock(g, f);
    else if (f->type == AGENT_RESEED)
        serve_reseed(g, f);
    else if (f->type == AGENT_NETWORK)
        serve_network(g, f);
    else if (f->type == AGENT_MOUNT)
        serve_mount(g, f);
    else
        serve_power_off(g, f);
}

static void serve_file(struct guest *g, const struct agent_frame *f)
{
    if (f->type == AGENT_PUT_OPEN)
        serve_put_open(g, f);
    else if (f->type == AGENT_PUT_DATA)
        answer(g, f->stream, transfer_put_data(&g->transfer, f->payload, f->len), AGENT_AT_FILE,
               "the file being written");
    else if (f->type == AGENT_PUT_COMMIT)
        answer(g, f->stream, transfer_put_commit(&g->transfer), AGENT_AT_FILE,
               "the file being written");
    else if (f->type == AGENT_GET_OPEN)
        serve_get_open(g, f);
    else if (f->type == AGENT_GET_READ)
        serve_get_read(g, f);
    else
        serve_make_dirs(g, f);
}

static bool works_frozen(uint32_t type)
{
    return type == AGENT_HELLO || type == AGENT_PING || type == AGENT_THAW ||
           type == AGENT_FREEZE || type == AGENT_CLOCK || type == AGENT_SET_CLOCK ||
           type == AGENT_RESEED || type == AGENT_STDIN || type == AGENT_RESIZE;
}

static bool works_unmounted(uint32_t type)
{
    return type == AGENT_HELLO || type == AGENT_PING || type == AGENT_CLOCK ||
           type == AGENT_SET_CLOCK || type == AGENT_RESEED || type == AGENT_MOUNT ||
           type == AGENT_POWER_OFF;
}

/* False: the host broke the protocol. */
static bool serve_frame(struct guest *g, const struct agent_frame *f)
{
    struct reader r = {.at = f->payload, .left = f->len, .bad = false};
    if (g->frozen && !works_frozen(f->type)) {
        answer(g, f->stream, -EBUSY, AGENT_AT_FROZEN, "the disk is frozen");
        return true;
    }
    if (g->boot_error[0] && f->type != AGENT_HELLO && f->type != AGENT_PING &&
        f->type != AGENT_POWER_OFF) {
        answer(g, f->stream, -ENODEV, AGENT_AT_MACHINE, g->boot_error);
        return true;
    }
    if (!g->mounted && !works_unmounted(f->type)) {
        answer(g, f->stream, -ENODEV, AGENT_AT_MACHINE, "the root disk is not mounted");
        return true;
    }
    switch (f->type) {
    case AGENT_HELLO:
        serve_hello(g, f);
        return true;
    case AGENT_PING:
        answer(g, f->stream, 0, AGENT_AT_REQUEST, "");
        return true;
    case AGENT_EXEC:
        serve_exec(g, f);
        return true;
    case AGENT_STDIN:
        return process_input(g, f->stream, f->payload, f->len);
    case AGENT_RESIZE: {
        uint32_t rows = read_u32(&r);
        process_resize(g, f->stream, rows, read_u32(&r));
        return true;
    }
    case AGENT_PROCESS:
        process_report(g, f->stream, read_u64(&r));
        return true;
    case AGENT_PUT_OPEN:
    case AGENT_PUT_DATA:
    case AGENT_PUT_COMMIT:
    case AGENT_GET_OPEN:
    case AGENT_GET_READ:
    case AGENT_MAKE_DIRS:
        serve_file(g, f);
        return true;
    case AGENT_COPY_OPEN:
    case AGENT_COPY:
    case AGENT_COPY_CLOSE:
        serve_copy(g, f);
        return true;
    case AGENT_FORGET:
        answer(g, f->stream, files_forget(AGENT_SECRETS_PATH), AGENT_AT_FILE, AGENT_SECRETS_PATH);
        return true;
    case AGENT_PROBE:
    case AGENT_HTTP_PROBE:
        probe_open(g, f);
        return true;
    case AGENT_SYNC:
        answer(g, f->stream, machine_sync(g->machine && read_u32(&r)), AGENT_AT_MACHINE,
               "dropping caches");
        return true;
    case AGENT_END_ALL:
        answer(g, f->stream, process_end_all(g), AGENT_AT_MACHINE, "ending all processes");
        return true;
    case AGENT_FREEZE:
    case AGENT_THAW:
        serve_freeze(g, f, f->type == AGENT_FREEZE);
        return true;
    case AGENT_CLOCK:
        answer_u64(g, f->stream, machine_clock());
        return true;
    case AGENT_PACKAGES:
        serve_packages(g, f);
        return true;
    case AGENT_RANDOM:
        serve_random(g, f);
        return true;
    case AGENT_ECHO:
        serve_echo(g, f);
        return true;
    case AGENT_SET_CLOCK:
    case AGENT_RESEED:
    case AGENT_NETWORK:
    case AGENT_POWER_OFF:
    case AGENT_MOUNT:
        serve_machine(g, f);
        return true;
    default:
        answer(g, f->stream, -EINVAL, AGENT_AT_REQUEST, "unknown request");
        return true;
    }
}

/* ---- The loop ------------------------------------------------------------------------------- */

static void serve_frames(struct guest *g)
{
    struct channel *c = &g->channel;
    struct agent_frame frame;
    size_t frame_len = 0;
    bool before = c->session;
    while (channel_has_room(c, REPLY_MAX) && channel_next(c, &frame, &frame_len)) {
        bool good = serve_frame(g, &frame);
        channel_drop(c, frame_len);
        if (!good)
            channel_desync(c);
        before = before || c->session;
        if (!good)
            break;
    }
    if (before && !c->session)
        session_end(g);
}

static void take_signals(struct guest *g)
{
    struct signalfd_siginfo info;
    while (read(g->signals.fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGIO)
            g->channel.hung_up = false;
    }
    process_reap(g);
}

int guest_serve(struct guest *g)
{
    for (;;) {
        struct loop *l = &g->loop;
        loop_begin(l);
        loop_watch(l, &g->signals, POLLIN);
        channel_watch(&g->channel, l);
        process_watch(g, l);
        probe_watch(g, l);
        loop_wait(l);
        if (loop_events(l, &g->signals))
            take_signals(g);
        bool connected = channel_pump(&g->channel, l);
        serve_frames(g);
        process_pump(g, l);
        probe_pump(g, l);
        if (connected)
            continue;
        session_end(g);
        channel_hang_up(&g->channel);
        if (g->channel.kind == CHANNEL_STREAM)
            return 0;
    }
}
