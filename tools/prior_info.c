/* SPDX-License-Identifier: Apache-2.0
 * `kedge prior-info`: what is in a prior, and how far another is from it (models/prior/prior_stats.h). */
#include "models/checkpoint/atomic.h"
#include "models/prior/prior_stats.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
  const char *path, *against, *json;
  double eps, clip, beta;
  int64_t topk;
} settings;

static bool advanced(void *context, uint64_t samples, uint64_t total) {
  (void)total;
  progress_update(context, samples, 0, NULL);
  return !interrupt_requested();
}

/* ---- Table
 * ----------------------------------------------------------------------------------------------------- */

static void print_row(const char *name, const kedge_prior_stats *s, bool compared) {
  printf("%-9s %11llu %9llu", name, (unsigned long long)s->rows, (unsigned long long)s->undefined);
  if (!s->rows) {
    printf("  no row\n");
    return;
  }
  printf(" %7.4f %7.4f %7.4f %7.3f%% %7.3f%% %8.4f %7.4f", s->sd, s->range, s->range_max, 100 * s->low,
         100 * s->high, s->entropy, s->effective);
  if (compared) printf(" %8.4f %7.4f %8.4f %8.4f", s->overlap, s->change, s->db_mean, s->db_p90);
  printf("\n");
}

static void print_prior(const char *path, const kedge_prior *p) {
  const kedge_prior_identity id = kedge_prior_get_identity(p);
  const char *shuffled = kedge_prior_shuffled(p);
  printf("%s: %u samples, %u MoE layers, %u experts, %s\n", path, kedge_prior_samples(p),
         kedge_prior_layers(p), kedge_prior_experts(p), kedge_prior_is_exact(p) ? "f32" : "f16");
  printf("  base %s, tokenizer %s, data %s\n", id.base, id.tokenizer, id.data);
  printf("  max_length %u, template: %s, shuffle: %s\n", id.max_length,
         *id.templates ? id.templates : "not told", *shuffled ? shuffled : "none");
}

static void print_report(const settings *s, const kedge_prior *prior, const kedge_prior *other,
                         const kedge_prior_report *r) {
  print_prior(s->path, prior);
  if (other) print_prior(s->against, other);
  printf("\nb = log of pi clipped to [%g/E, %g/E], centred", s->eps, s->clip);
  if (other) printf("; overlap of the top %u; |db| with beta %g", r->topk, s->beta);
  printf("\n\n%-9s %11s %9s %7s %7s %7s %8s %8s %8s %7s%s\n", "", "rows", "undefined", "sd b", "range",
         "widest", "at low", "at high", "entropy", "exp(H)/E",
         other ? " overlap  change |db| mean  |db| p90" : "");
  print_row("all", &r->all, r->compared);
  print_row("prompt", &r->span[0], r->compared);
  print_row("answer", &r->span[1], r->compared);
  for (uint32_t l = 0; l < r->layers; l++) {
    char name[24];
    snprintf(name, sizeof name, "layer %d", kedge_prior_layer(prior, l));
    print_row(name, &r->layer[l], r->compared);
  }
  printf(
      "\nsd b, range (max - min): of b in a row, means over the rows; widest: the largest range.\n"
      "at low, at high: share of cells that a clip holds. entropy: of pi, in nats; exp(H)/E: 1 is even.\n");
  if (r->compared)
    printf("overlap: of the best experts of both priors; change: 1 - overlap. |db|: what beta b changes "
           "by, a cell.\n");
}

/* ---- JSON
 * ------------------------------------------------------------------------------------------------------ */

