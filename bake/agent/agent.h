/* SPDX-License-Identifier: MIT */
/*
 * The guest agent: one static program, PID 1 of the guest, that serves the protocol of
 * bake/channel/protocol.h. Everything it holds is one `struct guest` of fixed size, mapped once at
 * the start: it never allocates, so nothing that the host or a program in the guest does can make
 * it grow. Single-threaded. Functions return 0 or a negative errno unless they say otherwise.
 */
#ifndef TB2_BAKE_AGENT_AGENT_H
#define TB2_BAKE_AGENT_AGENT_H

#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>

#include "bake/channel/protocol.h"
#include "base/attr.h"

enum {
    PROCESSES_MAX = 64,
    PROBES_MAX = 8,
    WATCHES_MAX = 4 + PROBES_MAX + 4 * PROCESSES_MAX,
    OUT_MAX = 768 * 1024,  /* frames waiting for the host */
    OUT_BUSY = 256 * 1024, /* above this, output of programs waits in their pipes */
    REPLY_MAX = AGENT_CHUNK_MAX + AGENT_HEADER_LEN + 64, /* longest reply to one request */
    EXIT_GRACE_MS = 250, /* wait for the end of output after a program's end */
};

/* ---- Event loop (loop.c) -------------------------------------------------------------------- */

/* A descriptor that the loop may wait on; `watch` is its place in this round's poll set or -1. */
struct source {
    int fd; /* -1: none */
    int watch;
};

struct loop {
    struct pollfd fds[WATCHES_MAX];
    int count;
    int64_t deadline_ms; /* of this round; -1 none */
};

int64_t now_ms(void);
/* Building a round. */
void loop_begin(struct loop *l);
void loop_watch(struct loop *l, struct source *s, int events);
void loop_deadline(struct loop *l, int64_t at_ms);
void loop_wait(struct loop *l);
/* Events of this round; 0 for a source that was not watched. */
short loop_events(const struct loop *l, const struct source *s);
void source_close(struct source *s);

/* ---- Channel (channel.c) -------------------------------------------------------------------- */

enum channel_kind { CHANNEL_PORT, CHANNEL_STREAM, CHANNEL_LISTENER };

struct channel {
    enum channel_kind kind;
    struct source link;
    struct source listener;
    bool hung_up; /* the port has no host end; SIGIO says when that changes */
    bool session; /* a hello was answered; otherwise all but hellos is skipped */
    uint8_t nonce[AGENT_NONCE_LEN];
    uint8_t in[AGENT_FRAME_MAX];
    size_t in_len;
    uint8_t out[OUT_MAX];
    size_t out_at;
    size_t out_len;
};

void channel_init(struct channel *c, enum channel_kind kind, int fd);
bool channel_has_room(const struct channel *c, size_t len);
/* True while output of programs may be queued. */
bool channel_wants_output(const struct channel *c);
/* Room for a payload of `len` bytes, to be filled and then sent; NULL when there is none. */
uint8_t *channel_reserve(struct channel *c, size_t len);
void channel_send_reserved(struct channel *c, uint32_t type, uint32_t stream, size_t len);
/* Queues a frame; dropped when no session is up. */
void channel_send(struct channel *c, uint32_t type, uint32_t stream, const void *payload,
                  size_t len);
void channel_send_error(struct channel *c, uint32_t stream, enum agent_stage stage, int sys,
                        const char *detail);
/* Next frame (borrowed until channel_drop) or false; hellos are answered by the caller. */
bool channel_next(struct channel *c, struct agent_frame *out, size_t *frame_len);
void channel_drop(struct channel *c, size_t frame_len);
/* What came is not the protocol: no session until the next hello. */
void channel_desync(struct channel *c);
void channel_watch(struct channel *c, struct loop *l);
/* Moves bytes; false when the host end is gone. */
bool channel_pump(struct channel *c, struct loop *l);
void channel_hang_up(struct channel *c);

struct guest;

/* ---- Payloads (serve.c) --------------------------------------------------------------------- */

/* Reads past the end give 0 or "", and set `bad`. */
struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};
uint32_t read_u32(struct reader *r);
uint64_t read_u64(struct reader *r);
/* Borrowed from the payload. */
const char *read_string(struct reader *r);

/* ---- Processes (process.c, spawn.c, user.c) ------------------------------------------------- */

struct exec_request {
    bool has_input;
    bool detach;
    bool apart;
    bool terminal;
    uint32_t rows;
    uint32_t columns;
    bool alone;
    bool no_network;
    uint64_t timeout_ms;
    const char *workdir;
    const char *user;
    const char *argv[AGENT_STRINGS_MAX + 1];
    const char *env[AGENT_STRINGS_MAX + 2]; /* one more: HOME */
};

/* What the child sends back when it cannot become the program. */
struct spawn_failure {
    int32_t stage;
    int32_t sys;
    char detail[AGENT_DETAIL_MAX];
};

struct spawn_ends {
    int in; /* child's side; -1: /dev/null */
    int out[2];
    int terminal; /* -1: pipes */
    int failure;  /* written on failure, closed by a successful exec */
    int cgroup;   /* directory, -1: none */
    bool machine;
};

