/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * A prior of 20,000 samples (266 MB) is read by memory map and never held: the check before a run, the tables
 * of a whole epoch and the measures all stay far below its size, and the check does not read it.
 */
#include "models/prior/prior_internal.h"
#include "models/prior/prior_stats.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 20000, L = 26, E = 64, TOKENS = 4, ROW = 2 * L * E * 4 };

#ifdef __SANITIZE_ADDRESS__ /* it keeps memory of its own for what is touched */
enum { EXACT = 0 };
#else
enum { EXACT = 1 };
#endif

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static const char config_json[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 64, \"hidden_size\": 8, \"intermediate_size\": 8,"
    " \"moe_intermediate_size\": 8, \"num_hidden_layers\": 26, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 4, \"num_experts\": 64, \"num_experts_per_tok\": 6,"
    " \"hidden_act\": \"silu\", \"decoder_sparse_step\": 1, \"mlp_only_layers\": []}";

static kedge_dataset *make_data(void) {
  static const int32_t ids[TOKENS] = {1, 2, 3, 4};
  static const int8_t spans[TOKENS] = {0, 0, 1, 1};
  static const uint8_t trained[TOKENS] = {0, 0, 1, 1};
  kedge_dataset_builder *b;
  kedge_dataset *d;
  bool kept;
  ok(kedge_dataset_builder_new(0, &b));
  ok(kedge_dataset_builder_file(b, "made"));
  for (uint32_t i = 0; i < N; i++)
    ok(kedge_dataset_builder_add(b, ids, spans, trained, TOKENS, i + 1, &kept));
  ok(kedge_dataset_builder_finish(b, &d));
  kedge_dataset_builder_free(b);
  return d;
}

/* The same rows for every sample; `holes`: rows are left out, and read as zeros. */
static void write_prior(const char *path, const kedge_prior_identity *id, bool holes) {
  kedge__prior_header header;
  void *bytes;
  uint64_t length;
  static float row[2 * L * E];
  const int32_t counts[2] = {2, 2};
  kedge__prior_header_init(&header, N, L, E, false, id, 6, NULL);
  ok(kedge_st_header_make(path, header.specs, KEDGE__PRIOR_TENSORS, header.pairs, header.pair_count, &bytes,
                          &length));
  for (int i = 0; i < 2 * L * E; i++) row[i] = (float)(1 + i % E) / (E * (E + 1) / 2);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, length, file), length);
  for (int64_t i = 0; i < N; i++) assert_int_equal(fwrite(&i, 8, 1, file), 1);
  for (int i = 0; i < N; i++) assert_int_equal(fwrite(counts, 8, 1, file), 1);
  for (int32_t l = 0; l < L; l++) assert_int_equal(fwrite(&l, 4, 1, file), 1);
  for (int i = 0; i < N && !holes; i++) assert_int_equal(fwrite(row, ROW, 1, file), 1);
  fflush(file);
  if (holes)
    assert_int_equal(ftruncate(fileno(file), (off_t)(length + 16ull * N + 4 * L + (uint64_t)N * ROW)), 0);
  assert_int_equal(fclose(file), 0);
  kedge_free(bytes);
}

/* The most memory that this process had, MiB. */
static unsigned peak(void) {
  char line[200];
  unsigned long kilobytes = 0;
  FILE *file = fopen("/proc/self/status", "re");
  assert_non_null(file);
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "VmHWM: %lu", &kilobytes) == 1) break;
  fclose(file);
  return (unsigned)(kilobytes / 1024);
}

typedef struct world {
  kedge_hf_config config;
  kedge_params params;
  kedge_dataset *data;
  kedge_prior_identity id;
  char path[600];
} world;

static void check(const world *w) {
  kedge_prior *prior;
  ok(kedge_prior_open(w->path, &prior));
  ok(kedge_prior_check(prior, &w->id, &w->params, w->data));
  kedge_prior_free(prior);
}

