/* SPDX-License-Identifier: Apache-2.0
 * `kedge bench`: how fast this machine runs Kedge, beside what it could do at best (bench.h). */
#include "tools/bench.h"

#include "backends/cpu/cpu.h"
#include "tools/cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_shape shapes[] = {
    {"laptop", 256, 128, 16, 4, 1024, 4, 2, 4096},
    {"qwen3", 2048, 768, 128, 8, 4096, 32, 4, 4096},
    {"moonlight", 2048, 1408, 64, 6, 4096, 16, 16, 4096},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const char *const parts[] = {"ops", "layer", "step", "generate", "products"};
enum { PARTS = sizeof parts / sizeof *parts };

typedef struct bench_command {
  bench_options options;
  const char *dtype;
  cli_list shapes;
  const char *device;
  int64_t threads, tokens;
  bool json;
} bench_command;

/* ---- Output
 * ------------------------------------------------------------------------------------------------------ */

static bool on_cpu(const kedge_device *device) {
  return !strcmp(kedge_device_backend(device), "cpu");
}

static double peak_of(const bench_report *r, const bench_line *line) {
  return r->peaks[line->dtype == KEDGE_BF16];
}

static int by_seconds(const void *a, const void *b) {
  const kedge_op_time *x = a, *y = b;
  return x->seconds < y->seconds ? 1 : -(x->seconds > y->seconds);
}

static void print_shares(const bench_line *line) {
  double total = 0;
  for (uint32_t i = 0; i < line->op_count; i++) total += line->ops[i].seconds;
  for (uint32_t i = 0; i < line->op_count && total > 0; i++) {
    const double share = 100 * line->ops[i].seconds / total;
    if (share >= 0.5) printf("    %5.1f %%  %-22s\n", share, line->ops[i].op);
  }
}

static void print_line(const bench_report *r, const bench_line *line) {
  printf("%-9s %-10s %-5s %-28s %9.3f ms", line->bench, line->shape, kedge_dtype_name(line->dtype),
         line->name, 1e3 * line->seconds);
  if (line->flops > 0 && peak_of(r, line) > 0)
    printf(" %8.1f GFLOP/s %4.0f %%", 1e-9 * line->flops / line->seconds,
           100 * line->flops / line->seconds / peak_of(r, line));
  else if (line->flops > 0)
    printf(" %8.0f GFLOP/s       ", 1e-9 * line->flops / line->seconds);
  else
    printf(" %23s", "");
  if (line->bytes > 0)
    printf(" %7.2f GB/s", 1e-9 * line->bytes / line->seconds);
  else
    printf(" %12s", "");
  if (line->unit) printf(" %10.0f %s", line->rate, line->unit);
  printf("  load %.1f, %u runs\n", line->load, line->runs);
  print_shares(line);
}

static void print_text(const bench_report *r) {
  printf("%s", kedge_device_description(r->device));
  if (r->peaks[0] > 0)
    printf("; multiply-adds by themselves: f32 %.1f GFLOP/s, bf16 %.1f GFLOP/s", 1e-9 * r->peaks[0],
           1e-9 * r->peaks[1]);
  printf("\n");
  printf("Times are medians. %%: of the multiply-adds by themselves. load: cores that others kept busy.\n\n");
  for (uint32_t i = 0; i < r->count; i++) print_line(r, &r->lines[i]);
}

static json_t *json_of(const bench_report *r, const bench_line *line) {
  json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "bench", line->bench, "shape",
                        line->shape, "case", line->name, "dtype", kedge_dtype_name(line->dtype), "runs",
                        (int)line->runs, "seconds", line->seconds, "best_seconds", line->best, "cpu_seconds",
                        line->cpu, "load", line->load);
  if (line->flops > 0) {
    json_object_set_new(o, "gflops", json_real(1e-9 * line->flops / line->seconds));
    if (peak_of(r, line) > 0)
      json_object_set_new(o, "peak_share", json_real(line->flops / line->seconds / peak_of(r, line)));
  }
  if (line->bytes > 0) json_object_set_new(o, "bytes_per_second", json_real(line->bytes / line->seconds));
  if (line->unit) json_object_set_new(o, "tokens_per_second", json_real(line->rate));
  double total = 0;
  json_t *ops = json_object();
  for (uint32_t i = 0; i < line->op_count; i++) total += line->ops[i].seconds;
  for (uint32_t i = 0; i < line->op_count && total > 0; i++)
    json_object_set_new(ops, line->ops[i].op, json_real(line->ops[i].seconds / total));
  if (line->op_count) json_object_set(o, "op_shares", ops);
  json_decref(ops);
  return o;
}

static void print_json(const bench_report *r) {
  json_t *results = json_array();
  for (uint32_t i = 0; i < r->count; i++) json_array_append_new(results, json_of(r, &r->lines[i]));
  json_t *root =
      json_pack("{s:s, s:s, s:i, s:{s:f, s:f}, s:o}", "device", kedge_device_description(r->device), "isa",
                on_cpu(r->device) ? kedge__cpu_isa(r->device) : "", "threads", (int)r->device->limits.threads,
                "peak_gflops", "f32", 1e-9 * r->peaks[0], "bf16", 1e-9 * r->peaks[1], "results", results);
  json_dumpf(root, stdout, JSON_INDENT(2));
  putchar('\n');
  json_decref(root);
}

/* ---- Run
 * ---------------------------------------------------------------------------------------------------------
 */