/* Runs in the child; returns only by exec or _exit. */
void spawn_child(const struct spawn_ends *ends, struct exec_request *request)
    __attribute__((noreturn));

enum { GROUPS_MAX = 64, HOME_MAX = 1024 };

struct identity {
    uid_t uid;
    gid_t gid;
    gid_t groups[GROUPS_MAX];
    size_t group_count;
    char home[HOME_MAX]; /* empty: unknown */
};

/*
 * Resolves `name`, `uid`, `name:group`, `uid:gid` (OCI image-spec config.md, "User") from a passwd
 * and a group file; a missing file holds nothing. *stage and a negative errno tell what was wrong.
 */
int user_resolve(struct identity *out, const char *spec, const char *passwd_path,
                 const char *group_path, enum agent_stage *stage) MUST_USE;

struct process {
    bool used;
    bool attached; /* the host awaits its output and end */
    bool detached;
    bool alone; /* its cgroup is killed when it ends */
    bool timed_out;
    bool terminal;       /* out[0] and in are the master of its terminal */
    uint64_t oom_before; /* machine_oom_kills when it began */
    uint32_t oom_kills;  /* while it ran; once reaped */
    uint64_t id;
    uint32_t stream;
    pid_t pid;           /* 0 once reaped */
    int status;          /* wait status, once reaped */
    int64_t deadline_ms; /* -1: none */
    int64_t grace_ms;    /* when output is no longer waited for; -1 while it runs */
    bool draining;       /* grace is over: only left[] bytes are still taken */
    size_t left[2];
    struct source start;
    struct source in;
    struct source out[2];
    int cgroup;
    size_t in_at;
    size_t in_len;
    bool in_end;
    size_t tail_at; /* ring: next byte to write */
    size_t tail_len;
    uint8_t input[AGENT_WINDOW];
    uint8_t tail[AGENT_TAIL_MAX];
};

void process_start(struct guest *g, uint32_t stream, struct exec_request *request);
/* False: the host sent more than its window. */
bool process_input(struct guest *g, uint32_t stream, const uint8_t *data, size_t len) MUST_USE;
void process_resize(struct guest *g, uint32_t stream, uint32_t rows, uint32_t columns);
void process_report(struct guest *g, uint32_t stream, uint64_t id);
void process_watch(struct guest *g, struct loop *l);
void process_pump(struct guest *g, struct loop *l);
void process_reap(struct guest *g);
/* Ends every process but this one, wherever it has gone; -EBUSY when one does not die. */
int process_end_all(struct guest *g) MUST_USE;
/* The host is gone: ends all that it was waiting for; `all` takes detached ones too. */
void process_abandon(struct guest *g, bool all);

/* ---- Files (files.c) ------------------------------------------------------------------------ */

struct transfer {
    int fd;  /* of the one file being put or got; -1 none */
    int dir; /* put: its directory */
    bool put;
    char temporary[64];
    char name[256];
};

void transfer_init(struct transfer *t);
void transfer_abort(struct transfer *t);
/* Each returns a negative errno; the path is a whole string. */
int transfer_put_open(struct transfer *t, const char *path, uint32_t mode) MUST_USE;
int transfer_put_data(struct transfer *t, const uint8_t *data, size_t len) MUST_USE;
int transfer_put_commit(struct transfer *t) MUST_USE;
int transfer_get_open(struct transfer *t, const char *path, uint64_t *size) MUST_USE;
long transfer_get_read(struct transfer *t, uint8_t *data, size_t len) MUST_USE;
/* Clears the files of a directory, removes them and it; nothing there is success. */
int files_forget(const char *path) MUST_USE;
int files_make_dirs(const char *path, mode_t mode) MUST_USE;
struct owner {
    uid_t uid;
    gid_t gid;
};
/* The same, but whatever there is under the last name; those that it makes belong to `owner` (NULL: to
 * whoever runs this). *made: the last one did not exist. */
int files_make_path(const char *path, const struct owner *owner, mode_t mode, bool *made) MUST_USE;
/* Whole small file (kernel interfaces), terminated; returns its length or a negative errno. */
long files_read(const char *path, char *text, size_t capacity) MUST_USE;
int files_write(const char *path, const char *text) MUST_USE;

/* ---- Lines of files (lines.c) --------------------------------------------------------------- */

enum { LINE_LEN_MAX = 8192 };

struct lines {
    int fd; /* -1: a file that is not there holds nothing */
    size_t at;
    size_t len;
    char bytes[4096];
    char line[LINE_LEN_MAX];
};

int lines_open(struct lines *f, const char *path) MUST_USE;
/* Next line without its newline, until the next call; NULL at the end. */
char *lines_next(struct lines *f);
void lines_close(struct lines *f);

/* ---- Package managers of the image (packages.c) --------------------------------------------- */

/* What of packages is under way or was left half done. */
struct packages {
    char busy[AGENT_DETAIL_MAX];   /* who works on them; empty: nobody */
    char broken[AGENT_DETAIL_MAX]; /* the first ones that are half done */
    uint32_t broken_count;
    uint32_t broken_sum; /* over all of them, in any order */
};

