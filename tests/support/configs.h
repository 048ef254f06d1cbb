/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the configuration: texts that must load, texts that must not, and the print that loads to
 * itself. A failure inside fails the running cmocka test. */
#ifndef KEDGE_TESTS_SUPPORT_CONFIGS_H
#define KEDGE_TESTS_SUPPORT_CONFIGS_H

#include "models/training/config.h"

/* Loads; `text` stands for the file run.yaml. */
void test_config_load(kedge_config *config, const char *text);
void test_config_load_with(kedge_config *config, const char *text, const char *const *overrides,
                           size_t count);
/* `status` must be a failure and its message must hold `message`; `input` is shown if not. */
void test_config_message(const char *input, kedge_status status, const char *message);
void test_config_refuse(const char *text, const char *message);
void test_config_refuse_override(const char *text, const char *override, const char *message);
/* The YAML print loads, without notes, to the same prints; the JSON print is JSON. */
void test_config_round_trip(const kedge_config *config);

#endif
