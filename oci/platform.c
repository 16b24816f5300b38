/* SPDX-License-Identifier: MIT */
/*
 * Platforms: what this machine is, and which entry of an index fits.
 *
 * Variants are levels: an arm/v6 image runs on arm/v7, an amd64/v2 image on amd64/v3, never the
 * other way round. The host's amd64 level is taken as v1 whatever its CPU, since the choice decides
 * the bytes of a template that other machines load.
 */
#include "oci/internal.h"

#include <stdio.h>

#include "base/mem.h"

struct oci_platform oci_platform_host(void)
{
#if defined(__x86_64__)
    return (struct oci_platform){"linux", "amd64", NULL};
#elif defined(__aarch64__)
    return (struct oci_platform){"linux", "arm64", "v8"};
#elif defined(__arm__)
    return (struct oci_platform){"linux", "arm", "v7"};
#elif defined(__riscv) && __riscv_xlen == 64
    return (struct oci_platform){"linux", "riscv64", NULL};
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
    return (struct oci_platform){"linux", "ppc64le", NULL};
#elif defined(__s390x__)
    return (struct oci_platform){"linux", "s390x", NULL};
#elif defined(__i386__)
    return (struct oci_platform){"linux", "386", NULL};
#else
#error "name this architecture as GOARCH does"
#endif
}

const char *oci_architecture_name(const char *name)
{
    static const char *const other[][2] = {
        {"x86_64", "amd64"}, {"x86-64", "amd64"}, {"aarch64", "arm64"}, {"i386", "386"}};

    for (size_t i = 0; i < ARRAY_LEN(other); i++) {
        if (strcmp(name, other[i][0]) == 0)
            return other[i][1];
    }
    return name;
}

int oci_platform_parse(struct oci_platform *out, char text[OCI_PLATFORM_MAX], const char *from,
                       struct err *e)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyz0123456789_-./";
    size_t len = strlen(from);
    char *parts[3] = {text, NULL, NULL};
    size_t count = 1;

    if (len >= OCI_PLATFORM_MAX || from[strspn(from, legal)] != '\0')
        len = 0;
    memcpy(text, from, len);
    text[len] = '\0';
    for (char *at = strchr(text, '/'); at && count <= ARRAY_LEN(parts); at = strchr(at, '/')) {
        *at++ = '\0';
        if (count < ARRAY_LEN(parts))
            parts[count] = at;
        count++;
    }
    if (count < 2 || count > ARRAY_LEN(parts) || !*parts[0] || !*parts[1] ||
        (parts[2] && !*parts[2])) {
        err_set(e, ERR_INPUT, "\"%.100s\" is no platform", from);
        return err_hint(e, "write os/architecture or os/architecture/variant: linux/arm64");
    }
    *out = (struct oci_platform){parts[0], oci_architecture_name(parts[1]), parts[2]};
    return 0;
}

/* The level of a variant, "v7" being 7; absent means the architecture's usual one. -1: unknown. */
static int variant_level(const char *architecture, const char *variant)
{
    if (!variant || *variant == '\0') {
        if (strcmp(architecture, "arm64") == 0)
            return 8;
        return strcmp(architecture, "arm") == 0 ? 7 : 1;
    }
    if (variant[0] == 'v') /* "v8", and "8" as some builders write it */
        variant++;
    return variant[0] >= '1' && variant[0] <= '9' && variant[1] == '\0' ? variant[0] - '0' : -1;
}

/* How well an entry fits: 0 not at all, else higher is better. */
static int fit(const struct oci_platform *want, const struct oci_platform *have)
{
    if (strcmp(want->os, have->os) != 0 || strcmp(want->architecture, have->architecture) != 0)
        return 0;
    int wanted = variant_level(want->architecture, want->variant);
    int level = variant_level(have->architecture, have->variant);
    if (level < 0 || wanted < 0) {
        const char *a = want->variant ? want->variant : "";
        const char *b = have->variant ? have->variant : "";
        return strcmp(a, b) == 0 ? 1 : 0;
    }
    return level <= wanted ? level : 0;
}

/* An entry of an index as far as the choice needs it; strings are borrowed from the JSON. */
struct candidate {
    struct oci_platform platform;
    bool has_platform;
    bool is_attestation; /* or anything else that never runs */
};

