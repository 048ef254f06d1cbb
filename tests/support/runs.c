/* SPDX-License-Identifier: Apache-2.0
 * Runs from the inside (runs.h). */
#include "tests/support/runs.h"

#include "models/training/trainer.h"
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char sigmoid_json[] =
    "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 512, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"initializer_range\": 0.2, "
    "\"max_position_embeddings\": 512, \"bos_token_id\": 0, \"eos_token_id\": 0, \"torch_dtype\": "
    "\"float32\", \"num_hidden_layers\": 3, \"num_key_value_heads\": 4, \"kv_lora_rank\": 16, "
    "\"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, \"v_head_dim\": 6, \"intermediate_size\": 48, "
    "\"moe_intermediate_size\": 12, \"n_routed_experts\": 8, \"n_shared_experts\": 1, "
    "\"num_experts_per_tok\": 2, \"n_group\": 4, \"topk_group\": 2, \"first_k_dense_replace\": 1, "
    "\"routed_scaling_factor\": 1.7, \"norm_topk_prob\": true}";

const runs_condition runs_conditions[] = {
    {"none", "", false},
    {"lbl micro", "router.intervention=lbl router.coef=0.05", false},
    {"lbl sequence", "router.intervention=lbl router.coef=0.05 router_lb_scope=sequence", false},
    {"lbl global", "router.intervention=lbl router.coef=0.05 router_lb_scope=global", false},
    {"lbl global_running", "router.intervention=lbl router.coef=0.05 router_lb_scope=global_running", false},
    {"lbl hf, dispatched, mean",
     "router.intervention=lbl router.coef=0.05 router_lb_scope=sequence lb_convention=hf "
     "lb_counts=dispatched lb_layers=mean router.mask=completion",
     false},
    {"z_loss", "router.intervention=z_loss router.coef=0.05", false},
    {"z_loss, detached", "router.intervention=z_loss router.coef=0.05 aux_detach_hidden=true", false},
    {"freeze", "router.intervention=freeze", false},
    {"rpb", "router.intervention=rpb router.prior=%s.prior", false},
    {"rpb, raw gates", "router.intervention=rpb router.prior=%s.prior router.gate_source=raw", false},
    {"rpb, whole sample", "router.intervention=rpb router.prior=%s.prior router.span=sample", false},
    {"rpb_hard", "router.intervention=rpb_hard router.prior=%s.prior", false},
    {"replay", "router.intervention=replay", false},
    {"router_l2", "router.intervention=router_l2 router.coef=1", false},
    {"kl", "router.intervention=kl router.prior=%s.prior", false},
    {"kl, completion", "router.intervention=kl router.prior=%s.prior router.mask=completion", false},
    {"kl_token", "router.intervention=kl_token", false},
    {"logit_l2", "router.intervention=logit_l2 router.prior=%s.prior", false},
    {"loss_free", "router.intervention=loss_free router.coef=0.01", true},
    {"rpb with lbl and kl_token",
     "router[0].intervention=rpb router[0].prior=%s.prior router[1].intervention=lbl router[1].coef=0.05 "
     "router[2].intervention=kl_token router_lb_scope=global",
     false},
    {0}};

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

void runs_prepare(unsigned samples) {
  training_prepare(samples);
  if (chdir(test_folder())) fail_msg("cannot enter %s", test_folder());
  test_write_text("sigmoid.json", sigmoid_json);
  if (!test_exists("sigmoid"))
    training_expect(0, "", "init --config sigmoid.json --tokenizer '%s' --out sigmoid --seed 3",
                    test_golden("tokenizer/tiny"));
  static const char *const bases[] = {"base", "sigmoid"};
  for (int i = 0; i < 2; i++)
    training_expect(0, "", "prior --model %s --data train.jsonl --max-length 160 --out %s.prior", bases[i],
                    bases[i]);
}

/* Appends the words of a text to a list. */
static size_t words(char *text, const char **list, size_t count) {
  for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
    assert_true(count < 32);
    list[count++] = word;
  }
  return count;
}

/* A condition's text with the base's name in the places of %s. */
static void with_base(char *to, size_t size, const char *text, const char *base) {
  size_t at = 0;
  for (const char *c = text; *c; c++) {
    const bool name = c[0] == '%' && c[1] == 's';
    const int n = snprintf(to + at, size - at, "%.*s", name ? 64 : 1, name ? base : c);
    assert_true(n > 0 && (size_t)n < size - at);
    at += (size_t)n;
    c += name;
  }
  to[at] = 0;
}

static void config_load(kedge_config *config, uint32_t ranks, const char *base,
                        const runs_condition *condition, const char *more, va_list values) {
  char model[64], own[1024], rest[1024];
  const char *list[32] = {model, "threads=1"};
  snprintf(model, sizeof model, "model_name_or_path=%s", base);
  with_base(own, sizeof own, condition ? condition->overrides : "", base);
  vsnprintf(rest, sizeof rest, more, values);
  size_t count = words(own, list, 2);
  count = words(rest, list, count);
  ok(kedge_config_load_for(config, ranks, "run.yaml", list, count));
}

