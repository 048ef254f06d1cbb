/* SPDX-License-Identifier: Apache-2.0
 * The Vulkan device of the suites. */
#include "tests/support/vulkan.h"

#include <stdio.h>
#include <stdlib.h>

const char *kedge_test_vulkan_name(void) {
  const char *asked = getenv("KEDGE_TEST_VULKAN");
  return asked && *asked ? asked : "vulkan:llvmpipe";
}

bool kedge_test_vulkan(kedge_device **device) {
  setenv("KEDGE_VULKAN_VALIDATE", "1", 0);
  if (kedge_device_open(kedge_test_vulkan_name(), NULL, device) == KEDGE_OK) return true;
  printf("skipped: 1 suite, as no Vulkan device opens (%s)\n", kedge_message());
  return false;
}
