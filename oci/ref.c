/* SPDX-License-Identifier: MIT */
/*
 * Image names.
 *
 * The grammar is the one of distribution's reference package. What makes it awkward is that a name
 * may or may not start with a host: the first component is one if it holds a dot, a colon, an
 * upper-case letter, or is "localhost"; all else belongs to docker.io. The text is cut from the
 * back: "@digest" first, then ":tag" after the last slash, then the host from the front.
 */
#include "oci/oci.h"

#include "base/mem.h"

/* Limits of the reference grammar: repository (host included) and tag. */
enum { NAME_MAX_LEN = 255, TAG_MAX_LEN = 128 };

static const char *transport_prefix(enum oci_transport transport)
{
    switch (transport) {
    case OCI_REGISTRY:
        return "docker://";
    case OCI_LAYOUT:
        return "oci:";
    case OCI_LAYOUT_ARCHIVE:
        return "oci-archive:";
    case OCI_DOCKER_ARCHIVE:
        return "docker-archive:";
    }
    return "";
}

static bool is_lower_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static bool is_word(char c)
{
    return is_lower_alnum(c) || is_upper(c) || c == '_';
}

static bool tag_is_legal(const char *tag)
{
    size_t len = strlen(tag);

    if (len == 0 || len > TAG_MAX_LEN || !is_word(tag[0]))
        return false;
    for (size_t i = 1; i < len; i++) {
        if (!is_word(tag[i]) && tag[i] != '.' && tag[i] != '-')
            return false;
    }
    return true;
}

/* Length of the separator at `text`: one dot, one or two underscores, or any number of dashes. */
static size_t separator_len(const char *text)
{
    if (text[0] == '.')
        return 1;
    if (text[0] == '_')
        return text[1] == '_' ? 2 : 1;
    return strspn(text, "-");
}

/* Components of lower-case letters and digits with single separators inside, joined by '/'. */
static bool repository_is_legal(const char *path)
{
    for (;;) {
        if (!is_lower_alnum(*path))
            return false;
        while (is_lower_alnum(*path))
            path++;
        if (*path == '\0')
            return true;
        if (*path == '/') {
            path++;
            continue;
        }
        size_t len = separator_len(path);
        if (len == 0)
            return false;
        path += len;
    }
}

/* Labels of letters, digits and inner dashes, joined by dots. */
static bool host_name_is_legal(const char *host, size_t len)
{
    if (len == 0)
        return false;
    for (size_t i = 0; i < len; i++) {
        bool edge = i == 0 || i + 1 == len || host[i - 1] == '.' || host[i + 1] == '.';
        bool alnum = is_lower_alnum(host[i]) || is_upper(host[i]);

        if (!alnum && (edge || (host[i] != '-' && host[i] != '.')))
            return false;
    }
    return true;
}

static bool port_is_legal(const char *text)
{
    size_t len = strspn(text, "0123456789");

    return len > 0 && len <= 5 && text[len] == '\0';
}

/* name, name:port, [v6], [v6]:port */
static bool host_is_legal(const char *host)
{
    const char *rest;

    if (host[0] == '[') {
        size_t len = strspn(host + 1, "0123456789abcdefABCDEF:.");
        if (len == 0 || host[1 + len] != ']')
            return false;
        rest = host + 1 + len + 1;
    } else {
        size_t len = strcspn(host, ":");
        if (!host_name_is_legal(host, len))
            return false;
        rest = host + len;
    }
    return *rest == '\0' || (*rest == ':' && port_is_legal(rest + 1));
}

static bool looks_like_host(const char *text, size_t len)
{
    if (len == strlen("localhost") && strncmp(text, "localhost", len) == 0)
        return true;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '.' || text[i] == ':' || is_upper(text[i]))
            return true;
    }
    return false;
}

static bool has_upper_case(const char *text)
{
    for (; *text; text++) {
        if (is_upper(*text))
            return true;
    }
    return false;
}

/* Cuts "@digest" off the end of `text`, if it is there; a directory may have an '@' of its own. */
static int take_digest(struct oci_ref *out, char *text, struct err *e)
{
    char *at = strrchr(text, '@');

    if (!at || (out->transport != OCI_REGISTRY && strncmp(at, "@sha", strlen("@sha")) != 0))
        return 0;
    if (digest_parse(&out->digest, at + 1, e) < 0)
        return err_set(e, ERR_INPUT, "\"%.200s\" is no sha256 or sha512 digest", at + 1);
    *at = '\0';
    out->has_digest = true;
    return 0;
}

