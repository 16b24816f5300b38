/* SPDX-License-Identifier: MIT */
/*
 * The NBD server: a socket, a thread that accepts, and a thread for each connection, which first
 * shakes hands (nbd_handshake.c) and then serves with a few helpers (nbd_serve.c).
 *
 * The accepting thread owns the list of connections: it alone adds to it, and joins and frees what
 * has finished, woken through `wake`. Stopping asks that thread to end; it shuts every connection's
 * socket down, which ends the calls its threads wait in, and joins them: a request that the device
 * is working on is finished first, never abandoned. No thread is ever detached.
 *
 * Clients are as trusted as this user (the socket is private), but a broken one must not take the
 * process with it: the number of connections, the bytes of a request and of an option, the
 * options of a handshake and its time are all bounded (internal.h).
 */
#include "blockdev/blockdev.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum { HANDSHAKE_TIMEOUT_SECONDS = 30, ACCEPT_PAUSE_MS = 100 };

struct session {
    struct nbd_connection connection;
    struct nbd_server *server;
    pthread_t thread;
    atomic_bool finished; /* the thread has nothing more to do but return */
    struct session *next;
};

struct nbd_server {
    struct bdev *device;
    char *path; /* or HOST:PORT */
    bool is_file;
    int listener;
    int wake; /* eventfd: a session finished, or stop */
    atomic_bool stopping;
    pthread_t thread;
    struct session *sessions; /* of the accepting thread */
    size_t session_count;
};

static void wake(struct nbd_server *n)
{
    uint64_t one = 1;
    ssize_t written;
    do
        written = write(n->wake, &one, sizeof(one));
    while (written < 0 && errno == EINTR);
}

/* ---- One connection ---- */

static void set_receive_timeout(int fd, time_t seconds)
{
    struct timeval limit = {.tv_sec = seconds};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

static void *session_main(void *arg)
{
    struct session *s = arg;
    set_receive_timeout(s->connection.fd, HANDSHAKE_TIMEOUT_SECONDS);
    if (nbd_handshake(&s->connection) == 0) {
        set_receive_timeout(s->connection.fd, 0);
        nbd_serve(&s->connection);
    }
    (void)shutdown(s->connection.fd, SHUT_RDWR);
    atomic_store(&s->finished, true);
    wake(s->server);
    return NULL;
}

static void session_free(struct session *s)
{
    pthread_mutex_destroy(&s->connection.input_lock);
    pthread_mutex_destroy(&s->connection.output_lock);
    file_close(&s->connection.fd);
    free(s);
}

/* Takes `fd` over. */
static void session_start(struct nbd_server *n, int fd)
{
    struct session *s = mem_zalloc(sizeof(*s));
    if (!s) {
        close(fd);
        return;
    }
    s->server = n;
    s->connection.device = n->device;
    s->connection.fd = fd;
    pthread_mutex_init(&s->connection.input_lock, NULL);
    pthread_mutex_init(&s->connection.output_lock, NULL);
    int sys = pthread_create(&s->thread, NULL, session_main, s);
    if (sys != 0) {
        log_event(LOG_WARN, "blockdev", "NBD connection refused: %s", strerror(sys));
        session_free(s);
        return;
    }
    s->next = n->sessions;
    n->sessions = s;
    n->session_count++;
}

/* ---- The accepting thread ---- */

/* Joins and frees sessions: those that are finished, or all. */
static void reap(struct nbd_server *n, bool all)
{
    struct session **at = &n->sessions;
    while (*at) {
        struct session *s = *at;
        if (!all && !atomic_load(&s->finished)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        pthread_join(s->thread, NULL);
        session_free(s);
        n->session_count--;
    }
}

static void accept_one(struct nbd_server *n)
{
    int fd = accept4(n->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        /* The client left again; or no descriptor is free, which poll would report at once. */
        struct pollfd stop = {.fd = n->wake, .events = POLLIN};
        if (errno == EMFILE || errno == ENFILE)
            (void)poll(&stop, 1, ACCEPT_PAUSE_MS);
        return;
    }
    if (n->session_count >= NBD_CONNECTIONS_MAX) {
        log_event(LOG_WARN, "blockdev", "NBD connection refused: %d are open on %s",
                  NBD_CONNECTIONS_MAX, n->path);
        close(fd);
        return;
    }
    int yes = 1;
    if (!n->is_file) /* answers are sent whole: nothing is gained by holding them back */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    session_start(n, fd);
}

static void *server_main(void *arg)
{
    struct nbd_server *n = arg;
    struct pollfd fds[] = {
        {.fd = n->wake, .events = POLLIN},
        {.fd = n->listener, .events = POLLIN},
    };
    while (!atomic_load(&n->stopping)) {
        if (poll(fds, ARRAY_LEN(fds), -1) < 0)
            continue;
        uint64_t count;
        if (fds[0].revents && read(n->wake, &count, sizeof(count)) > 0)
            reap(n, false);
        if (fds[1].revents && !atomic_load(&n->stopping))
            accept_one(n);
    }
    for (struct session *s = n->sessions; s; s = s->next)
        (void)shutdown(s->connection.fd, SHUT_RDWR);
    reap(n, true);
    return NULL;
}

/* ---- Start and stop ---- */

static int listen_on(int *out, const char *path, struct err *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len >= sizeof(address.sun_path)) {
        err_set(e, ERR_LIMIT, "socket path %s has %zu bytes, the system allows %zu", path, len,
                sizeof(address.sun_path) - 1);
        return err_hint(e, "put the store into a directory with a shorter name");
    }
    memcpy(address.sun_path, path, len);
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, "socket %s", path);
    if (bind(fd, (const struct sockaddr *)(const void *)&address, sizeof(address)) < 0)
        return err_sys(e, "socket %s", path);
    /* Nobody can connect before listen. */
    if (chmod(path, 0600) < 0 || listen(fd, NBD_CONNECTIONS_MAX) < 0) {
        int rc = err_sys(e, "socket %s", path);
        (void)unlink(path);
        return rc;
    }
    *out = fd;
    fd = -1;
    return 0;
}

