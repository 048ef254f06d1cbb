/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Generation: the cached path against a full pass over the same tokens, the choice of tokens, the command. */
#include "models/decoder/generate.h"
#include "models/decoder/pass.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/reference.h"
#include "tests/support/tokenizers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

/* ---- Choice
 * ----------------------------------------------------------------------------------------------------- */

enum { WORDS = 5, DRAWS = 20000 };
/* Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 at temperature 1, in a mixed order. */
static const double shares[WORDS] = {0.15, 0.4, 0.05, 0.3, 0.1};

/* Draws and compares frequencies with want[], which need not be normalised, within five standard errors. */
static void check_frequencies(kedge_sampling sampling, const double want[WORDS]) {
  float logits[WORDS];
  double counts[WORDS] = {0}, total = 0;
  for (int i = 0; i < WORDS; i++) logits[i] = (float)(log(shares[i]) + 3), total += want[i];
  for (uint64_t step = 0; step < DRAWS; step++) {
    int32_t id;
    check(kedge_sample(logits, WORDS, &sampling, step, &id));
    counts[id]++;
  }
  for (int i = 0; i < WORDS; i++) {
    double p = want[i] / total, error = 5 * sqrt(p * (1 - p) / DRAWS);
    if (!(fabs(counts[i] / DRAWS - p) <= error))
      fail_msg("temperature %g, top_p %g, top_k %u: token %d: %g, want %g", sampling.temperature,
               sampling.top_p, sampling.top_k, i, counts[i] / DRAWS, p);
  }
}

static void test_frequencies(void **state) {
  (void)state;
  double hot[WORDS];
  for (int i = 0; i < WORDS; i++) hot[i] = sqrt(shares[i]);
  check_frequencies((kedge_sampling){1, 1, 0, 1}, shares);
  check_frequencies((kedge_sampling){1, 1, 100, 2}, shares);
  check_frequencies((kedge_sampling){2, 1, 0, 3}, hot);
  check_frequencies((kedge_sampling){1, 1, 2, 4}, (double[]){0, 0.4, 0, 0.3, 0});
  check_frequencies((kedge_sampling){1, 1, 1, 5}, (double[]){0, 1, 0, 0, 0});
  /* top_p: 0.4 + 0.3 reach 0.65; 0.4 alone reaches 0.3 and 0. */
  check_frequencies((kedge_sampling){1, 0.65, 0, 6}, (double[]){0, 0.4, 0, 0.3, 0});
  check_frequencies((kedge_sampling){1, 0.72, 0, 6}, (double[]){0.15, 0.4, 0, 0.3, 0});
  check_frequencies((kedge_sampling){1, 0.3, 0, 7}, (double[]){0, 1, 0, 0, 0});
  check_frequencies((kedge_sampling){1, 0, 0, 8}, (double[]){0, 1, 0, 0, 0});
  /* top_k first, then top_p of what is left: 0.4 / 0.7 reaches 0.55. */
  check_frequencies((kedge_sampling){1, 0.55, 2, 9}, (double[]){0, 1, 0, 0, 0});
  check_frequencies((kedge_sampling){0, 0.5, 3, 10}, (double[]){0, 1, 0, 0, 0});
}