/* Cuts ":tag" off the end of `text`, if it is there. */
static int take_tag(struct oci_ref *out, char *text, struct err *e)
{
    char *slash = strrchr(text, '/');
    char *colon = strrchr(slash ? slash : text, ':');

    if (!colon)
        return 0;
    if (!tag_is_legal(colon + 1))
        return err_set(e, ERR_INPUT, "\"%.200s\" is no legal tag", colon + 1);
    out->tag = mem_strdup(colon + 1);
    if (!out->tag)
        return err_nomem(e, "image name");
    *colon = '\0';
    return 0;
}

/* docker.io has a few names, and a directory for repositories without one. */
static int split_host(struct oci_ref *out, const char *text, struct err *e)
{
    const char *slash = strchr(text, '/');
    const char *path = text;

    if (slash && looks_like_host(text, (size_t)(slash - text))) {
        out->host = mem_strndup(text, (size_t)(slash - text));
        path = slash + 1;
    } else {
        out->host = mem_strdup("docker.io");
    }
    if (!out->host)
        return err_nomem(e, "image name");
    if (strcmp(out->host, "index.docker.io") == 0 ||
        strcmp(out->host, "registry-1.docker.io") == 0) {
        free(out->host);
        out->host = mem_strdup("docker.io");
    }
    if (out->host && strcmp(out->host, "docker.io") == 0 && !strchr(path, '/'))
        out->repository = mem_printf("library/%s", path);
    else
        out->repository = mem_strdup(path);
    if (!out->host || !out->repository)
        return err_nomem(e, "image name");
    return 0;
}

static int parse_registry(struct oci_ref *out, char *text, struct err *e)
{
    if (take_digest(out, text, e) < 0 || take_tag(out, text, e) < 0 || split_host(out, text, e) < 0)
        return -(int)e->class;
    if (!host_is_legal(out->host))
        return err_set(e, ERR_INPUT, "\"%.200s\" is no legal registry host", out->host);
    if (strlen(out->host) + 1 + strlen(out->repository) > NAME_MAX_LEN)
        return err_set(e, ERR_INPUT, "the name is longer than %d bytes", NAME_MAX_LEN);
    if (!repository_is_legal(out->repository)) {
        err_set(e, ERR_INPUT, "\"%.200s\" is no legal repository name", out->repository);
        if (has_upper_case(out->repository))
            return err_hint(e, "repository names are lower case");
        return -(int)e->class;
    }
    if (!out->tag && !out->has_digest) {
        out->tag = mem_strdup("latest");
        if (!out->tag)
            return err_nomem(e, "image name");
    }
    return 0;
}

/* A name in a layout: containers-transports(5) takes whatever looks like an image name. */
static bool layout_name_is_legal(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > NAME_MAX_LEN || !is_word(name[0]))
        return false;
    for (size_t i = 1; i < len; i++) {
        if (!is_word(name[i]) && !strchr(".-/:@+", name[i]))
            return false;
    }
    return true;
}

/* "@3" */
static int take_index(struct oci_ref *out, const char *text, struct err *e)
{
    size_t len = strspn(text + 1, "0123456789");

    if (len == 0 || len > 6 || text[1 + len] != '\0')
        return err_set(e, ERR_INPUT, "\"%.100s\" is no number of an image", text);
    out->has_index = true;
    out->index = (size_t)strtoul(text + 1, NULL, 10);
    return 0;
}

/* The name of an image in an archive of `docker save`, in full. */
static int take_docker_name(struct oci_ref *out, const char *text, struct err *e)
{
    struct oci_ref name;

    if (oci_ref_parse(&name, text, e) < 0)
        return -(int)e->class;
    bool usable = name.transport == OCI_REGISTRY && !name.has_digest;
    out->tag = usable ? oci_ref_print(&name) : NULL;
    oci_ref_fini(&name);
    if (!usable)
        return err_set(e, ERR_INPUT, "\"%.200s\": images in such an archive have names with tags",
                       text);
    return out->tag ? 0 : err_nomem(e, "image name");
}