/* Looks below `root` ("" in a guest) at what dpkg, apt, apk, rpm and pacman leave, and at `proc`. */
void packages_look(struct packages *out, const char *root, const char *proc);

/* ---- Copies (copy.c) ------------------------------------------------------------------------ */

/* Files being laid: one copy at a time. */
struct copy {
    int root;       /* directory that paths start from; -1: no copy is open */
    bool root_made; /* by this copy: it gets mode and owner of the source */
    uid_t uid;
    gid_t gid;
    char name[256]; /* of a single file */
    int file;       /* being written; -1 none */
    uint64_t left;  /* its bytes that are to come */
    mode_t mode;    /* that it gets at its end, as the rest */
    uid_t file_uid;
    gid_t file_gid;
    int64_t time;
};

void copy_init(struct copy *c);
void copy_abort(struct copy *c);
/* Each returns a negative errno; *what then is the path in hand, borrowed from the payload. */
int copy_open(struct copy *c, struct reader *r, enum agent_stage *stage,
              const char **what) MUST_USE;
int copy_records(struct copy *c, struct reader *r, const char **what) MUST_USE;
int copy_close(struct copy *c, const char **what) MUST_USE;

/* ---- The machine (machine.c, network.c, boot.c) --------------------------------------------- */

void machine_read_boot_id(char id[AGENT_BOOT_ID_LEN + 1]);
/* -EALREADY when it is done; after any other failure boot_error is set. */
int machine_mount(struct guest *g) MUST_USE;
int machine_sync(bool drop_caches) MUST_USE;
int machine_freeze(int root, bool freeze) MUST_USE;
int machine_set_clock(uint64_t now_ns) MUST_USE;
uint64_t machine_clock(void);
int machine_reseed(const uint8_t entropy[AGENT_ENTROPY_LEN]) MUST_USE;
/* AGENT_RANDOM_LEN bytes of getrandom(2), then as many of the image's /dev/urandom. */
int machine_random(uint8_t out[2 * AGENT_RANDOM_LEN]) MUST_USE;
/* Processes that the kernel's out-of-memory killer has ended since the boot. */
uint64_t machine_oom_kills(void);
void machine_power_off(void);

int network_loopback_up(void) MUST_USE;
/* *what names the step that failed. */
struct network_address {
    uint32_t address;  /* host byte order, as the rest */
    uint32_t prefix;   /* bits of the network, 1 to 31 */
    uint32_t gateway;  /* 0: none */
    uint32_t resolver; /* 0: none */
};
int network_configure(const struct network_address *a, const char **what) MUST_USE;
/* In a child: leaves the machine's network for an empty one. */
int network_leave(void) MUST_USE;

/* The initramfs with its kernel file systems and all modules but the disk's. On failure `text` says
 * why. */
int boot_prepare(char text[AGENT_DETAIL_MAX]) MUST_USE;
/* From the initramfs to the image's root, once; the same. */
int boot_mount(char text[AGENT_DETAIL_MAX]) MUST_USE;
/* Opens what tb2.link= on the kernel's command line says: the virtio-serial port, which is waited
 * for, or (vsock) a listener. *what names it in messages. */
int boot_open_link(struct channel *c, const char **what) MUST_USE;

/* ---- Requests (serve.c) --------------------------------------------------------------------- */

enum { PROBE_TEXT_MAX = 1536 };

struct probe {
    struct source link;
    uint32_t stream;
    int64_t deadline_ms;
    bool http;    /* asks, and waits for a status line */
    bool waiting; /* for the answer */
    size_t len;   /* of text: what is to be sent, then what came */
    size_t sent;
    char text[PROBE_TEXT_MAX];
};

struct guest {
    bool machine; /* PID 1 of a guest; false: an ordinary process in tests */
    bool mounted; /* the root is the image's; true in tests */
    bool frozen;
    int console; /* -1: none */
    int root;    /* directory descriptor for freeze and thaw */
    int cgroups; /* /sys/fs/cgroup/tb2; -1: none */
    uint64_t next_id;
    struct source signals;
    struct channel channel;
    struct loop loop;
    struct transfer transfer;
    struct copy copy;
    struct probe probes[PROBES_MAX];
    struct process processes[PROCESSES_MAX];
    struct exec_request request;
    char boot_id[AGENT_BOOT_ID_LEN + 1];
    char boot_error[AGENT_DETAIL_MAX]; /* empty when all is well */
};

/* Answers a request: OK, or ERROR for a negative errno. */
void answer(struct guest *g, uint32_t stream, int result, enum agent_stage stage,
            const char *detail);
void answer_u64(struct guest *g, uint32_t stream, uint64_t value);

/* Ports and web servers of the guest, asked whether they answer (probe.c). */
void probe_open(struct guest *g, const struct agent_frame *f);
void probe_watch(struct guest *g, struct loop *l);
void probe_pump(struct guest *g, struct loop *l);

void guest_log(const struct guest *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Serves until the channel of a test ends; never returns in a machine. */
int guest_serve(struct guest *g);

#endif