static void test_edges(void **state) {
  (void)state;
  int32_t id, again;
  float logits[4] = {1, 2, 2, -INFINITY};
  kedge_sampling s = {.temperature = 0};
  check(kedge_sample(logits, 4, &s, 0, &id));
  assert_int_equal(id, 1); /* the first of equal ones */
  s = (kedge_sampling){.temperature = 1e-30, .top_p = 1};
  for (uint64_t step = 0; step < 50; step++) {
    check(kedge_sample(logits, 4, &s, step, &id));
    assert_true(id == 1 || id == 2);
  }
  s = (kedge_sampling){.temperature = 1000, .top_p = 1, .seed = 4};
  for (uint64_t step = 0; step < 500; step++) {
    check(kedge_sample(logits, 4, &s, step, &id));
    check(kedge_sample(logits, 4, &s, step, &again));
    assert_int_equal(id, again);
    assert_int_not_equal(id, 3); /* impossible at any temperature */
  }
  for (int greedy = 0; greedy < 2; greedy++) {
    s.temperature = greedy ? 0 : 1;
    logits[2] = NAN;
    assert_int_equal(kedge_sample(logits, 4, &s, 0, &id), KEDGE_ERR_NUMERIC);
    logits[2] = INFINITY;
    assert_int_equal(kedge_sample(logits, 4, &s, 0, &id), KEDGE_ERR_NUMERIC);
    logits[2] = 2;
    float none[2] = {-INFINITY, -INFINITY};
    assert_int_equal(kedge_sample(none, 2, &s, 0, &id), KEDGE_ERR_NUMERIC);
  }
  s = (kedge_sampling){.temperature = -1};
  assert_int_equal(kedge_sample(logits, 4, &s, 0, &id), KEDGE_ERR_ARGUMENT);
  s = (kedge_sampling){.temperature = NAN};
  assert_int_equal(kedge_sample(logits, 4, &s, 0, &id), KEDGE_ERR_ARGUMENT);
  s = (kedge_sampling){.temperature = 1, .top_p = 1.5};
  assert_int_equal(kedge_sample(logits, 4, &s, 0, &id), KEDGE_ERR_ARGUMENT);
}

/* ---- Against full passes
 * ------------------------------------------------------------------------------------------- */

enum { NEW = 24 };

/* What a generation reported. */
typedef struct trace {
  uint32_t count, vocabulary, stop_after;
  int32_t ids[NEW];
  float *logits; /* [NEW, V] */
} trace;

static bool record(void *context, int32_t id, const float *logits) {
  trace *t = context;
  memcpy(t->logits + (size_t)t->count * t->vocabulary, logits, t->vocabulary * sizeof *logits);
  t->ids[t->count++] = id;
  return t->count != t->stop_after;
}

/* The next token by a full pass over ids[0..count), and the largest difference of its logits from `cached`,
 * relative to the largest logit. */
static int32_t full_pass(const kedge_model *model, const int32_t *ids, uint32_t count, const float *cached,
                         double *error) {
  const uint32_t V = model->config.vocab_size;
  kedge_workspace *workspace;
  kedge_passes passes;
  kedge_pass *pass;
  const kedge_decoder_spec spec = {.logits = true};
  int32_t *positions = calloc(count, 4), *segments = calloc(count, 4);
  for (uint32_t t = 0; t < count; t++) positions[t] = (int32_t)t;
  check(kedge_workspace_new(model->device, &workspace));
  kedge_passes_init(&passes, model, &spec, workspace, NULL, NULL);
  check(kedge_passes_get(&passes, count, 0, &pass));
  check(kedge_pass_run(pass, &(kedge_tokens){.ids = ids, .positions = positions, .segments = segments}));
  float *logits = malloc((size_t)count * V * sizeof *logits), *last = logits + (size_t)(count - 1) * V;
  check(kedge_exec_read(pass->exec, pass->decoder.logits_TV, logits, (uint64_t)count * V * sizeof *logits));
  double largest = 0, difference = 0;
  int32_t best = 0;
  for (uint32_t v = 0; v < V; v++) {
    largest = fmax(largest, fabs((double)last[v]));
    difference = fmax(difference, fabs((double)last[v] - (double)cached[v]));
    if (last[v] > last[best]) best = (int32_t)v;
  }
  *error = difference / largest;
  free(logits), free(positions), free(segments);
  kedge_passes_destroy(&passes);
  kedge_workspace_free(workspace);
  return best;
}

