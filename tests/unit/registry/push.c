/* SPDX-License-Identifier: MIT */
/* Pushes and ranged reads against a scripted registry. */
#include <stdlib.h>

#include "world.h"

/* What the registry does, and what it has seen. */
struct script {
    bool has;       /* the blob is there */
    bool mounts;    /* it can be mounted */
    bool elsewhere; /* the upload goes on at another host (this server by another name) */
    bool no_ranges; /* answers a range with everything */
    unsigned busy;  /* so many uploads are answered by 503 first */
    unsigned port;
    unsigned posts, patches, puts, manifests;
    uint64_t received;
    char ranges[2][64];
    char digest[128];
    char authorization[64];
    char type[128];
};

static void upload(struct script *s, const struct fake_request *request, struct fake_reply *reply)
{
    if (request->method[0] == 'P' && request->method[1] == 'U') {
        s->puts++;
        const char *digest = strstr(request->path, "digest=");
        snprintf(s->digest, sizeof(s->digest), "%s", digest ? digest + 7 : "");
    } else {
        if (s->patches < 2)
            (void)fake_header(request, "Content-Range", s->ranges[s->patches],
                              sizeof(s->ranges[0]));
        s->patches++;
    }
    s->received += request->body_len;
    s->authorization[0] = '\0';
    (void)fake_header(request, "Authorization", s->authorization, sizeof(s->authorization));
    if (s->busy > 0) {
        s->busy--;
        reply_text(reply, 503, "");
        return;
    }
    reply->status = request->method[1] == 'U' ? 201 : 202;
    fake_add_header(reply, "Location: /v2/team/app/blobs/uploads/2?state=%u", s->patches);
}

static void handle(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    static const char digits[] = "0123456789";
    struct script *s = ctx;
    if (strcmp(request->method, "HEAD") == 0) {
        reply->status = s->has ? 200 : 404;
    } else if (strcmp(request->method, "GET") == 0) {
        size_t from = s->no_ranges ? 0 : fake_range(request);
        reply->status = s->no_ranges ? 200 : 206;
        if (!s->no_ranges)
            fake_add_header(reply, "Content-Range: bytes %zu-%zu/10", from, from + 2);
        reply->body = digits + from;
        reply->body_len = s->no_ranges ? 10 : 3;
    } else if (strstr(request->path, "/manifests/")) {
        s->manifests++;
        (void)fake_header(request, "Content-Type", s->type, sizeof(s->type));
        reply->status = 201;
    } else if (strcmp(request->method, "POST") == 0) {
        s->posts++;
        reply->status = s->mounts && strstr(request->path, "mount=") ? 201 : 202;
        if (s->elsewhere)
            fake_add_header(reply, "Location: http://localhost:%u/up?signed=1", s->port);
        else
            fake_add_header(reply, "Location: /v2/team/app/blobs/uploads/1");
    } else {
        upload(s, request, reply);
    }
}

static int push(struct world *w, const char *mount_from, bool *sent, struct err *e)
{
    enum registry_push_result result = PUSH_WAS_THERE;
    struct source from;
    struct oci_descriptor d = w->blob;
    d.size = 1000;
    digest_bytes(&d.digest, w->bytes, 1000);
    assert_int_equal(source_from_memory(&from, w->bytes, 1000, e), 0);
    int rc = registry_push_blob(w->client, &w->ref,
                                &(struct registry_upload){&d, &from, mount_from}, &result, e);
    *sent = result == PUSH_SENT;
    source_close(&from);
    return rc;
}