/* PATH[:NAME | :@N]: the first colon ends the path. */
static int parse_file(struct oci_ref *out, char *text, struct err *e)
{
    if (out->transport != OCI_DOCKER_ARCHIVE && take_digest(out, text, e) < 0)
        return -(int)e->class;
    char *name = strchr(text, ':');
    if (name)
        *name++ = '\0';
    if (*text == '\0')
        return err_set(e, ERR_INPUT, "no path after \"%s\"", transport_prefix(out->transport));
    out->repository = mem_strdup(text);
    if (!out->repository)
        return err_nomem(e, "image name");
    if (!name)
        return 0;
    if (*name == '@')
        return take_index(out, name, e);
    if (out->transport == OCI_DOCKER_ARCHIVE)
        return take_docker_name(out, name, e);
    if (!layout_name_is_legal(name))
        return err_set(e, ERR_INPUT, "\"%.200s\" is no legal tag", name);
    out->tag = mem_strdup(name);
    return out->tag ? 0 : err_nomem(e, "image name");
}

/* Puts the name in front of the message, without what could be a login ("user:password@host"). */
static int name_at_fault(struct err *e, const char *text)
{
    const char *at = strrchr(text, '@');

    if (at && strncmp(at, "@sha", strlen("@sha")) != 0)
        return err_in(e, "image name \"***%.300s\"", at);
    return err_in(e, "image name \"%.300s\"", text);
}

static int refuse_transport(const char *text, struct err *e)
{
    err_set(e, ERR_UNSUPPORTED, "images are not read from \"%.*s\"", (int)strcspn(text, ":") + 1,
            text);
    return err_hint(e, "oci:, oci-archive: and docker-archive: are; skopeo copy makes any of them");
}

/* Cuts the transport off the front. */
static const char *take_transport(struct oci_ref *out, const char *text)
{
    static const enum oci_transport all[] = {OCI_REGISTRY, OCI_LAYOUT, OCI_LAYOUT_ARCHIVE,
                                             OCI_DOCKER_ARCHIVE};

    out->transport = OCI_REGISTRY;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        const char *prefix = transport_prefix(all[i]);
        if (strncmp(text, prefix, strlen(prefix)) == 0) {
            out->transport = all[i];
            return text + strlen(prefix);
        }
    }
    return text;
}

/* What other tools call so; as a host and port they would only be looked for in vain. */
static bool is_foreign_transport(const char *text)
{
    static const char *const all[] = {
        "dir:", "docker-daemon:", "containers-storage:", "ostree:", "sif:"};

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (strncmp(text, all[i], strlen(all[i])) == 0)
            return true;
    }
    return false;
}

int oci_ref_parse(struct oci_ref *out, const char *text, struct err *e)
{
    struct oci_ref ref = {0};
    const char *body = take_transport(&ref, text);
    int rc;

    AUTO_FREE char *copy = mem_strdup(body);
    if (!copy)
        return err_nomem(e, "image name");

    if (*text == '\0' || strcmp(text, "docker://") == 0)
        rc = err_set(e, ERR_INPUT, "the name is empty");
    else if (strstr(body, "://"))
        rc = err_set(e, ERR_INPUT, "an image name is no URL");
    else if (ref.transport != OCI_REGISTRY)
        rc = parse_file(&ref, copy, e);
    else if (is_foreign_transport(body))
        rc = refuse_transport(body, e);
    else
        rc = parse_registry(&ref, copy, e);
    if (rc < 0) {
        oci_ref_fini(&ref);
        return name_at_fault(e, text);
    }
    *out = ref;
    return 0;
}

void oci_ref_fini(struct oci_ref *r)
{
    free(r->host);
    free(r->repository);
    free(r->tag);
    *r = (struct oci_ref){.transport = OCI_REGISTRY};
}

char *oci_ref_print(const struct oci_ref *r)
{
    char digest[DIGEST_TEXT_MAX] = "";
    bool registry = r->transport == OCI_REGISTRY;

    if (r->has_index)
        return mem_printf("%s%s:@%zu", transport_prefix(r->transport), r->repository, r->index);
    if (r->has_digest)
        digest_print(&r->digest, digest);
    return mem_printf("%s%s%s%s%s%s%s", registry ? r->host : transport_prefix(r->transport),
                      registry ? "/" : "", r->repository, r->tag ? ":" : "", r->tag ? r->tag : "",
                      r->has_digest ? "@" : "", digest);
}
