/* SPDX-License-Identifier: MIT */
/*
 * What is wrong with a glob. fnmatch says no to a malformed one, or takes it for another than was meant, and
 * tells nobody; which of both depends on the C library.
 */
#include <ctype.h>
#include <string.h>
#include <wctype.h>

#include "manifests/internal.h"

static const char unclosed[] = "it has a [ without its ] (\\[ is the letter itself)";

/* *at is behind "[:", "[." or "[=", and goes behind its end. */
static const char *class_fault(const char **at, char kind)
{
    const char close[] = {kind, ']', 0};
    const char *end = strstr(*at, close);
    char name[32] = "";
    size_t len = end ? (size_t)(end - *at) : 0;
    if (!end)
        return unclosed;
    if (len < sizeof(name))
        memcpy(name, *at, len);
    *at = end + 2;
    if (kind == ':')
        return wctype(name) ? NULL : "it names a class of letters that there is not";
    return len == 1 ? NULL : "it names a letter that there is not";
}

/* One letter of a bracket; 0: not one of ASCII. */
static char take_letter(const char **at)
{
    if (**at == '\\' && (*at)[1])
        (*at)++;
    char letter = *(*at)++;
    return isascii((unsigned char)letter) ? letter : 0;
}

/* *at is behind a '[', and goes behind its ']'. */
static const char *bracket_fault(const char **at)
{
    const char *fault = NULL;
    *at += strspn(*at, "!^") > 0;
    for (bool first = true; !fault && (first || **at != ']'); first = false) {
        if (!**at)
            return unclosed;
        if (**at == '[' && (*at)[1] && strchr(":.=", (*at)[1])) {
            char kind = (*at)[1];
            *at += 2;
            fault = class_fault(at, kind);
            continue;
        }
        char low = take_letter(at);
        if (**at != '-' || !(*at)[1] || (*at)[1] == ']' || (*at)[1] == '[')
            continue;
        (*at)++;
        char high = take_letter(at);
        if (low && high && low > high)
            fault = "it has a range whose end comes before its beginning";
    }
    *at += !fault;
    return fault;
}

const char *glob_fault(const char *pattern)
{
    const char *fault = NULL;
    for (const char *at = pattern; !fault && *at;) {
        char letter = *at++;
        if (letter == '[')
            fault = bracket_fault(&at);
        else if (letter == '\\' && !*at)
            fault = "it ends in a backslash";
        else if (letter == '\\')
            at++;
    }
    return fault;
}
