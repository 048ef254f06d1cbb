/* SPDX-License-Identifier: Apache-2.0
 * The Vulkan device of the suites: $KEDGE_TEST_VULKAN, else lavapipe, under the validation layers. */
#ifndef KEDGE_TESTS_VULKAN_H
#define KEDGE_TESTS_VULKAN_H

#include "core/kedge.h"

#include <stdbool.h>

/* Opens it; where there is none, prints one line "skipped: ..." and returns false. */
bool kedge_test_vulkan(kedge_device **device);
/* The name that opens it, for kedge_device_open. */
const char *kedge_test_vulkan_name(void);

#endif