static void blobs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct script script;
        const char *mount_from;
        int result;
        bool sent;
        unsigned posts, puts;
    } rows[] = {
        {"new", {0}, NULL, 0, true, 1, 1},
        {"there", {.has = true}, NULL, 0, false, 0, 0},
        {"mounted", {.mounts = true}, "team/base", 0, false, 1, 0},
        {"not mounted", {.mounts = false}, "team/base", 0, true, 1, 1},
        {"busy twice", {.busy = 2}, NULL, 0, true, 3, 3},
        {"busy for ever", {.busy = 99}, NULL, -ERR_NET, false, 3, 3},
        {"another host", {.elsewhere = true}, NULL, 0, true, 1, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct world w;
        struct script s = rows[i].script;
        bool sent = true;
        world_start(&w, handle, &s, NULL);
        s.port = fake_http_port(w.server);
        int rc = push(&w, rows[i].mount_from, &sent, &e);
        if (rc != rows[i].result || (rc == 0 && sent != rows[i].sent) || s.posts != rows[i].posts ||
            s.puts != rows[i].puts)
            fail_msg("%s: %d, sent %d, %u posts, %u puts: %s", rows[i].name, rc, sent, s.posts,
                     s.puts, e.text);
        if (rows[i].puts > 0)
            assert_int_equal(strncmp(s.digest, "sha256:", 7), 0);
        assert_string_equal(s.authorization, "");
        world_stop(&w);
    }
}

/* ---- Uploads in pieces (case 75) ---- */

/* A registry that keeps what arrives, and says with each answer where the upload goes on. */
struct pieces {
    bool no_status;       /* forgets uploads that broke */
    unsigned breaks;      /* so many pieces end with a closed connection, half of them kept */
    unsigned short_keeps; /* so many pieces are kept only in part, which the answer says */
    unsigned lost; /* before the piece with this number (from 1) all but 500 bytes are lost: 416 */
    unsigned step; /* of the location: only the newest one works */
    unsigned patches, statuses, posts;
    bool whole; /* closed with the right digest */
    uint8_t bytes[4000];
    size_t len;
    bool ranged_put; /* a PUT had a Content-Range */
    char wrong[200]; /* what was not as it should be */
};

static void locate(struct pieces *p, struct fake_reply *reply)
{
    p->step++;
    if (p->step % 2)
        fake_add_header(reply, "Location: /v2/elsewhere/uploads/%u?_state=a%%3Db", p->step);
    else
        fake_add_header(reply, "Location: ../uploads/%u", p->step);
    if (p->len > 0)
        fake_add_header(reply, "Range: 0-%zu", p->len - 1);
}

static bool at_newest(struct pieces *p, const char *path)
{
    char want[80];
    snprintf(want, sizeof(want), p->step % 2 ? "/uploads/%u?_state=a%%3Db" : "/uploads/%u",
             p->step);
    if (strstr(path, want))
        return true;
    snprintf(p->wrong, sizeof(p->wrong), "%.100s is not the newest location, %u", path, p->step);
    return false;
}

static void take_piece(struct pieces *p, const struct fake_request *request,
                       struct fake_reply *reply)
{
    char range[64] = "";
    size_t keep = request->body_len;
    (void)fake_header(request, "Content-Range", range, sizeof(range));
    p->patches++;
    if (p->patches == p->lost)
        p->len = 500;
    if (strtoul(range, NULL, 10) != p->len) {
        reply->status = 416;
        locate(p, reply);
        return;
    }
    reply->status = 202;
    if (p->breaks > 0 || p->short_keeps > 0)
        keep /= 2;
    if (p->breaks > 0) {
        p->breaks--;
        reply->end = FAKE_CLOSE;
        reply->status = 500;
    } else if (p->short_keeps > 0) {
        p->short_keeps--;
    }
    if (p->len + keep <= sizeof(p->bytes))
        memcpy(p->bytes + p->len, request->body, keep);
    p->len += keep;
    if (reply->status == 202)
        locate(p, reply);
}

