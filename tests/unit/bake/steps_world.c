/* SPDX-License-Identifier: MIT */
#include "steps_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/step/context.h"
#include "bake/step/steps.h"
#include "base/mem.h"
#include "manifests/manifest.h"

void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

void open_world(struct world *w, struct fixture *f, const char *text)
{
    struct err e = ERR_INIT;
    struct buf all;
    buf_init(&all, LIMIT_RECIPE);
    must(buf_add_text(&all, "name: test\n", &e), &e);
    for (const char *at = text; *at != 0;) {
        const char *dir = strstr(at, "DIR");
        size_t len = dir ? (size_t)(dir - at) : strlen(at);
        must(buf_add(&all, at, len, &e), &e);
        must(buf_add_text(&all, dir ? f->dir : "", &e), &e);
        at += dir ? len + 3 : len;
    }
    *w = (struct world){.room = {.cancel = &f->cancel}, .guest = {.agent = f->agent}};
    w->guest.room = &w->room;
    w->context.workdir = mem_strdup(f->dir);
    w->context.user = mem_printf("%u", (unsigned)getuid());
    must(guest_context_set(&w->context, "PATH", "/usr/bin:/bin", &e), &e);
    AUTO_FREE char *path = mem_printf("%s/recipe.yaml", f->dir);
    must(recipe_parse(&w->recipe, path, buf_text(&all), all.len, &e), &e);
    buf_fini(&all);
    w->run = (struct step_run){.recipe = w->recipe, .context = &w->context};
}

void close_world(struct world *w)
{
    step_run_fini(&w->run);
    guest_context_fini(&w->context);
    recipe_free(w->recipe);
}

void expect_steps(struct fixture *f, const char *text, const char *const parts[4])
{
    struct world w;
    struct err e = ERR_INIT;
    open_world(&w, f, text);
    int rc = guest_run_steps(&w.guest, &w.run, &e);
    if (!parts[0])
        must(rc, &e);
    else
        assert_int_equal(rc, -ERR_STEP);
    for (size_t i = 0; i < 4 && parts[i]; i++)
        if (!strstr(e.text, parts[i]))
            fail_msg("\"%s\" does not say \"%s\"", e.text, parts[i]);
    close_world(&w);
}
