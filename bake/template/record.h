/* SPDX-License-Identifier: MIT */
/* Records of templates, and what points to them: keys and the catalog. */
#ifndef TB2_BAKE_TEMPLATE_RECORD_H
#define TB2_BAKE_TEMPLATE_RECORD_H

#include <stdbool.h>

#include "bake/template.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"

struct image;
struct machine_room;
struct store;
struct task;

/* Everything that can change the result of a task. */
struct key_inputs {
    const struct task *task;
    const struct image *image;
    const struct json *recipe; /* canonical */
    const struct machine_room *room;
};
int template_key(struct digest *out, const struct key_inputs *in, struct err *e) MUST_USE;

/* *found if a template with this key is in the store; *record is then its record. */
int template_find_key(struct store *s, const struct digest *key, bool *found, struct digest *record,
                      struct err *e) MUST_USE;
int template_load_record(struct template **out, struct store *s, const struct digest *record,
                         struct err *e) MUST_USE;
/* The same without marking the record as used. */
int template_peek(struct template **out, struct store *s, const struct digest *record,
                  struct err *e) MUST_USE;
/* Tasks that have all in common but their names share a record: the catalog says which is meant. */
int template_rename(struct template *t, const char *alias, const char *task,
                    struct err *e) MUST_USE;
/* A template from a document that is not stored yet; copies it. */
int template_from_document(struct template **out, const struct json *document,
                           struct err *e) MUST_USE;
/* Stores the document as a record and the key's pointer to it. */
int template_put(struct store *s, const struct digest *key, const struct json *document,
                 struct digest *record, struct err *e) MUST_USE;
/* Notes in `past` ({task: {record, time_ns}}) what the alias stands for, if it is newer than what is
 * there. */
int catalog_note(struct store *s, const char *alias, struct json *past, struct err *e) MUST_USE;
/* True for what may be an alias, or the name of a kept copy. */
bool alias_is_legal(const char *name);
/* Points the alias to the record. */
int catalog_put(struct store *s, const char *alias, const char *task, const struct digest *key,
                const struct digest *record, struct err *e) MUST_USE;

#endif