static void put(json_t *object, const char *key, double value) {
  json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static json_t *stats_json(const kedge_prior_stats *s, bool compared) {
  json_t *o = json_object();
  json_object_set_new(o, "rows", json_integer((json_int_t)s->rows));
  json_object_set_new(o, "undefined", json_integer((json_int_t)s->undefined));
  put(o, "sd", s->sd), put(o, "sd_min", s->sd_min), put(o, "sd_max", s->sd_max);
  put(o, "range", s->range), put(o, "range_max", s->range_max);
  put(o, "clamped_low", s->low), put(o, "clamped_high", s->high);
  put(o, "entropy", s->entropy), put(o, "effective_fraction", s->effective);
  if (!compared) return o;
  put(o, "overlap", s->overlap), put(o, "change", s->change);
  put(o, "db_mean", s->db_mean), put(o, "db_p90", s->db_p90);
  return o;
}

static json_t *prior_json(const char *path, const kedge_prior *p) {
  const kedge_prior_identity id = kedge_prior_get_identity(p);
  return json_pack("{s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:I, s:s, s:s}", "path", path, "samples",
                   (json_int_t)kedge_prior_samples(p), "moe_layers", (json_int_t)kedge_prior_layers(p),
                   "experts", (json_int_t)kedge_prior_experts(p), "dtype",
                   kedge_prior_is_exact(p) ? "f32" : "f16", "base_hash", id.base, "tokenizer_hash",
                   id.tokenizer, "data_hash", id.data, "max_length", (json_int_t)id.max_length, "template",
                   id.templates, "shuffle", kedge_prior_shuffled(p));
}

static kedge_status write_json(const settings *s, const kedge_prior *prior, const kedge_prior *other,
                               const kedge_prior_report *r) {
  json_t *root = json_object(), *layers = json_array();
  json_object_set_new(root, "prior", prior_json(s->path, prior));
  if (other) json_object_set_new(root, "against", prior_json(s->against, other));
  put(root, "eps", s->eps), put(root, "clip", s->clip), put(root, "beta", s->beta);
  json_object_set_new(root, "top_k", json_integer(r->topk));
  json_object_set_new(root, "all", stats_json(&r->all, r->compared));
  json_object_set_new(root, "prompt", stats_json(&r->span[0], r->compared));
  json_object_set_new(root, "answer", stats_json(&r->span[1], r->compared));
  for (uint32_t l = 0; l < r->layers; l++) {
    json_t *layer = stats_json(&r->layer[l], r->compared);
    json_object_set_new(layer, "layer", json_integer(kedge_prior_layer(prior, l)));
    json_array_append_new(layers, layer);
  }
  json_object_set_new(root, "layers", layers);
  char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  json_decref(root);
  if (!text) return kedge_fail(KEDGE_ERR_MEMORY, "%s: out of memory", s->json);
  const kedge_status status = kedge_file_write(s->json, text, strlen(text));
  free(text);
  return status;
}

/* ---- Command
 * --------------------------------------------------------------------------------------------------- */

static kedge_status measure(const settings *s, const kedge_prior *prior, const kedge_prior *other) {
  kedge_prior_report report;
  progress bar;
  const kedge_prior_stats_options options = {.eps = s->eps,
                                             .clip = s->clip,
                                             .beta = s->beta,
                                             .topk = (uint32_t)s->topk,
                                             .progress = advanced,
                                             .context = &bar};
  progress_init(&bar, stderr, "prior-info", "samples", 0, kedge_prior_samples(prior));
  kedge_status status = kedge_prior_measure(prior, other, &options, &report);
  progress_clear(&bar);
  KEDGE_TRY(status);
  print_report(s, prior, other, &report);
  if (s->json) status = write_json(s, prior, other, &report);
  kedge_prior_report_destroy(&report);
  return status;
}

static kedge_status run(const settings *s) {
  kedge_prior *prior = NULL, *other = NULL;
  kedge_status status = KEDGE_OK;
  const char *const inputs[] = {s->path, s->against};
  if (s->json) KEDGE_TRY(input_spare(s->json, NULL, inputs, s->against ? 2 : 1));
  KEDGE_GOTO(kedge_prior_open(s->path, &prior), status, done);
  if (s->against) KEDGE_GOTO(kedge_prior_open(s->against, &other), status, done);
  status = measure(s, prior, other);
done:
  kedge_prior_free(prior);
  kedge_prior_free(other);
  return status;
}

int command_prior_info(int argc, char **argv) {
  settings s = {.eps = 0.05, .clip = 5, .beta = 1};
  cli_list arguments;
  int code;
  const cli_option options[] = {
      {"--against", CLI_TEXT, &s.against, "FILE", "another prior of the same samples, such as a shuffled one",
       false, 0, 0},
      {"--eps", CLI_REAL, &s.eps, "X", "lower clip of the prior, in parts of 1/E (0.05)", false, 1e-12, 1},
      {"--clip", CLI_REAL, &s.clip, "X", "upper clip of the prior, in parts of 1/E (5)", false, 1, 1e6},
      {"--beta", CLI_REAL, &s.beta, "X", "strength of the bias, for |db| (1)", false, 0, 1e3},
      {"--top-k", CLI_INT, &s.topk, "K", "experts that the overlap compares (the base's own)", false, 1,
       65536},
      {"--json", CLI_TEXT, &s.json, "FILE", "write all of it as JSON too", false, 0, 0},
  };
  const cli_spec spec = {
      .command = "prior-info",
      .synopsis = "PRIOR",
      .summary = "Measures a prior and the bias made of it, over all rows, by span and by layer: sd and "
                 "range of b in\n"
                 "a row, the share of cells held by each clip, entropy. Against another prior: overlap of "
                 "the best K\n"
                 "experts, change rate, and |db|, the difference of the biases after clip and beta.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .least = 1,
      .most = 1,
      .examples =
          "kedge prior-info prior.safetensors\n"
          "kedge prior-info prior.safetensors --against within.safetensors --beta 0.75 --json info.json"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  s.path = arguments.items[0];
  interrupt_listen();
  return cli_finish("prior-info", run(&s));
}
