/* SPDX-License-Identifier: MIT */
/* Private to the HTML report: its style sheet. */
#ifndef TB2_CLI_REPORT_HTML_H
#define TB2_CLI_REPORT_HTML_H

extern const char report_style[];

#endif
