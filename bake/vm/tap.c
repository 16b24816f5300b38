/* SPDX-License-Identifier: MIT */
/* Tap devices are the administrator's: they are made, connected and given addresses by whoever may do
 * that. Here is only read what they have. */

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bake/vm/tap.h"
#include "base/file.h"
#include "base/mem.h"

static int bad_text(const char *text, struct err *e)
{
    return err_set(e, ERR_INPUT,
                   "--tap is NAME[,ADDRESS/BITS[,GATEWAY[,NAMESERVER]]], not '%.100s'", text);
}

static bool parse_address(const char *text, uint32_t *out)
{
    struct in_addr address;
    if (inet_pton(AF_INET, text, &address) != 1)
        return false;
    *out = ntohl(address.s_addr);
    return *out != 0;
}

/* "10.0.0.2/24" */
static bool parse_network(char *text, struct agent_address *out)
{
    char *slash = strchr(text, '/');
    char *end = NULL;
    if (!slash)
        return false;
    *slash = 0;
    unsigned long bits = strtoul(slash + 1, &end, 10);
    out->prefix = (uint32_t)bits;
    return slash[1] >= '1' && slash[1] <= '9' && !*end && bits <= 31 &&
           parse_address(text, &out->address);
}

static bool parse_fields(char *rest, struct agent_address *out)
{
    uint32_t *const more[] = {&out->gateway, &out->resolver};
    for (size_t field = 0; rest; field++) {
        char *next = strchr(rest, ',');
        if (next)
            *next++ = 0;
        if (field > ARRAY_LEN(more) ||
            !(field == 0 ? parse_network(rest, out) : parse_address(rest, more[field - 1])))
            return false;
        rest = next;
    }
    return true;
}

static int ask(int fd, unsigned long what, const char *name, uint32_t *out)
{
    struct ifreq request = {0};
    struct sockaddr_in in;
    memcpy(request.ifr_name, name, strlen(name));
    if (ioctl(fd, what, &request) < 0)
        return -1;
    memcpy(&in, &request.ifr_addr, sizeof(in));
    *out = ntohl(in.sin_addr.s_addr);
    return 0;
}

/* The address behind the device's own, or before it where that is the network's last. */
static int take_neighbour(struct tap *t, int fd, struct err *e)
{
    uint32_t own = 0;
    uint32_t mask = 0;
    if (ask(fd, SIOCGIFADDR, t->name, &own) < 0 || ask(fd, SIOCGIFNETMASK, t->name, &mask) < 0) {
        err_set(e, ERR_INPUT, "the tap device %s has no IPv4 address", t->name);
        return err_hint(
            e, "give it one (ip address add), or say the guest's: --tap %s,ADDRESS/BITS", t->name);
    }
    t->address.prefix = (uint32_t)__builtin_popcount(mask);
    t->address.gateway = own;
    uint32_t last = own | ~mask;
    t->address.address = own + 1 < last ? own + 1 : own - 1;
    if (t->address.prefix < 1 || t->address.prefix > 30)
        return err_set(e, ERR_INPUT, "the network of the tap device %s has no room for a guest",
                       t->name);
    return 0;
}

int tap_open(struct tap *out, const char *text, struct err *e)
{
    struct tap t = {.name = {0}};
    AUTO_FREE char *copy = mem_strdup(text);
    if (!copy)
        return err_nomem(e, "tap");
    char *rest = strchr(copy, ',');
    if (rest)
        *rest++ = 0;
    size_t len = strlen(copy);
    if (len == 0 || len > TAP_NAME_MAX || strchr(copy, '/') || strchr(copy, '='))
        return bad_text(text, e);
    memcpy(t.name, copy, len);
    if (!parse_fields(rest, &t.address))
        return bad_text(text, e);
    if (if_nametoindex(t.name) == 0) {
        err_set(e, ERR_INPUT, "there is no network device %s", t.name);
        return err_hint(e, "make it first: ip tuntap add %s mode tap", t.name);
    }
    AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? err_sys(e, "making a socket") : 0;
    if (rc == 0 && t.address.address == 0)
        rc = take_neighbour(&t, fd, e);
    if (rc == 0)
        *out = t;
    return rc;
}
