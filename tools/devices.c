/* SPDX-License-Identifier: Apache-2.0
 * `kedge devices`: the backends built into this program, and the device that each opens. */
#include "tools/cli.h"

#include <jansson.h>
#include <stdio.h>

/* One backend: its description, or why it does not open. */
static void report(const char *name, bool json, json_t *list) {
  kedge_device *device = NULL;
  kedge_status status = kedge_device_open(name, NULL, &device);
  const char *text = status == KEDGE_OK ? kedge_device_description(device) : kedge_message();
  if (json)
    json_array_append_new(
        list, json_pack("{s:s, s:b, s:s}", "backend", name, "opens", status == KEDGE_OK, "device", text));
  else
    printf("%-8s %s%s\n", name, status == KEDGE_OK ? "" : "does not open: ", text);
  kedge_device_close(device);
}

int command_devices(int argc, char **argv) {
  bool json = false;
  const cli_option options[] = {{"--json", CLI_FLAG, &json, NULL, "print a JSON list", false, 0, 0}};
  const cli_spec spec = {.command = "devices",
                         .synopsis = "",
                         .summary = "Lists the compute backends and the device that each opens here.",
                         .options = options,
                         .option_count = sizeof options / sizeof *options,
                         .examples = "kedge devices\nkedge devices --json"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  json_t *list = json ? json_array() : NULL;
  for (uint32_t i = 0; kedge_backend_name(i); i++) report(kedge_backend_name(i), json, list);
  if (json) {
    json_dumpf(list, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(list);
  }
  return cli_finish("devices", KEDGE_OK);
}
