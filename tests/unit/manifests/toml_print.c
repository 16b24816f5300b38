/* SPDX-License-Identifier: MIT */
/*
 * toml_print: reads requests from stdin, each a decimal length, a newline and that many bytes of
 * TOML; answers each with one line: "ok <tagged JSON>" or "error <message>".
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "toml_tagged.h"

static int answer(const char *text, size_t len)
{
    struct err e = ERR_INIT;
    AUTO_TOML struct toml *t = NULL;
    if (toml_parse(&t, text, len, "input", &e) < 0) {
        printf("error %s\n", e.text);
        return 0;
    }
    AUTO_JSON struct json *tagged = toml_tagged(t);
    AUTO_FREE char *line = NULL;
    if (json_print(tagged, 0, &line, &e) < 0)
        return -1;
    printf("ok %s\n", line);
    return 0;
}

int main(void)
{
    char header[32];
    while (fgets(header, sizeof(header), stdin)) {
        size_t len = strtoul(header, NULL, 10);
        AUTO_FREE char *text = mem_zalloc(len + 1);
        if (!text || fread(text, 1, len, stdin) != len || answer(text, len) < 0)
            return 1;
        fflush(stdout);
    }
    return 0;
}
