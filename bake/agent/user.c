/* SPDX-License-Identifier: MIT */
/*
 * Users and groups of the image, read from its own passwd(5) and group(5) files: a static program
 * must not load the image's name service modules. Lines are bounded; one that is malformed is passed
 * over.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"

enum { FIELDS_MAX = 7 };

/* Cuts at colons; the number of fields found. */
static size_t split(char *line, char *fields[FIELDS_MAX])
{
    size_t count = 0;
    for (char *at = line; at && count < FIELDS_MAX; count++) {
        fields[count] = at;
        at = strchr(at, ':');
        if (at)
            *at++ = 0;
    }
    return count;
}

/* Decimal, in the range that image configs may use. */
static bool parse_id(const char *text, uint32_t *out)
{
    uint32_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        uint32_t digit = (uint32_t)(*text - '0');
        if (value > (LIMIT_ACCOUNT - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

/* 1 when the user has a line in the file: fills ids, home and `name`. */
static int find_user(struct identity *out, const char *user, const char *path, char *name,
                     size_t name_len)
{
    struct lines f;
    int result = lines_open(&f, path);
    char *line;
    while (result == 0 && (line = lines_next(&f))) {
        char *field[FIELDS_MAX];
        uint32_t uid;
        uint32_t gid;
        if (split(line, field) < 6 || !parse_id(field[2], &uid) || !parse_id(field[3], &gid))
            continue;
        if (strcmp(field[0], user) != 0 && strcmp(field[2], user) != 0)
            continue;
        if (strlen(field[0]) >= name_len || strlen(field[5]) >= sizeof(out->home))
            continue;
        memcpy(name, field[0], strlen(field[0]) + 1);
        memcpy(out->home, field[5], strlen(field[5]) + 1);
        out->uid = uid;
        out->gid = gid;
        result = 1;
    }
    lines_close(&f);
    return result;
}

static int find_group(gid_t *out, const char *group, const char *path)
{
    struct lines f;
    int result = lines_open(&f, path);
    char *line;
    while (result == 0 && (line = lines_next(&f))) {
        char *field[FIELDS_MAX];
        uint32_t gid;
        if (split(line, field) < 3 || !parse_id(field[2], &gid))
            continue;
        if (strcmp(field[0], group) != 0 && strcmp(field[2], group) != 0)
            continue;
        *out = gid;
        result = 1;
    }
    lines_close(&f);
    return result;
}

static bool is_member(const char *members, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = members; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == 0))
            return true;
    }
    return false;
}

static int find_memberships(struct identity *out, const char *name, const char *path)
{
    struct lines f;
    int result = lines_open(&f, path);
    char *line;
    while (result == 0 && out->group_count < GROUPS_MAX && (line = lines_next(&f))) {
        char *field[FIELDS_MAX];
        uint32_t gid;
        if (split(line, field) < 4 || !parse_id(field[2], &gid) || !is_member(field[3], name))
            continue;
        out->groups[out->group_count++] = gid;
    }
    lines_close(&f);
    return result;
}

int user_resolve(struct identity *out, const char *spec, const char *passwd_path,
                 const char *group_path, enum agent_stage *stage)
{
    char user[256];
    char name[256] = "";
    const char *colon = strchr(spec, ':');
    size_t user_len = colon ? (size_t)(colon - spec) : strlen(spec);
    *stage = AGENT_AT_USER;
    if (user_len >= sizeof(user))
        return -ENAMETOOLONG;
    memcpy(user, user_len ? spec : "0", user_len ? user_len : 1);
    user[user_len ? user_len : 1] = 0;

    *out = (struct identity){.uid = 0};
    int found = find_user(out, user, passwd_path, name, sizeof(name));
    if (found < 0)
        return found;
    uint32_t id;
    if (found == 0 && parse_id(user, &id))
        out->uid = id;
    else if (found == 0 && strcmp(user, "root") != 0)
        return -ENOENT;

    *stage = AGENT_AT_GROUP;
    if (!colon || !colon[1])
        return name[0] ? find_memberships(out, name, group_path) : 0;
    found = find_group(&out->gid, colon + 1, group_path);
    if (found < 0)
        return found;
    if (found == 0 && !parse_id(colon + 1, &id))
        return -ENOENT;
    if (found == 0)
        out->gid = id;
    return 0;
}
