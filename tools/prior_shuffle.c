/* SPDX-License-Identifier: Apache-2.0
 * `kedge prior-shuffle`: a prior with its experts permuted, a control (models/prior/shuffle.h). */
#include "models/prior/prior.h"
#include "tools/cli.h"
#include "tools/inputs.h"

#include <stdio.h>

typedef struct settings {
  const char *prior, *mode, *communities, *out;
  int64_t seed;
} settings;

static uint64_t moved(const kedge_shuffle *s) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < s->layers * s->experts; i++) count += s->sigma[i] != i % s->experts;
  return count;
}

static kedge_status shuffle_to(kedge_prior *prior, const settings *s, kedge_shuffle_mode mode) {
  kedge_shuffle shuffle;
  char count[32], all[32];
  KEDGE_TRY(kedge_prior_draw_shuffle(prior, mode, (uint64_t)s->seed, s->communities, &shuffle));
  kedge_status status = kedge_prior_save_shuffled(prior, &shuffle, s->out);
  if (status == KEDGE_OK)
    printf("%s: %s, seed %lld%s%s, %s of %s experts moved\n", s->out, s->mode, (long long)s->seed,
           *shuffle.communities ? ", communities " : "", shuffle.communities,
           cli_count(moved(&shuffle), count), cli_count((uint64_t)shuffle.layers * shuffle.experts, all));
  kedge_shuffle_destroy(&shuffle);
  return status;
}

static kedge_status run(const settings *s) {
  kedge_shuffle_mode mode;
  kedge_prior *prior;
  const char *const inputs[] = {s->prior, s->communities};
  if (!kedge_shuffle_mode_find(s->mode, &mode))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--mode: expected within or global, got \"%.40s\"", s->mode);
  if (mode == KEDGE_SHUFFLE_WITHIN && !s->communities)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "--mode within needs --communities FILE, which `kedge probe --communities` writes");
  if (mode == KEDGE_SHUFFLE_GLOBAL && s->communities)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--communities has no part in --mode global");
  KEDGE_TRY(input_spare(s->out, NULL, inputs, s->communities ? 2 : 1));
  KEDGE_TRY(kedge_prior_open(s->prior, &prior));
  kedge_status status = shuffle_to(prior, s, mode);
  kedge_prior_free(prior);
  return status;
}

int command_prior_shuffle(int argc, char **argv) {
  settings s = {.seed = 0};
  cli_list arguments;
  int code;
  const cli_option options[] = {
      {"--prior", CLI_TEXT, &s.prior, "FILE", "file that `kedge prior` wrote", true, 0, 0},
      {"--mode", CLI_TEXT, &s.mode, "MODE",
       "within: inside each community of the base; global: over all experts", true, 0, 0},
      {"--seed", CLI_INT, &s.seed, "N", "seed of the permutations (0)", false, 0, 4294967295.0},
      {"--communities", CLI_TEXT, &s.communities, "FILE",
       "JSON {\"layers\": [[label of expert 0, ...], ...]} with a list a MoE layer, for within", false, 0, 0},
      {"--out", CLI_TEXT, &s.out, "FILE", "file to write (safetensors)", true, 0, 0},
  };
  const cli_spec spec = {
      .command = "prior-shuffle",
      .synopsis = "",
      .summary = "Permutes the experts of a prior, one permutation a MoE layer for all samples: the control "
                 "that keeps\n"
                 "the prior's shape and takes away its meaning. The file keeps the identity of the prior and "
                 "tells the\n"
                 "shuffle. `shuffle`, `shuffle_seed` and `communities` of a run's router do the same without "
                 "a file.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge prior-shuffle --prior prior.safetensors --mode global --seed 1 --out global.safetensors\n"
          "kedge prior-shuffle --prior prior.safetensors --mode within --communities communities.json "
          "--out within.safetensors"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("prior-shuffle", run(&s));
}
