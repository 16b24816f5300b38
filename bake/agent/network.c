/* SPDX-License-Identifier: MIT */
/* Network by ioctl (netdevice(7)): loopback, and the card, with the addresses that the host says. */
#include "bake/agent/agent.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_address(struct sockaddr *out, uint32_t address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    memcpy(out, &in, sizeof(in));
}

static void put_name(struct ifreq *request, const char *name)
{
    memset(request, 0, sizeof(*request));
    memcpy(request->ifr_name, name, strnlen(name, IFNAMSIZ - 1));
}

static int interface_up(int fd, const char *name)
{
    struct ifreq request;
    put_name(&request, name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
        return -errno;
    request.ifr_flags = (short)(request.ifr_flags | IFF_UP | IFF_RUNNING);
    return ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

int network_loopback_up(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int result = interface_up(fd, "lo");
    close(fd);
    return result;
}

/* The first interface by name that is not loopback. */
static int find_card(char name[IFNAMSIZ])
{
    DIR *dir = opendir("/sys/class/net");
    if (!dir)
        return -errno;
    name[0] = 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        const char *found = entry->d_name;
        if (found[0] == '.' || strcmp(found, "lo") == 0 || strlen(found) >= IFNAMSIZ)
            continue;
        if (!name[0] || strcmp(found, name) < 0)
            memcpy(name, found, strlen(found) + 1);
    }
    closedir(dir);
    return name[0] ? 0 : -ENODEV;
}

static int set_address(int fd, const char *card, unsigned long what, uint32_t address)
{
    struct ifreq request;
    put_name(&request, card);
    put_address(&request.ifr_addr, address);
    return ioctl(fd, what, &request) < 0 ? -errno : 0;
}

static int set_gateway(int fd, uint32_t gateway)
{
    if (gateway == 0)
        return 0;
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    put_address(&route.rt_dst, INADDR_ANY);
    put_address(&route.rt_genmask, INADDR_ANY);
    put_address(&route.rt_gateway, gateway);
    return ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST ? -errno : 0;
}

/* A link that leads nowhere (a resolver service's file under /run) is replaced by a file. */
static int set_resolver(uint32_t resolver)
{
    static const char path[] = "/etc/resolv.conf";
    struct stat info;
    char line[64];
    snprintf(line, sizeof(line), "nameserver %u.%u.%u.%u\n", resolver >> 24, resolver >> 16 & 0xff,
             resolver >> 8 & 0xff, resolver & 0xff);
    if (resolver == 0)
        return 0;
    if (fstatat(AT_FDCWD, path, &info, 0) == 0 && info.st_size > 0)
        return 0;
    if (mkdirat(AT_FDCWD, "/etc", 0755) < 0 && errno != EEXIST)
        return -errno;
    int result = files_write(path, line);
    if (result == -ENOENT && unlinkat(AT_FDCWD, path, 0) == 0)
        result = files_write(path, line);
    return result;
}

static int configure_card(int fd, const char *card, const struct network_address *a,
                          const char **what)
{
    *what = "setting the network card's address";
    int result = set_address(fd, card, SIOCSIFADDR, a->address);
    if (result == 0) {
        *what = "setting the network mask";
        result = set_address(fd, card, SIOCSIFNETMASK, ~(0xffffffffu >> a->prefix));
    }
    if (result == 0) {
        *what = "bringing the network card up";
        result = interface_up(fd, card);
    }
    if (result == 0) {
        *what = "setting the gateway";
        result = set_gateway(fd, a->gateway);
    }
    return result;
}

int network_configure(const struct network_address *a, const char **what)
{
    char card[IFNAMSIZ];
    *what = "looking for a network card";
    int result = find_card(card);
    if (result < 0)
        return result;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    result = configure_card(fd, card, a, what);
    close(fd);
    if (result < 0)
        return result;
    *what = "writing /etc/resolv.conf";
    return set_resolver(a->resolver);
}

int network_leave(void)
{
    return unshare(CLONE_NEWNET) < 0 ? -errno : network_loopback_up();
}
