/* SPDX-License-Identifier: MIT */
/* The contract server (tests/support/e2b_server.py) as a child of a test program. For tests alone:
 * what goes wrong ends the program. */
#ifndef TB2_TESTS_TEMPLATE_SERVER_H
#define TB2_TESTS_TEMPLATE_SERVER_H

#include "base/json.h"

#define TEMPLATE_SERVER_KEY "e2b_0123456789abcdef"

/* Setup and teardown of a cmocka group. */
int template_server_start(void **state);
int template_server_stop(void **state);
const char *template_server_url(void);
/* POST of JSON text to "/_setup", which starts over, or to "/_clock". */
void template_server_tell(const char *path, const char *text);
/* What has happened since; for json_free. */
struct json *template_server_report(void);

#endif
