/* SPDX-License-Identifier: Apache-2.0
 * `kedge ops`: the table of operations, whether each has a gradient, and which backends run it. */
#include "core/device.h"
#include "tools/cli.h"

#include <jansson.h>
#include <stdio.h>

enum { MAX_BACKENDS = 16 };

/* What a backend does with an op. A backend that opens runs every op: a missing kernel does not link. */
static const char *support(const kedge_device *device) {
  if (!device) return "-";
  return device->limits.computes ? "yes" : "plans";
}

static void print_table(kedge_device *const *devices) {
  printf("%-20s %-12s %-9s", "op", "family", "gradient");
  for (uint32_t i = 0; kedge_backend_name(i) && i < MAX_BACKENDS; i++) printf(" %-7s", kedge_backend_name(i));
  printf(" meaning\n");
  for (uint32_t op = 0; op < KEDGE_OP_COUNT; op++) {
    const kedge_op_info *info = kedge_op_get((kedge_op)op);
    printf("%-20s %-12s %-9s", info->name, info->family, info->flags & KEDGE_OP_NODIFF ? "-" : "yes");
    for (uint32_t i = 0; kedge_backend_name(i) && i < MAX_BACKENDS; i++) printf(" %-7s", support(devices[i]));
    printf(" %s\n", info->doc);
  }
}

static void print_json(kedge_device *const *devices) {
  json_t *list = json_array();
  for (uint32_t op = 0; op < KEDGE_OP_COUNT; op++) {
    const kedge_op_info *info = kedge_op_get((kedge_op)op);
    json_t *backends = json_object();
    for (uint32_t i = 0; kedge_backend_name(i) && i < MAX_BACKENDS; i++)
      json_object_set_new(backends, kedge_backend_name(i), json_string(support(devices[i])));
    json_t *row = json_pack("{s:s, s:s, s:b, s:s, s:o}", "op", info->name, "family", info->family, "gradient",
                            !(info->flags & KEDGE_OP_NODIFF), "meaning", info->doc, "backends", backends);
    json_array_append_new(list, row);
  }
  json_dumpf(list, stdout, JSON_INDENT(2));
  putchar('\n');
  json_decref(list);
}

int command_ops(int argc, char **argv) {
  bool json = false;
  const cli_option options[] = {{"--json", CLI_FLAG, &json, NULL, "print a JSON list", false, 0, 0}};
  const cli_spec spec = {.command = "ops",
                         .synopsis = "",
                         .summary =
                             "Prints every operation, whether it has a gradient, and which backends run it.",
                         .options = options,
                         .option_count = sizeof options / sizeof *options,
                         .examples = "kedge ops\nkedge ops --json"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  kedge_device *devices[MAX_BACKENDS] = {0};
  /* One that does not open here stays NULL and is shown as such; `kedge devices` says why. */
  for (uint32_t i = 0; kedge_backend_name(i) && i < MAX_BACKENDS; i++)
    kedge_device_open(kedge_backend_name(i), NULL, &devices[i]);
  if (json)
    print_json(devices);
  else
    print_table(devices);
  for (uint32_t i = 0; i < MAX_BACKENDS; i++) kedge_device_close(devices[i]);
  return cli_finish("ops", KEDGE_OK);
}