static void handle_pieces(void *ctx, const struct fake_request *request, struct fake_reply *reply)
{
    struct pieces *p = ctx;
    if (strcmp(request->method, "HEAD") == 0) {
        reply->status = 404;
    } else if (strcmp(request->method, "POST") == 0) {
        p->posts++;
        p->len = 0;
        reply->status = 202;
        locate(p, reply);
    } else if (!at_newest(p, request->path)) {
        reply->status = 400;
    } else if (strcmp(request->method, "GET") == 0) {
        p->statuses++;
        reply->status = p->no_status ? 404 : 204;
        if (!p->no_status)
            locate(p, reply);
    } else if (strcmp(request->method, "PATCH") == 0) {
        take_piece(p, request, reply);
    } else {
        char range[64];
        p->ranged_put |= fake_header(request, "Content-Range", range, sizeof(range));
        const char *digest =
            strstr(request->path, p->step % 2 ? "&digest=sha256:" : "?digest=sha256:");
        p->whole = digest != NULL;
        reply->status = 201;
    }
}

static void uploads_go_on(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct pieces registry;
        unsigned posts, patches, statuses;
    } rows[] = {
        {"in pieces", {0}, 1, 4, 0},
        {"pieces lost: 416", {.lost = 3}, 1, 6, 1},
        {"kept in part", {.short_keeps = 1}, 1, 4, 0},
        {"connection breaks", {.breaks = 1}, 1, 4, 1},
        {"breaks more often than there are tries", {.breaks = 4}, 1, 6, 4},
        {"uploads are forgotten", {.breaks = 1, .no_status = true}, 2, 5, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct world w;
        struct pieces p = rows[i].registry;
        struct source from;
        world_start(&w, handle_pieces, &p, NULL);
        struct oci_descriptor d = w.blob;
        d.size = 3500;
        digest_bytes(&d.digest, w.bytes, d.size);
        assert_int_equal(source_from_memory(&from, w.bytes, d.size, &e), 0);
        int rc = registry_push_blob(w.client, &w.ref, &(struct registry_upload){&d, &from, NULL},
                                    NULL, &e);
        source_close(&from);
        if (rc < 0 || p.wrong[0] || !p.whole || p.ranged_put || p.len != 3500 ||
            memcmp(p.bytes, w.bytes, 3500) != 0)
            fail_msg("%s: %d %s%s, whole %d, %zu bytes", rows[i].name, rc, e.text, p.wrong, p.whole,
                     p.len);
        if (p.posts != rows[i].posts || p.patches != rows[i].patches ||
            p.statuses != rows[i].statuses)
            fail_msg("%s: %u posts, %u pieces, %u questions", rows[i].name, p.posts, p.patches,
                     p.statuses);
        world_stop(&w);
    }
}

static void manifests_go_under_their_tag(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct world w;
    struct script s = {0};
    AUTO_BUF struct buf body;
    buf_init(&body, 100);
    assert_int_equal(buf_add_text(&body, "{}", &e), 0);
    world_start(&w, handle, &s, NULL);
    assert_int_equal(registry_push_manifest(w.client, &w.ref, "application/x", &body, &e), 0);
    assert_int_equal(s.manifests, 1);
    assert_string_equal(s.type, "application/x");
    world_stop(&w);
}

static void parts_of_blobs(void **state)
{
    (void)state;
    for (int no_ranges = 0; no_ranges < 2; no_ranges++) {
        struct err e = ERR_INIT;
        struct world w;
        struct script s = {.no_ranges = no_ranges};
        AUTO_BUF struct buf out;
        buf_init(&out, 10);
        world_start(&w, handle, &s, NULL);
        struct registry_range range = {.blob = w.blob.digest, .off = 4, .len = 3};
        assert_int_equal(registry_blob_range(w.client, &w.ref, &range, &out, &e), 0);
        assert_string_equal(buf_text(&out), "456");
        range.len = 7; /* more than there is */
        assert_int_equal(registry_blob_range(w.client, &w.ref, &range, &out, &e), -ERR_NET);
        assert_int_equal(out.len, 3);
        range.deadline_ms = 1; /* long past */
        assert_int_equal(registry_blob_range(w.client, &w.ref, &range, &out, &e), -ERR_TIMEOUT);
        world_stop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blobs),
        cmocka_unit_test(uploads_go_on),
        cmocka_unit_test(manifests_go_under_their_tag),
        cmocka_unit_test(parts_of_blobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
