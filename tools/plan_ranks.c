/* SPDX-License-Identifier: Apache-2.0
 * `kedge plan` for several ranks: what they send, how long an update takes, whether it fits (plan.h). */
#include "tools/cli.h"
#include "tools/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kedge_status plan_bytes(const char *text, uint64_t *bytes) {
  static const struct {
    const char *name;
    double factor;
  } units[] = {{"", 1},
               {"B", 1},
               {"M", 1e6},
               {"MB", 1e6},
               {"G", 1e9},
               {"GB", 1e9},
               {"T", 1e12},
               {"TB", 1e12},
               {"MiB", 1048576.0},
               {"GiB", 1073741824.0},
               {"TiB", 1099511627776.0}};
  char *end;
  const double number = strtod(text, &end);
  for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++)
    if (!strcmp(end, units[i].name) && number > 0 && number * units[i].factor < 9e18) {
      *bytes = (uint64_t)(number * units[i].factor);
      return KEDGE_OK;
    }
  return kedge_fail(KEDGE_ERR_ARGUMENT, "--memory: expected bytes as 80G or 80GiB, came \"%.40s\"", text);
}

/* An update of one rank, in seconds. */
typedef struct times {
  double operations, compute, sums, weights, rows, waits;
} times;

/* Operations of a training pass over a micro-batch: three times a forward's products, or four. Attention sees
 * half of its sequence on the mean. */
static double operations(const plan_options *o, const plan_rank *rank) {
  const kedge_hf_config *c = &rank->model->config;
  const double tokens = (double)o->tokens, length = o->sequence ? (double)o->sequence : tokens;
  const double key =
      c->kv_lora_rank ? (double)(c->qk_nope_head_dim + c->qk_rope_head_dim) : (double)c->head_dim;
  const double attention =
      (double)c->num_hidden_layers * c->num_attention_heads * (key + (double)c->v_head_dim) * length;
  return tokens * (2.0 * (double)rank->model->params.active + attention) * (o->recompute ? 4 : 3);
}

static times measure(const plan_options *o, const plan_rank *rank) {
  const plan_report *r = &rank->report;
  const double steps = (double)o->accumulation, link = o->link * 1e9;
  times t = {.operations = operations(o, rank) * steps};
  t.compute = t.operations / (o->flops * 1e12);
  t.sums = (double)r->sums_sent / link;
  t.weights = (double)r->weights_sent / link;
  t.rows = steps * (double)r->rows_sent / link;
  t.waits = ((double)r->update_calls + steps * (double)r->micro_calls) * o->latency * 1e-6;
  return t;
}

static double total_of(const times *t) {
  return t->compute + t->sums + t->weights + t->rows + t->waits;
}

void plan_print_ranks(const plan_options *o, const plan_rank *rank) {
  const plan_report *r = &rank->report;
  const times t = measure(o, rank);
  char text[24];
  printf("\nan update of %" PRId64 " micro-batch%s, %.0f tokens on all ranks:\n", o->accumulation,
         o->accumulation == 1 ? "" : "es", (double)o->tokens * (double)o->accumulation * (double)o->world);
  printf("%-30s %12s %12.3f s\n", "computing", "", t.compute);
  printf("%-30s %12s %12.3f s\n", "gradients sent to be summed", cli_bytes(r->sums_sent, text), t.sums);
  printf("%-30s %12s %12.3f s\n", "weights sent", cli_bytes(r->weights_sent, text), t.weights);
  printf("%-30s %12s %12.3f s\n", "rows sent to experts and back",
         cli_bytes(r->rows_sent * (uint64_t)o->accumulation, text), t.rows);
  printf("%-30s %6.0f calls %12.3f s\n", "waiting",
         (double)r->update_calls + (double)o->accumulation * (double)r->micro_calls, t.waits);
  printf("%-30s %12s %12.3f s, %.0f tokens/s\n", "together, nothing overlapped", "", total_of(&t),
         (double)o->tokens * (double)o->accumulation * (double)o->world / total_of(&t));
  printf("at %g TFLOP/s a device, %g GB/s and %g us a collective op\n", o->flops, o->link, o->latency);
}