/* Prompt lengths below, at and above the smallest bucket. */
static void compare(const char *variant, const char *backend, uint32_t prompt) {
  char path[256];
  kedge_device *device;
  kedge_model *model;
  kedge_st_file *golden;
  uint64_t tokens;
  snprintf(path, sizeof path, "%s/golden.safetensors", variant);
  check(kedge_st_open(test_golden(path), &golden));
  check(kedge_device_open(backend, NULL, &device));
  check(kedge_model_load(device, test_golden(variant), KEDGE_F32, &model));
  int32_t *given = kedge_test_ints(golden, "input_ids", &tokens), *ids = calloc(prompt + NEW, 4);
  memcpy(ids, given, prompt * 4);
  trace t = {.vocabulary = model->config.vocab_size};
  t.logits = calloc((size_t)NEW * t.vocabulary, sizeof *t.logits);
  const kedge_generate_options options = {.max_new_tokens = NEW, .token = record, .context = &t};
  kedge_generate_result result;
  check(kedge_generate(model, ids, prompt, &options, &result));
  assert_int_equal(result.tokens, NEW);
  assert_int_equal(t.count, NEW);
  assert_false(result.stopped);
  for (uint32_t n = 0; n < NEW; n++) {
    double error;
    ids[prompt + n] = full_pass(model, ids, prompt + n, t.logits + (size_t)n * t.vocabulary, &error);
    if (!(error <= 1e-5)) fail_msg("%s on %s, token %u: logits differ by %g", variant, backend, n, error);
    assert_int_equal(ids[prompt + n], t.ids[n]);
  }
  free(given), free(ids), free(t.logits);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_st_close(golden);
}

static void test_cache(void **state) {
  (void)state;
  compare("qwen3_moe_top2of8", "ref", 5);
  compare("qwen3_moe_top2of8", "cpu", 1);
  compare("qwen3_moe_top8of16", "cpu", 16);
  compare("qwen3_moe_mixed", "cpu", 23);
  compare("qwen3_moe_step2", "cpu", 17);
  compare("olmoe_clip", "cpu", 9);
  compare("granitemoe_tied", "cpu", 7);
  compare("qwen2_moe_plain", "cpu", 5);
  compare("deepseek_v2_greedy", "cpu", 20);
  compare("deepseek_v3_group", "ref", 3);
  compare("deepseek_v3_group", "cpu", 18);
}

static void test_loop(void **state) {
  (void)state;
  kedge_device *device;
  kedge_model *model;
  check(kedge_device_open("cpu", NULL, &device));
  check(kedge_model_load(device, test_golden("qwen3_moe_top2of8"), KEDGE_F32, &model));
  const int32_t prompt[] = {3, 1, 4, 1, 5};
  trace a = {.vocabulary = model->config.vocab_size}, b = a;
  a.logits = b.logits = calloc((size_t)NEW * a.vocabulary, sizeof *a.logits);
  kedge_generate_options options = {.max_new_tokens = NEW,
                                    .sampling = {.temperature = 1, .top_p = 0.95, .seed = 11},
                                    .token = record,
                                    .context = &a};
  kedge_generate_result result;
  check(kedge_generate(model, prompt, 5, &options, &result));
  options.context = &b;
  check(kedge_generate(model, prompt, 5, &options, &result));
  assert_memory_equal(a.ids, b.ids, sizeof a.ids);
  options.sampling.seed = 12;
  b.count = 0;
  check(kedge_generate(model, prompt, 5, &options, &result));
  assert_memory_not_equal(a.ids, b.ids, sizeof a.ids);
  /* Stops: the first that comes, which is reported. */
  options.sampling.seed = 11;
  options.stops = (const int32_t[]){-1, a.ids[6]};
  options.stop_count = 2;
  uint32_t first = 0;
  while (a.ids[first] != a.ids[6]) first++;
  b.count = 0;
  check(kedge_generate(model, prompt, 5, &options, &result));
  assert_true(result.stopped);
  assert_int_equal(result.tokens, first + 1);
  assert_int_equal(b.ids[b.count - 1], a.ids[6]);
  options.stop_count = 0;
  b.count = 0;
  b.stop_after = 3;
  assert_int_equal(kedge_generate(model, prompt, 5, &options, &result), KEDGE_ERR_INTERRUPTED);
  assert_int_equal(b.count, 3);
  /* What cannot be continued. */
  assert_int_equal(kedge_generate(model, prompt, 0, &options, &result), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_generate(model, (const int32_t[]){1, 61}, 2, &options, &result), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "id 61 is outside the model's vocabulary of 61"));
  const float bad = NAN;
  uint32_t head = kedge_params_find(&model->params, KEDGE_ROLE_HEAD, 0);
  check(kedge_buffer_write(model->weights[head], 400, &bad, sizeof bad));
  assert_int_equal(kedge_generate(model, prompt, 5, &options, &result), KEDGE_ERR_NUMERIC);
  check(kedge_buffer_zero(model->weights[head]));
  check(kedge_buffer_write(model->weights[kedge_params_find(&model->params, KEDGE_ROLE_ROUTER, 1)], 0, &bad,
                           sizeof bad));
  assert_int_equal(kedge_generate(model, prompt, 5, &options, &result), KEDGE_ERR_NUMERIC);
  assert_non_null(strstr(kedge_message(), "layer 1"));
  free(a.logits);
  kedge_model_free(model);
  kedge_device_close(device);
}

