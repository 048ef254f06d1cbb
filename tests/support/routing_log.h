/* SPDX-License-Identifier: Apache-2.0
 *
 * The real routing log of the shared data folder (DeepSeek-V2-Lite's geometry) as a routing trace. */
#ifndef KEDGE_TESTS_ROUTING_LOG_H
#define KEDGE_TESTS_ROUTING_LOG_H

#include "models/trace/trace.h"

enum { TEST_LOG_LAYERS = 26, TEST_LOG_EXPERTS = 64, TEST_LOG_TOPK = 6 };

/* Reads a domain, "intent" or "summary": ids, samples, and layers numbered 1 to 26. False, with a printed
 * line, where the folder is absent. The trace is the caller's to destroy. */
bool test_routing_log(const char *domain, kedge_trace *trace);

#endif
