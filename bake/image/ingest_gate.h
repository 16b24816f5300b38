/* SPDX-License-Identifier: MIT */
/* Room for layers that are ingested. */
#ifndef TB2_BAKE_IMAGE_INGEST_GATE_H
#define TB2_BAKE_IMAGE_INGEST_GATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct crew;

/* Layers of all tasks pass through one gate: `workers` threads hash and compress for all of them, and
 * only a few are read at once. Thread-safe. */
struct ingest_gate;
int ingest_gate_new(struct ingest_gate **out, size_t workers, struct err *e) MUST_USE;
void ingest_gate_free(struct ingest_gate *g);             /* when nobody is inside */
void ingest_gate_enter(struct ingest_gate *g, bool wide); /* wide: may take OCI_WINDOW_MAX */
void ingest_gate_leave(struct ingest_gate *g, bool wide);
struct crew *ingest_gate_crew(struct ingest_gate *g);

#endif