/* Allocations fail one after another, later ones sparsely: an error each time, and nothing leaks or breaks.
 */
static void test_memory(void **state) {
  (void)state;
  kedge_device *device;
  kedge_model *model;
  check(kedge_device_open("cpu", NULL, &device));
  check(kedge_model_load(device, test_golden("qwen3_moe_mixed"), KEDGE_F32, &model));
  const kedge_generate_options options = {.max_new_tokens = 2, .sampling = {.temperature = 1, .top_p = 1}};
  kedge_generate_result result;
  kedge_status status = KEDGE_ERR_MEMORY;
  uint64_t failed = 0;
  for (uint64_t nth = 1; status != KEDGE_OK; nth += 1 + nth / 8) {
    kedge_alloc_fail_nth(nth);
    status = kedge_generate(model, (const int32_t[]){1, 2, 3}, 3, &options, &result);
    kedge_alloc_fail_nth(0);
    failed += status != KEDGE_OK;
    if (status != KEDGE_OK) assert_int_equal(status, KEDGE_ERR_MEMORY);
  }
  assert_true(failed > 20);
  kedge_model_free(model);
  kedge_device_close(device);
}

/* ---- The command
 * --------------------------------------------------------------------------------------------------- */

static void make_model(void) {
  test_make_folder(at("tok"));
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_kedge_expect("init --config tiny.json --tokenizer tok --out model --force", 0, "");
}

static char *output(const char *arguments) {
  test_run run = test_kedge(arguments, 0, "tokens/s");
  char *out = strdup(run.out);
  test_run_free(&run);
  return out;
}

static bool is_utf8(const char *text) {
  json_t *string = json_string(text);
  json_decref(string);
  return string != NULL;
}