static void fill(const world *w) {
  enum { BATCH = 8 };
  kedge_prior *prior;
  float *table = malloc((size_t)L * 2 * BATCH * E * sizeof *table);
  assert_non_null(table);
  ok(kedge_prior_open(w->path, &prior));
  ok(kedge_prior_check(prior, &w->id, &w->params, w->data));
  for (uint32_t i = 0; i < N; i += BATCH) {
    uint64_t ids[BATCH];
    for (uint32_t j = 0; j < BATCH; j++)
      ids[j] = ((uint64_t)i + j) * 7919 % N; /* in the order of a shuffle */
    if (i % 16)
      ok(kedge_prior_fill_pi(prior, false, ids, BATCH, 2 * BATCH, table));
    else
      ok(kedge_prior_fill_bias(prior, 0.05, 5, false, ids, BATCH, 2 * BATCH, table, NULL));
  }
  kedge_prior_free(prior);
  free(table);
}

static void measure(const world *w) {
  kedge_prior *prior;
  kedge_prior_report report;
  const kedge_prior_stats_options options = {.eps = 0.05, .clip = 5, .beta = 1};
  ok(kedge_prior_open(w->path, &prior));
  ok(kedge_prior_measure(prior, NULL, &options, &report));
  assert_int_equal(report.all.rows, (uint64_t)N * 2 * L);
  kedge_prior_report_destroy(&report);
  kedge_prior_free(prior);
}

/* MiB that a child needs at most above what it starts with. */
static unsigned growth(const world *w, void (*work)(const world *)) {
  int way[2];
  unsigned grown = 0;
  assert_int_equal(pipe(way), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    const int fd = open("/proc/self/clear_refs", O_WRONLY); /* the peak begins anew */
    if (fd < 0 || write(fd, "5", 1) != 1) _exit(3);
    const unsigned before = peak();
    work(w);
    grown = peak() - before;
    _exit(write(way[1], &grown, sizeof grown) == sizeof grown ? 0 : 4);
  }
  int how;
  close(way[1]);
  const ssize_t got = read(way[0], &grown, sizeof grown);
  close(way[0]);
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0 && got == sizeof grown);
  return grown;
}

static void test_memory(void **state) {
  (void)state;
  static world w;
  struct stat info;
  const struct {
    const char *name;
    void (*work)(const world *);
    unsigned most;
  } works[] = {{"check", check, 24}, {"fill", fill, 24}, {"measure", measure, 24}};
  test_write_text(test_path(test_folder(), "config.json"), config_json);
  ok(kedge_hf_config_load(test_folder(), &w.config));
  ok(kedge_params_init(&w.params, &w.config));
  assert_int_equal(w.params.moe_layers, L);
  w.data = make_data();
  snprintf(w.path, sizeof w.path, "%s/prior.st", test_folder());
  memset(&w.id, 0, sizeof w.id);
  for (int i = 0; i < 6; i++)
    snprintf((char *[]){w.id.base, w.id.config, w.id.tensors, w.id.router, w.id.tokenizer, w.id.data}[i], 33,
             "%032d", i);
  snprintf(w.id.templates, sizeof w.id.templates, "prompt none, chat none");
  w.id.max_length = 1024;
  write_prior(w.path, &w.id, false);
  assert_true(!stat(w.path, &info) && info.st_size > 266 * 1000 * 1000);
  for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
    const unsigned grown = growth(&w, works[i].work);
    print_message("%s: %u MiB of %lld\n", works[i].name, grown, (long long)info.st_size >> 20);
    if (EXACT && grown > works[i].most)
      fail_msg("%s: %u MiB, at most %u", works[i].name, grown, works[i].most);
  }
  /* Rows that were never written are no probabilities: found before the run, without a look at each. */
  kedge_prior *prior;
  write_prior(w.path, &w.id, true);
  ok(kedge_prior_open(w.path, &prior));
  assert_int_equal(kedge_prior_check(prior, &w.id, &w.params, w.data), KEDGE_ERR_FORMAT);
  assert_non_null(strstr(kedge_message(), "prior_qa row (sample 0, span 0, layer 0)"));
  kedge_prior_free(prior);
  kedge_dataset_free(w.data);
  kedge_params_destroy(&w.params);
  kedge_hf_config_destroy(&w.config);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests_name("prior_memory", tests, NULL, NULL);
}
