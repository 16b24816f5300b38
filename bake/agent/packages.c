/* SPDX-License-Identifier: MIT */
/*
 * Is a package manager of the image at work, or was one stopped in the middle? A snapshot must hold
 * neither: every copy of it would meet a lock that nobody gives back, or packages that are half there.
 *
 * At work is whoever runs under a package manager's name, or holds one of the locks that they take
 * (fcntl or flock alike: /proc/locks, see proc(5), lists both with device and inode of the file).
 * Half done is what the managers' own files say: dpkg(1), "Package states" and the reinstreq flag, and
 * its updates/, which holds something only between a change and its place in the status file; broken
 * packages of apk (field f: of its installed file); pacman's lock, which is a file that is removed.
 */
#include "bake/agent/agent.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* As in /proc/PID/comm, which has at most 15 bytes. */
static const char *const managers[] = {
    "apt", "apt-get", "aptitude", "dpkg",  "dpkg-deb", "dpkg-split", "apk",    "rpm",
    "yum", "dnf",     "dnf5",     "dnf-3", "microdnf", "tdnf",       "zypper", "pacman"};

static const char *const locks[] = {
    "/var/lib/dpkg/lock",
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
    "/lib/apk/db/lock",
    "/usr/lib/apk/db/lock",
    "/var/lib/rpm/.rpm.lock",
    "/usr/lib/sysimage/rpm/.rpm.lock",
    "/var/cache/apt/archives/partial/lock",
};

enum { PATH_LEN_MAX = 512 };

static bool is_number(const char *name)
{
    return *name && strspn(name, "0123456789") == strlen(name);
}

/* Name of a process that lives; empty for one that is gone or waits to be reaped. */
static void process_name(char name[64], const char *proc, const char *pid)
{
    char path[PATH_LEN_MAX];
    char text[512];
    name[0] = 0;
    snprintf(path, sizeof(path), "%s/%.20s/stat", proc, pid);
    if (files_read(path, text, sizeof(text)) <= 0)
        return;
    /* "PID (NAME) STATE ...": a name may hold anything, so its end is the last parenthesis */
    char *begin = strchr(text, '(');
    char *end = strrchr(text, ')');
    if (!begin || !end || end < begin || !end[1] || end[2] == 'Z' || end[2] == 'X')
        return;
    *end = 0;
    snprintf(name, 64, "%.63s", begin + 1);
}

static bool is_manager(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(managers); i++) {
        if (strcmp(name, managers[i]) == 0)
            return true;
    }
    return false;
}

static void find_managers(struct packages *out, const char *proc)
{
    DIR *dir = opendir(proc);
    struct dirent *entry;
    while (dir && !out->busy[0] && (entry = readdir(dir))) {
        char name[64];
        if (!is_number(entry->d_name))
            continue;
        process_name(name, proc, entry->d_name);
        if (is_manager(name))
            snprintf(out->busy, sizeof(out->busy), "%s (process %.20s) is running", name,
                     entry->d_name);
    }
    if (dir)
        closedir(dir);
}

/* The lock file with this device and inode, NULL: it is none. */
static const char *find_lock_file(const char *root, unsigned major_number, unsigned minor_number,
                                  unsigned long inode)
{
    for (size_t i = 0; i < ARRAY_LEN(locks); i++) {
        char path[PATH_LEN_MAX];
        struct stat info;
        snprintf(path, sizeof(path), "%s%s", root, locks[i]);
        if (fstatat(AT_FDCWD, path, &info, 0) == 0 && info.st_ino == inode &&
            major(info.st_dev) == major_number && minor(info.st_dev) == minor_number)
            return locks[i];
    }
    return NULL;
}

static void find_locks(struct packages *out, const char *root, const char *proc)
{
    static struct lines f; /* not on the stack: the agent has one thread */
    char path[PATH_LEN_MAX];
    char *line;
    snprintf(path, sizeof(path), "%s/locks", proc);
    if (lines_open(&f, path) < 0)
        return;
    while (!out->busy[0] && (line = lines_next(&f))) {
        int pid;
        unsigned major_number;
        unsigned minor_number;
        unsigned long inode;
        char name[64] = "";
        char number[16];
        /* "1: POSIX  ADVISORY  WRITE 123 fe:00:456 0 EOF"; who only waits has "->" in front */
        if (sscanf(line, "%*d: %*[A-Z] %*s %*s %d %x:%x:%lu", &pid, &major_number, &minor_number,
                   &inode) != 4)
            continue;
        const char *file = find_lock_file(root, major_number, minor_number, inode);
        if (!file)
            continue;
        snprintf(number, sizeof(number), "%d", pid);
        process_name(name, proc, number);
        snprintf(out->busy, sizeof(out->busy), "%s (process %d) holds the lock %s",
                 name[0] ? name : "a program", pid, file);
    }
    lines_close(&f);
}