/* Cuts HOST:PORT or [ADDRESS]:PORT in place; NULL when it is neither. */
static const char *cut_address(char *address, const char **port)
{
    char *colon = strrchr(address, ':');
    if (!colon || colon == address || !colon[1])
        return NULL;
    *colon = 0;
    *port = colon + 1;
    size_t len = strlen(address);
    if (address[0] != '[')
        return strchr(address, ':') ? NULL : address;
    if (address[len - 1] != ']')
        return NULL;
    address[len - 1] = 0;
    return address + 1;
}

/* Puts the port that the socket has in the place of the one that was asked for. */
static int settle_port(char **address, int fd, struct err *e)
{
    struct sockaddr_storage bound;
    socklen_t len = sizeof(bound);
    char port[8];
    if (getsockname(fd, (struct sockaddr *)(void *)&bound, &len) < 0 ||
        getnameinfo((const struct sockaddr *)(const void *)&bound, len, NULL, 0, port, sizeof(port),
                    NI_NUMERICSERV) != 0)
        return err_sys(e, "address %s", *address);
    char *settled = mem_printf("%.*s:%s", (int)(strrchr(*address, ':') - *address), *address, port);
    if (!settled)
        return err_nomem(e, "address");
    free(*address);
    *address = settled;
    return 0;
}

static int listen_on_tcp(int *out, const char *address, struct err *e)
{
    AUTO_FREE char *copy = mem_strdup(address);
    if (!copy)
        return err_nomem(e, "address");
    const char *port = NULL;
    const char *host = cut_address(copy, &port);
    if (!host)
        return err_set(e, ERR_INPUT, "'%s' is not HOST:PORT", address);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return err_set(e, ERR_INPUT, "address %s: %s", address, gai_strerror(rc));
    AUTO_FD int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int yes = 1;
    rc = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
                 bind(fd, found->ai_addr, found->ai_addrlen) < 0 ||
                 listen(fd, NBD_CONNECTIONS_MAX) < 0
             ? err_sys(e, "address %s", address)
             : 0;
    freeaddrinfo(found);
    if (rc < 0)
        return rc;
    *out = fd;
    fd = -1;
    return 0;
}

static void server_free(struct nbd_server *n)
{
    if (!n)
        return;
    if (n->is_file)
        (void)unlink(n->path);
    file_close(&n->listener);
    file_close(&n->wake);
    free(n->path);
    free(n);
}
DEFINE_AUTO(nbd_server, server_free)

int device_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int sys = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return sys;
}

static int start_server(struct nbd_server **out, struct bdev *d, const char *address,
                        int (*listen_at)(int *out, const char *address, struct err *e),
                        struct err *e)
{
    CLEANUP(server_free_auto_) struct nbd_server *n = mem_zalloc(sizeof(*n));
    if (!n)
        return err_nomem(e, "NBD server");
    n->device = d;
    n->listener = -1;
    n->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->wake < 0)
        return err_sys(e, "NBD server");
    n->path = mem_strdup(address);
    if (!n->path)
        return err_nomem(e, "NBD server");
    int rc = listen_at(&n->listener, n->path, e);
    if (rc < 0)
        return err_in(e, "NBD server");
    n->is_file = listen_at == listen_on;
    if (!n->is_file && (rc = settle_port(&n->path, n->listener, e)) < 0)
        return err_in(e, "NBD server");
    int sys = device_thread_start(&n->thread, server_main, n);
    if (sys != 0)
        return err_sysno(e, sys, "NBD server");
    *out = MOVE(n);
    return 0;
}

int nbd_server_start(struct nbd_server **out, struct bdev *d, const char *socket_path,
                     struct err *e)
{
    return start_server(out, d, socket_path, listen_on, e);
}

int nbd_server_start_tcp(struct nbd_server **out, struct bdev *d, const char *address,
                         struct err *e)
{
    return start_server(out, d, address, listen_on_tcp, e);
}

const char *nbd_server_address(const struct nbd_server *n)
{
    return n->path;
}

void nbd_server_stop(struct nbd_server *n)
{
    if (!n)
        return;
    atomic_store(&n->stopping, true);
    wake(n);
    pthread_join(n->thread, NULL);
    server_free(n);
}