static void open_session(runs_session *s, kedge_comm *comm) {
  kedge_schedule schedule;
  ok(kedge_setup_init_on(&s->setup, &s->config, comm, NULL, NULL));
  ok(kedge_train_batches(&s->setup, &s->batches, &schedule));
  ok(kedge_stepper_init(&s->stepper, &s->setup));
}

void runs_open(runs_session *s, const char *base, const runs_condition *condition, const char *more, ...) {
  va_list values;
  va_start(values, more);
  config_load(&s->config, 1, base, condition, more, values);
  va_end(values);
  open_session(s, NULL);
}

void runs_open_on(runs_session *s, kedge_comm *comm, const char *base, const runs_condition *condition,
                  const char *more, ...) {
  va_list values;
  va_start(values, more);
  config_load(&s->config, kedge_comm_size(comm, KEDGE_RANKS_ALL), base, condition, more, values);
  va_end(values);
  open_session(s, comm);
}

void runs_close(runs_session *s) {
  kedge_stepper_destroy(&s->stepper);
  kedge_batches_free(s->batches);
  kedge_setup_destroy(&s->setup);
  kedge_config_destroy(&s->config);
}

void runs_perturb(runs_session *s) {
  const kedge_model *m = s->setup.model;
  for (uint32_t i = 0; i < m->params.count; i++) {
    if (m->params.items[i].role != KEDGE_ROLE_ROUTER) continue;
    const uint64_t count = kedge_param_count(&m->params.items[i]);
    float *w = malloc(count * sizeof *w);
    ok(kedge_buffer_read(m->weights[i], 0, w, count * sizeof *w));
    for (uint64_t j = 0; j < count; j++) w[j] += 0.03f * (float)sin(1.7 * (double)j + i);
    ok(kedge_buffer_write(m->weights[i], 0, w, count * sizeof *w));
    free(w);
  }
}

bool runs_update(runs_session *s, double rate, kedge_step_result *result) {
  kedge_update update;
  ok(kedge_batches_next(s->batches, &update));
  if (!update.micro_batches) return false;
  ok(kedge_stepper_update(&s->stepper, s->batches, &update, rate, result));
  return true;
}

kedge_pass *runs_micro(runs_session *s, const kedge_update *update, const kedge_micro_batch *mb) {
  kedge_stepper *t = &s->stepper;
  kedge_pass *pass;
  ok(kedge_feeds_fill(&t->feeds, kedge_setup_train(&s->setup), update, mb));
  for (uint32_t i = 0; i < t->feeds.count; i++) {
    if (!kedge_feeds_needs_base(&t->feeds, i)) continue;
    void *table = kedge_feeds_table(&t->feeds, i);
    const bool logits = kedge_intervention_table(&t->feeds.interventions[i]) == KEDGE_TABLE_BASE_LOGITS;
    ok(kedge_router_reader_run(t->base, mb, logits ? table : NULL, logits ? NULL : table));
  }
  const kedge_tokens tokens = {.ids = mb->ids_T,
                               .positions = mb->positions_T,
                               .segments = mb->segments_T,
                               .labels = mb->labels_T,
                               .weights = mb->weights_T,
                               .feeds = t->feeds.data};
  ok(kedge_passes_get(&t->train, mb->size, kedge_feeds_rows(&t->feeds, mb->samples), &pass));
  ok(kedge_pass_run(pass, &tokens));
  return pass;
}

static kedge_buffer *buffer_of(const runs_session *s, uint32_t i, runs_what what) {
  const kedge_optimizer *o = &s->stepper.optimizer;
  if (what == RUNS_WEIGHT) return s->setup.model->weights[i];
  return what == RUNS_GRADIENT ? o->grad[i] : what == RUNS_M ? o->m[i] : o->v[i];
}

float *runs_read(const runs_session *s, runs_what what, bool routers, uint64_t *count) {
  const kedge_params *p = &s->setup.model->params;
  float *all = malloc((p->total + p->fixed) * sizeof *all);
  assert_non_null(all);
  *count = 0;
  for (uint32_t i = 0; i < p->count; i++) {
    kedge_buffer *buffer = buffer_of(s, i, what);
    if (!buffer || (routers && p->items[i].role != KEDGE_ROLE_ROUTER)) continue;
    const uint64_t n = kedge_param_count(&p->items[i]);
    ok(kedge_buffer_read(buffer, 0, all + *count, n * sizeof *all));
    *count += n;
  }
  assert_true(*count > 0);
  return all;
}

double runs_distance(const float *a, const float *b, uint64_t count) {
  double most = 0, scale = 0;
  for (uint64_t i = 0; i < count; i++) {
    const double gap = fabs((double)a[i] - (double)b[i]);
    most = gap <= most ? most : gap; /* a gap that is no number stays */
    scale = fmax(scale, fabs((double)b[i]));
  }
  return scale > 0 ? most / scale : most;
}

double runs_number(const kedge_pass *pass, kedge_value value) {
  float number;
  if (!value) return 0;
  ok(kedge_exec_read(pass->exec, value, &number, sizeof number));
  return (double)number;
}