static bool listed(const cli_list *list, const char *name) {
  for (size_t i = 0; i < list->count; i++)
    if (!strcmp(list->items[i], name)) return true;
  return false;
}

/* Every word of a list must be one of the names. */
static kedge_status check_words(const cli_list *list, const char *what, const char *(*name)(size_t i)) {
  for (size_t i = 0; i < list->count; i++) {
    size_t n = 0;
    while (name(n) && strcmp(name(n), list->items[i])) n++;
    if (!name(n))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "%s \"%.80s\": see `kedge bench --help`", what, list->items[i]);
  }
  return KEDGE_OK;
}
static const char *part_name(size_t i) {
  return i < PARTS ? parts[i] : NULL;
}
static const char *shape_name(size_t i) {
  return i < SHAPES ? shapes[i].name : NULL;
}

static kedge_status bench_dtype(bench_report *r, const cli_list *wanted, const bench_command *o,
                                kedge_dtype dtype) {
  if (o->dtype && strcmp(o->dtype, kedge_dtype_name(dtype))) return KEDGE_OK;
  for (size_t i = 0; i < SHAPES; i++) {
    if (o->shapes.count ? !listed(&o->shapes, shapes[i].name) : i > 0) continue;
    bench_shape shape = shapes[i];
    if (o->tokens) shape.tokens = (uint32_t)o->tokens;
    if (!wanted->count || listed(wanted, "ops"))
      KEDGE_TRY(bench_ops(r, &shape, dtype));
    else if (listed(wanted, "products"))
      KEDGE_TRY(bench_products(r, &shape, dtype));
    if (!wanted->count || listed(wanted, "layer")) KEDGE_TRY(bench_layer(r, &shape, dtype));
  }
  if (!wanted->count || listed(wanted, "step")) KEDGE_TRY(bench_step(r, dtype));
  if (!wanted->count || listed(wanted, "generate")) KEDGE_TRY(bench_generate(r, dtype));
  return KEDGE_OK;
}

static kedge_status run(const bench_command *o, const cli_list *wanted) {
  KEDGE_TRY(check_words(wanted, "benchmark", part_name));
  KEDGE_TRY(check_words(&o->shapes, "--shape", shape_name));
  if (o->dtype && strcmp(o->dtype, "f32") && strcmp(o->dtype, "bf16"))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--dtype: expected f32 or bf16, came \"%.80s\"", o->dtype);
  bench_report r = {.options = &o->options};
  const kedge_open_options open = {.threads = (uint32_t)o->threads, .isa = o->options.isa};
  r.lines = kedge_alloc(BENCH_LINES, sizeof *r.lines);
  kedge_status status = r.lines ? kedge_device_open(o->device, &open, &r.device) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && on_cpu(r.device)) {
    r.peaks[0] = kedge__cpu_peak(r.device, KEDGE_F32);
    r.peaks[1] = kedge__cpu_peak(r.device, KEDGE_BF16);
  }
  if (status == KEDGE_OK) status = bench_dtype(&r, wanted, o, KEDGE_F32);
  if (status == KEDGE_OK) status = bench_dtype(&r, wanted, o, KEDGE_BF16);
  for (uint32_t i = 0; i < r.count; i++)
    qsort(r.lines[i].ops, r.lines[i].op_count, sizeof *r.lines[i].ops, by_seconds);
  if (status == KEDGE_OK) (o->json ? print_json : print_text)(&r);
  kedge_device_close(r.device);
  kedge_free(r.lines);
  return status;
}

int command_bench(int argc, char **argv) {
  bench_command o = {.options = {.seconds = 0.25}, .device = "cpu"};
  const cli_option options[] = {
      {"--shape", CLI_TEXTS, &o.shapes, "NAME", "of ops and layer: laptop, qwen3, moonlight (laptop)", false,
       0, 0},
      {"--tokens", CLI_INT, &o.tokens, "N", "of ops and layer (0: as many as the shape has)", false, 0,
       65536},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 storage (both)", false, 0, 0},
      {"--backend", CLI_TEXT, &o.device, "NAME", "compute backend, one of `kedge devices` (cpu)", false, 0,
       0},
      {"--threads", CLI_INT, &o.threads, "N", "threads (0: all)", false, 0, 4096},
      {"--isa", CLI_TEXT, &o.options.isa, "NAME",
       "amx, avx512bf16, avx512, avx2, base (KEDGE_ISA, or the best)", false, 0, 0},
      {"--seconds", CLI_REAL, &o.options.seconds, "X", "time for each line, 3 runs at least (0.25)", false, 0,
       3600},
      {"--json", CLI_FLAG, &o.json, NULL, "print JSON", false, 0, 0}};
  const cli_spec spec = {
      .command = "bench",
      .synopsis = "[ops|products] [layer] [step] [generate]",
      .summary =
          "Times operations, a layer of experts, a training step and generation on a device, on random\n"
          "numbers, on the CPU beside the machine's multiply-adds in the same run. Step and generation are "
          "of a\n"
          "built-in model: 4 layers, width 256, 16 experts top-4, vocabulary 4,096, batch 8 x 256.\n"
          "qwen3 and moonlight need a few GB of memory.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .most = PARTS,
      .examples = "kedge bench\nkedge bench layer --shape moonlight --dtype bf16 --seconds 10 --json"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("bench", run(&o, &arguments));
}
