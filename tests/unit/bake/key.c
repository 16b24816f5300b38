/* SPDX-License-Identifier: MIT */
/* What makes a template the same one, and on which machines it may be restored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bake/guest/guest.h"
#include "bake/image/image.h"
#include "bake/template/record.h"
#include "bake/vm.h"
#include "base/mem.h"
#include "manifests/manifest.h"

struct inputs {
    struct task task;
    struct image image;
    struct machine_room room;
    const char *recipe;
};

static void start(struct inputs *in)
{
    *in = (struct inputs){.recipe = "name: r\nsteps:\n  - run: make\n"};
    in->task.cpus = 1;
    in->task.memory_mb = 2048;
    in->task.storage_mb = 10240;
    digest_bytes(&in->image.manifest.digest, "manifest", 8);
    digest_bytes(&in->image.manifest.config.digest, "config", 6);
    digest_bytes(&in->room.kernel.digest, "kernel", 6);
    static char vmm[] = "10.0";
    in->room.vmm = vmm;
    in->room.accel = VM_ACCEL_TCG;
}

static void key_of(struct digest *out, const struct inputs *in)
{
    struct err e = ERR_INIT;
    AUTO_RECIPE struct recipe *r = NULL;
    AUTO_JSON struct json *canonical = NULL;
    if (recipe_parse(&r, "r.yaml", in->recipe, strlen(in->recipe), &e) < 0)
        fail_msg("%s", e.text);
    canonical = recipe_canonical(r);
    const struct key_inputs inputs = {
        .task = &in->task, .image = &in->image, .recipe = canonical, .room = &in->room};
    if (template_key(out, &inputs, &e) < 0)
        fail_msg("%s", e.text);
}

/* Changes one input; the numbers are those of the cases in the test below. */
static void change(struct inputs *in, int which)
{
    static char newer[] = "10.1";
    static char name[] = "A";
    static char value[] = "1";
    static struct env_pair env = {.name = name, .value = value};
    switch (which) {
    case 0: /* new content under the same tag */
        digest_bytes(&in->image.manifest.digest, "other", 5);
        break;
    case 1:
        digest_bytes(&in->image.manifest.config.digest, "other", 5);
        break;
    case 2:
        in->recipe = "name: r\nsteps:\n  - run: make all\n";
        break;
    case 3:
        in->recipe = "name: r\nsteps:\n  - user: nobody\n  - run: make\n";
        break;
    case 4:
        in->task.cpus = 2;
        break;
    case 5:
        in->task.memory_mb = 4096;
        break;
    case 6:
        in->task.storage_mb = 20480;
        break;
    case 7:
        in->task.allow_internet = true;
        break;
    case 8:
        in->task.env = &env;
        in->task.env_count = 1;
        break;
    case 9:
        digest_bytes(&in->room.kernel.digest, "other", 5);
        break;
    case 10:
        in->room.vmm = newer;
        break;
    default:
        in->room.accel = VM_ACCEL_KVM;
        break;
    }
}

static void what_changes_the_key(void **state)
{
    (void)state;
    enum { COUNT = 12 };
    struct digest keys[COUNT + 1];
    struct inputs in;
    start(&in);
    key_of(&keys[COUNT], &in);
    for (int i = 0; i < COUNT; i++) {
        start(&in);
        change(&in, i);
        key_of(&keys[i], &in);
    }
    for (int i = 0; i <= COUNT; i++)
        for (int k = 0; k < i; k++)
            if (digest_equal(&keys[i], &keys[k]))
                fail_msg("changes %d and %d give the same key", k, i);
}

/* Neither names nor the spelling of the recipe count. */
static void what_does_not_change_it(void **state)
{
    (void)state;
    struct digest first;
    struct digest second;
    struct inputs in;
    start(&in);
    key_of(&first, &in);
    in.task.name = (char[]){"other"};
    in.task.directory = (char[]){"/elsewhere/other"};
    in.image.text = (char[]){"mirror.example/x:2"};
    in.recipe = "# a comment\nsteps:\n- {run: 'make'}\nname: \"r\"\n";
    key_of(&second, &in);
    assert_true(digest_equal(&first, &second));
}

static void restored_elsewhere(void **state)
{
    (void)state;
    struct machine_room room = {.vmm = (char[]){"10.0"}, .accel = VM_ACCEL_TCG};
    digest_bytes(&room.kernel.digest, "kernel", 6);
    char kernel[DIGEST_TEXT_MAX];
    digest_print(&room.kernel.digest, kernel);
    char alias[] = "tb2-one";
    char other[] = "9.2";
    char kvm[] = "kvm";
    char tcg[] = "tcg";
    char wrong[] = "sha256:00";
    const struct {
        struct template t;
        const char *error;
    } rows[] = {
        {{.alias = alias, .vmm = other, .accel = tcg, .kernel = kernel}, "VMM 9.2, here is 10.0"},
        {{.alias = alias, .vmm = room.vmm, .accel = kvm, .kernel = kernel},
         "accelerator kvm, here is tcg"},
        {{.alias = alias, .vmm = room.vmm, .accel = tcg, .kernel = wrong},
         "kernel sha256:00, here is sha256:"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct guest *g = NULL;
        struct err e = ERR_INIT;
        const struct guest_options options = {.cpus = 1};
        assert_int_equal(guest_restore(&g, &room, &options, &rows[i].t, &e), -ERR_UNSUPPORTED);
        if (!strstr(e.text, rows[i].error))
            fail_msg("\"%s\" does not say \"%s\"", e.text, rows[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_changes_the_key),
        cmocka_unit_test(what_does_not_change_it),
        cmocka_unit_test(restored_elsewhere),
    };
    return cmocka_run_group_tests_name("key", tests, NULL, NULL);
}
