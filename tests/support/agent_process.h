/* SPDX-License-Identifier: MIT */
/* The guest agent as an ordinary process, for tests: started, connected to, asked to run programs. */
#ifndef TB2_TESTS_SUPPORT_AGENT_PROCESS_H
#define TB2_TESTS_SUPPORT_AGENT_PROCESS_H

#include <sys/types.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"

enum { AGENT_TEST_BIG = 10 * 1024 * 1024 };

struct fixture {
    pid_t pid;
    struct agent *agent;
    struct cancel cancel;
    char dir[64];
};

/* Starts the agent with `option` and a descriptor that it inherits. */
pid_t start_agent(const char *option, int fd);
struct agent *open_agent(int fd, const struct cancel *cancel);

/* cmocka: *state is a fixture with a connected agent; its end must be a clean one. */
int set_up(void **state);
int tear_down(void **state);

struct output {
    struct buf out;
    struct buf err;
};

void output_init(struct output *o);
void output_fini(struct output *o);
/* An agent_output into a struct output. */
int collect(void *ctx, int stream, const void *data, size_t len, struct err *e);

#define SHELL(text)                                                                                \
    (const char *const[4])                                                                         \
    {                                                                                              \
        "sh", "-c", text, NULL                                                                     \
    }

extern const char *const plain_env[];
/* A shell program with a plain environment. */
struct agent_exec shell(const char *const argv[4]);
struct agent_result run_ok(struct fixture *f, const struct agent_exec *exec, struct output *o);

/* Bytes that repeat nowhere soon. */
void fill(uint8_t *bytes, size_t len);
void put_file(struct fixture *f, const char *name, const char *text, uint32_t mode, char path[128]);
/* Waits until there is no such process. */
void wait_gone(pid_t pid);

#endif