static uint64_t need(const plan_rank *rank) {
  plan_row rows[PLAN_ROWS];
  return plan_rows(&rank->report, rows);
}

void plan_add_ranks(const plan_options *o, const plan_rank *rank, void *json) {
  const plan_report *r = &rank->report;
  const times t = measure(o, rank);
  uint64_t memory = 0;
  if (o->memory && plan_bytes(o->memory, &memory) == KEDGE_OK) {
    json_object_set_new(json, "memory", json_integer((json_int_t)memory));
    json_object_set_new(json, "fits", json_boolean(need(rank) <= memory));
  }
  if (o->world == 1) return;
  json_object_set_new(json, "ranks", json_integer((json_int_t)o->world));
  json_object_set_new(json, "expert_parallel", json_integer((json_int_t)o->experts));
  json_object_set_new(json, "sent",
                      json_pack("{s:I, s:I, s:I}", "gradients", (json_int_t)r->sums_sent, "weights",
                                (json_int_t)r->weights_sent, "rows",
                                (json_int_t)r->rows_sent * o->accumulation));
  json_object_set_new(json, "seconds",
                      json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "compute", t.compute, "gradients", t.sums,
                                "weights", t.weights, "rows", t.rows, "waiting", t.waits, "total",
                                total_of(&t)));
}

/* What a change of the options would need; 0 if it cannot be planned. */
static uint64_t try_out(const plan_options *o) {
  plan_rank rank;
  if (plan_rank_open(o, &rank) != KEDGE_OK) return 0;
  const uint64_t bytes = need(&rank);
  plan_rank_close(&rank);
  return bytes;
}

static bool tell(const plan_options *o, uint64_t memory, const char *what) {
  char text[24];
  const uint64_t bytes = try_out(o);
  if (!bytes) return false;
  printf("  %-52s %12s%s\n", what, cli_bytes(bytes, text), bytes <= memory ? ", fits" : "");
  return bytes <= memory;
}

/* One change after the other, each on top of those before, until it fits. */
static kedge_status advise(const plan_options *options, uint32_t experts, uint64_t memory) {
  plan_options o = *options;
  char what[96];
  printf("what would help, each on top of the one before:\n");
  if (!o.recompute) {
    o.recompute = true;
    if (tell(&o, memory, "--recompute (gradient_checkpointing: true)")) return KEDGE_OK;
  }
  while (o.tokens > 1024) {
    o.tokens /= 2;
    snprintf(what, sizeof what, "--tokens %" PRId64 " (a smaller micro-batch)", o.tokens);
    if (tell(&o, memory, what)) return KEDGE_OK;
    if (o.tokens <= options->tokens / 4) break;
  }
  while (o.experts * 2 <= o.world && o.world % (o.experts * 2) == 0 && experts % (o.experts * 2) == 0) {
    o.experts *= 2;
    snprintf(what, sizeof what, "--ep %" PRId64 " (expert_parallel)", o.experts);
    if (tell(&o, memory, what)) return KEDGE_OK;
  }
  while (o.world < 65536) {
    o.world *= 2;
    if (experts % (o.experts * 2) == 0) o.experts *= 2;
    snprintf(what, sizeof what, "--world %" PRId64 " --ep %" PRId64 " (more devices)", o.world, o.experts);
    if (tell(&o, memory, what)) return KEDGE_OK;
    if (o.world >= 16 * options->world) break;
  }
  printf("nothing of this fits\n");
  return KEDGE_OK;
}

kedge_status plan_print_fit(const plan_options *o, const plan_rank *rank, uint64_t memory) {
  const uint64_t bytes = need(rank);
  char a[24], b[24], all[24];
  printf("\n");
  cli_bytes(memory, all); /* 80G are 74.5 GiB: what is said of it is in GiB */
  if (bytes <= memory) {
    printf("fits into %s (%s) with %s to spare\n", o->memory, all, cli_bytes(memory - bytes, a));
    return KEDGE_OK;
  }
  printf("does not fit into %s (%s): %s of %s are missing\n", o->memory, all, cli_bytes(bytes - memory, a),
         cli_bytes(bytes, b));
  return advise(o, rank->model->config.num_experts, memory);
}
