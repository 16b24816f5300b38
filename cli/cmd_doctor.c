/* SPDX-License-Identifier: MIT */
/* tb2-bake doctor: what this machine has of what a bake needs, and what the rest costs. */
#include <getopt.h>
#include <string.h>

#include "cli/doctor.h"

static int take_probe(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    ((struct doctor *)arguments)->probe = true;
    return 0;
}

static const struct option_row rows[] = {
    {"probe", NULL, "boot a guest to see whether KVM really works (fetches the guest kernel)",
     take_probe},
    IMAGE_OPTION_ROWS,
    {NULL, NULL, NULL, NULL},
};

static const char *const state_names[] = {
    [DOCTOR_GOOD] = "good", [DOCTOR_NOTE] = "note", [DOCTOR_BAD] = "bad"};

static void print_finding(const char *name, const struct doctor_finding *f)
{
    static const char *const marks[] = {
        [DOCTOR_GOOD] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_BAD] = "BAD"};
    char text[sizeof(f->found)];
    text_harmless(text, sizeof(text), f->found);
    printf("%-4s  %-13s %s\n", marks[f->state], name, text);
    if (f->cost[0])
        printf("      %-13s costs: %s\n", "", f->cost);
    text_harmless(text, sizeof(text), f->fix);
    if (text[0])
        printf("      %-13s to do: %s\n", "", text);
}

static struct json *describe(const char *name, const struct doctor_finding *f)
{
    struct json *j = json_new_object();
    json_set(j, "check", json_new_string(name));
    json_set(j, "state", json_new_string(state_names[f->state]));
    json_set(j, "found", json_new_string(f->found));
    if (f->cost[0])
        json_set(j, "cost", json_new_string(f->cost));
    if (f->fix[0])
        json_set(j, "fix", json_new_string(f->fix));
    return j;
}

static enum doctor_state look(struct doctor *d, const struct doctor_check *check, struct json *all)
{
    struct doctor_finding f = {.state = DOCTOR_GOOD};
    check->look(d, &f);
    if (d->globals->json)
        json_append(all, describe(check->name, &f));
    else
        print_finding(check->name, &f);
    return f.state;
}

static int examine(struct doctor *d, int count, char **images)
{
    struct err e = ERR_INIT;
    AUTO_JSON struct json *all = json_new_array();
    size_t counts[DOCTOR_BAD + 1] = {0};
    for (const struct doctor_check *check = doctor_checks; check->name; check++)
        counts[look(d, check, all)]++;
    for (int i = 0; i < count && !cancel_is_set(d->globals->cancel); i++) {
        d->image = images[i];
        counts[look(d, &doctor_image_check, all)]++;
    }
    if (d->globals->json && print_json(all, &e) < 0)
        return report_error(&e);
    if (!d->globals->json && counts[DOCTOR_BAD] > 0)
        printf("\n%zu of these must be set right before anything is baked\n", counts[DOCTOR_BAD]);
    else if (!d->globals->json)
        puts("\nthis machine can bake");
    if (cancel_is_set(d->globals->cancel))
        return EXIT_INTERRUPTED;
    return counts[DOCTOR_BAD] > 0 ? EXIT_ENVIRONMENT : EXIT_ALL_READY;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct doctor d = {.globals = g};
    struct err e = ERR_INIT;
    struct parsing p = {.command = &command_doctor, .globals = g};
    int rc = options_parse(&p, &d, argc, argv, &e);
    int status = p.status;
    if (rc == 0 && status < 0 &&
        optind < argc) /* else the file of registries is a check of its own */
        rc = image_arguments_open(&d.images, g, &e);
    if (rc < 0)
        status = report_error(&e);
    else if (status < 0)
        status = examine(&d, argc - optind, argv + optind);
    image_arguments_fini(&d.images);
    return status;
}

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "[IMAGE...] [options]",
    .summary = "Look at what this machine has of what a bake needs, and what the rest costs.",
    .options = rows,
    .notes = "Each IMAGE is looked up in its registry, with the login that a bake would use. Exit "
             "status:\n"
             "0, also with notes; 3 when something is bad, so that nothing can be baked.",
    .run = run,
};