/* Notes something that is half done. The sum does not depend on the order, which managers change. */
static void note_broken(struct packages *out, const char *name, const char *state)
{
    uint32_t sum = 2166136261u; /* FNV-1a, as in agent_checksum */
    for (const char *at = name; *at; at++)
        sum = (sum ^ (uint8_t)*at) * 16777619u;
    for (const char *at = state; *at; at++)
        sum = (sum ^ (uint8_t)*at) * 16777619u;
    out->broken_sum += sum;
    out->broken_count++;
    size_t used = strlen(out->broken);
    if (used < sizeof(out->broken) - 200)
        snprintf(out->broken + used, sizeof(out->broken) - used, "%s%.80s (%.80s)",
                 used ? ", " : "", name, state);
}

/* "Status: want flag state" */
static void check_status(struct packages *out, const char *name, char *value)
{
    static const char *const half[] = {"half-installed", "unpacked", "half-configured",
                                       "triggers-awaited", "triggers-pending"};
    char *flag = strchr(value, ' ');
    char *state = flag ? strchr(flag + 1, ' ') : NULL;
    if (!state)
        return;
    *state++ = 0;
    state[strcspn(state, " \t\r")] = 0;
    bool is_half = strcmp(flag + 1, "reinstreq") == 0;
    for (size_t i = 0; i < ARRAY_LEN(half); i++)
        is_half = is_half || strcmp(state, half[i]) == 0;
    if (is_half)
        note_broken(out, name, state);
}

static void find_half_dpkg(struct packages *out, const char *root)
{
    static struct lines f;
    char path[PATH_LEN_MAX];
    char name[128] = "";
    char *line;
    snprintf(path, sizeof(path), "%s/var/lib/dpkg/status", root);
    if (lines_open(&f, path) < 0)
        return;
    while ((line = lines_next(&f))) {
        if (strncmp(line, "Package: ", 9) == 0)
            snprintf(name, sizeof(name), "%.127s", line + 9);
        else if (strncmp(line, "Status: ", 8) == 0)
            check_status(out, name, line + 8);
    }
    lines_close(&f);
}

static void find_updates(struct packages *out, const char *root)
{
    char path[PATH_LEN_MAX];
    snprintf(path, sizeof(path), "%s/var/lib/dpkg/updates", root);
    DIR *dir = opendir(path);
    struct dirent *entry;
    bool found = false;
    while (dir && !found && (entry = readdir(dir)))
        found = is_number(entry->d_name);
    if (found)
        note_broken(out, "dpkg", "interrupted: /var/lib/dpkg/updates is not empty");
    if (dir)
        closedir(dir);
}

static void find_half_apk(struct packages *out, const char *root, const char *database)
{
    static struct lines f;
    char path[PATH_LEN_MAX];
    char name[128] = "";
    char *line;
    snprintf(path, sizeof(path), "%s%s", root, database);
    if (lines_open(&f, path) < 0)
        return;
    while ((line = lines_next(&f))) {
        if (strncmp(line, "P:", 2) == 0)
            snprintf(name, sizeof(name), "%.127s", line + 2);
        else if (strncmp(line, "f:", 2) == 0 && line[2])
            note_broken(out, name, "broken for apk");
    }
    lines_close(&f);
}

static void find_left_lock(struct packages *out, const char *root)
{
    char path[PATH_LEN_MAX];
    snprintf(path, sizeof(path), "%s/var/lib/pacman/db.lck", root);
    if (access(path, F_OK) == 0)
        note_broken(out, "pacman", "interrupted: /var/lib/pacman/db.lck is there");
}

void packages_look(struct packages *out, const char *root, const char *proc)
{
    *out = (struct packages){.broken_count = 0};
    find_managers(out, proc);
    if (!out->busy[0])
        find_locks(out, root, proc);
    find_half_dpkg(out, root);
    find_updates(out, root);
    find_half_apk(out, root, "/lib/apk/db/installed");
    find_half_apk(out, root, "/usr/lib/apk/db/installed");
    find_left_lock(out, root);
}