static int read_candidate(struct candidate *out, const struct json *entry, struct err *e)
{
    struct candidate c = {.platform = {"", "", NULL}};
    struct json *platform = NULL;
    struct json *annotations = NULL;
    const char *os = NULL;
    const char *architecture = NULL;
    const char *reference = NULL;
    const char *artifact = NULL;

    if (json_kind(entry) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "it is no object");
    if (json_get_object_opt(entry, "platform", &platform, e) < 0 ||
        json_get_object_opt(entry, "annotations", &annotations, e) < 0 ||
        json_get_string_opt(entry, "artifactType", &artifact, e) < 0)
        return -(int)e->class;
    if (annotations &&
        json_get_string_opt(annotations, "vnd.docker.reference.type", &reference, e) < 0)
        return -(int)e->class;
    if (platform && (json_get_string_opt(platform, "os", &os, e) < 0 ||
                     json_get_string_opt(platform, "architecture", &architecture, e) < 0 ||
                     json_get_string_opt(platform, "variant", &c.platform.variant, e) < 0))
        return -(int)e->class;
    if (os && *os && architecture && *architecture) {
        c.has_platform = true;
        c.platform.os = os;
        c.platform.architecture = oci_architecture_name(architecture);
    }
    c.is_attestation =
        reference || (artifact && *artifact) ||
        (c.has_platform && strcmp(os, "unknown") == 0 && strcmp(architecture, "unknown") == 0);
    *out = c;
    return 0;
}

static int note_platform(struct buf *seen, const struct candidate *c, struct err *e)
{
    const char *variant = c->platform.variant;

    return buf_printf(seen, e, "%s%.40s/%.40s%s%.20s", seen->len ? ", " : "", c->platform.os,
                      c->platform.architecture, variant && *variant ? "/" : "",
                      variant ? variant : "");
}

static int no_match(const struct buf *seen, size_t unnamed, const struct oci_platform *want,
                    struct err *e)
{
    char text[64] = "no platform at all";
    if (unnamed > 1)
        snprintf(text, sizeof(text), "%zu entries that name no platform", unnamed);
    err_set(e, ERR_NOTFOUND, "the image has nothing for %s/%s%s%s; it has: %.600s%s%s", want->os,
            want->architecture, want->variant ? "/" : "", want->variant ? want->variant : "",
            seen->len ? buf_text(seen) : "", seen->len && unnamed > 1 ? ", " : "",
            seen->len && unnamed < 2 ? "" : text);
    return -(int)e->class;
}

struct choice {
    size_t index;   /* of the entry to take, or SIZE_MAX */
    bool is_named;  /* it names the platform */
    size_t unnamed; /* entries that name none */
};

/* Entries without a platform count only when no other
 * fits, and only when there is one of them: with two the choice would be a guess. */
static int choose(struct choice *out, const struct json *entries, const struct oci_platform *want,
                  struct buf *seen, struct err *e)
{
    size_t unnamed = SIZE_MAX;
    int best_fit = 0;

    *out = (struct choice){.index = SIZE_MAX};

    for (size_t i = 0; i < json_length(entries); i++) {
        struct candidate c;
        if (read_candidate(&c, json_element(entries, i), e) < 0)
            return err_in(e, "entry %zu", i + 1);
        if (c.is_attestation)
            continue;
        if (!c.has_platform) {
            unnamed = i;
            out->unnamed++;
            continue;
        }
        if (note_platform(seen, &c, e) < 0)
            return -(int)e->class;
        int this_fit = fit(want, &c.platform);
        if (this_fit > best_fit) {
            out->index = i;
            out->is_named = true;
            best_fit = this_fit;
        }
    }
    if (!out->is_named && out->unnamed == 1)
        out->index = unnamed;
    return 0;
}

int oci_index_select(struct oci_descriptor *out, bool *needs_check, const struct json *index,
                     const struct oci_platform *platform, struct err *e)
{
    AUTO_BUF struct buf seen;
    struct json *entries = NULL;
    struct choice choice;

    buf_init(&seen, LIMIT_MANIFEST);
    if (json_kind(index) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "index: the document is no JSON object");
    if (json_get_array(index, "manifests", &entries, e) < 0)
        return err_in(e, "index");
    if (json_length(entries) > OCI_MAX_DESCRIPTORS)
        return err_set(e, ERR_LIMIT, "index: %zu entries, more than %d", json_length(entries),
                       OCI_MAX_DESCRIPTORS);
    if (choose(&choice, entries, platform, &seen, e) < 0)
        return err_in(e, "index");
    if (choice.index == SIZE_MAX)
        return no_match(&seen, choice.unnamed, platform, e);
    if (oci_descriptor_read(out, json_element(entries, choice.index), e) < 0)
        return err_in(e, "index: entry %zu", choice.index + 1);
    *needs_check = !choice.is_named;
    return 0;
}
