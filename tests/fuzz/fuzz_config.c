/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's configuration in YAML; what follows a 0 byte is an override. A configuration that is taken prints
 * as YAML that is taken too, and prints the same. */
#include "models/training/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *end = size ? memchr(data, 0, size) : NULL;
  size_t length = end ? (size_t)(end - data) : size;
  char *override = end ? strndup((const char *)end + 1, size - length - 1) : NULL;
  const char *const overrides[] = {override};
  kedge_config config, again;
  kedge_status status =
      kedge_config_parse(&config, "run.yaml", (const char *)data, length, overrides, override ? 1 : 0);
  free(override);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    return 0;
  }
  char *printed = kedge_config_yaml(&config);
  FUZZ_CHECK(printed);
  FUZZ_CHECK(kedge_config_parse(&again, "printed", printed, strlen(printed), NULL, 0) == KEDGE_OK);
  char *twice = kedge_config_yaml(&again);
  FUZZ_CHECK(twice && !strcmp(printed, twice));
  kedge_free(printed);
  kedge_free(twice);
  kedge_config_destroy(&config);
  kedge_config_destroy(&again);
  return 0;
}