static void test_command(void **state) {
  (void)state;
  make_model();
  /* The text is that of the ids, and both repeat. */
  char *ids = output("generate --model model --tokens 104,105 --max-new-tokens 40 --temperature 1 --seed 3");
  char *text = output("generate --model model --prompt hi --max-new-tokens 40 --temperature 1 --seed 3");
  char *again =
      output("generate --model model --prompt hi --max-new-tokens 40 --temperature 1 --seed 3 --threads 1");
  char *other = output("generate --model model --prompt hi --max-new-tokens 40 --temperature 1 --seed 4");
  assert_string_equal(text, again);
  assert_string_not_equal(text, other);
  assert_true(is_utf8(text));
  size_t byte = 0;
  for (const char *c = ids; *c; c += strcspn(c, ",\n") + 1) {
    long id = strtol(c, NULL, 10);
    if (id >= 128) break; /* what follows may be part of a longer character */
    assert_int_equal((unsigned char)text[byte++], id);
  }
  free(ids), free(text), free(again), free(other);
  /* Templates open a prompt as in training; greedy. */
  char *a = output("generate --model model --prompt hi --prompt-template 'Q: {prompt}' --max-new-tokens 9");
  char *b = output("generate --model model --prompt 'Q: hi' --max-new-tokens 9");
  assert_string_equal(a, b);
  free(a), free(b);
  a = output("generate --model model --prompt hi --chat --max-new-tokens 9");
  assert_true(is_utf8(a));
  b = output("generate --model model --prompt hi --chat --chat-template qwen3 --max-new-tokens 9");
  assert_string_equal(a, b);
  free(a);
  a = output(
      "generate --model model --prompt hi --chat --chat-template qwen3 --no-thinking --max-new-tokens 9");
  assert_string_not_equal(a, b);
  free(b);
  b = output("generate --model model --max-new-tokens 9 --prompt '<|im_start|>user\nhi<|im_end|>\n"
             "<|im_start|>assistant\n<think>\n\n</think>\n\n'");
  assert_string_equal(a, b);
  free(a), free(b);
}

/* generation_config.json names the very token that comes first. */
static void test_stop(void **state) {
  (void)state;
  make_model();
  test_run run =
      test_kedge("generate --model model --tokens 1 --max-new-tokens 1", 0, "cut at --max-new-tokens");
  int id = atoi(run.out);
  test_run_free(&run);
  char text[64];
  snprintf(text, sizeof text, "{\"eos_token_id\": [5000, %d]}", id);
  test_write_text(at("model/generation_config.json"), text);
  run = test_kedge("generate --model model --tokens 1 --max-new-tokens 50", 0, "1 new ones");
  assert_int_equal(atoi(run.out), id);
  assert_non_null(strstr(run.err, "ended"));
  test_run_free(&run);
}

static void test_refusals(void **state) {
  (void)state;
  make_model();
  test_kedge_expect("generate --model model", 2, "expected either --prompt or --tokens");
  test_kedge_expect("generate --model model --prompt a --tokens 1", 2,
                    "expected either --prompt or --tokens");
  test_kedge_expect("generate --model model --tokens 1 --chat", 2, "no template");
  test_kedge_expect("generate --model model --prompt a --no-thinking", 2, "needs --chat");
  test_kedge_expect("generate --model model --prompt a --chat --prompt-template '{prompt}'", 2, "exclude");
  test_kedge_expect("generate --model model --prompt a --prompt-template 'x'", 2, "{prompt}");
  test_kedge_expect("generate --model model --prompt ''", 2, "the prompt has no token");
  test_kedge_expect("generate --model model --prompt \"$(printf '\\377')\"", 2, "UTF-8");
  test_kedge_expect("generate --model model --tokens 264", 2, "id 264 is not below vocab_size 264");
  test_kedge_expect("generate --model model --prompt a --top-p 1.1", 2, "--top-p");
  test_kedge_expect("generate --model model --prompt a --temperature -1", 2, "--temperature");
  test_kedge_expect("generate --model model --prompt a --max-new-tokens 0", 2, "--max-new-tokens");
  test_kedge_expect("generate --model model --prompt a --backend null", 2, "null computes nothing");
  test_kedge_expect("generate --model nowhere --prompt a", 2, "nowhere");
  test_remove(at("model/tokenizer.json"));
  test_kedge_expect("generate --model model --prompt a", 2, "model");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_frequencies), cmocka_unit_test(test_edges),
                                     cmocka_unit_test(test_cache),       cmocka_unit_test(test_loop),
                                     cmocka_unit_test(test_memory),      cmocka_unit_test(test_command),
                                     cmocka_unit_test(test_stop),        cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
