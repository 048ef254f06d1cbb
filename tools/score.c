/* SPDX-License-Identifier: Apache-2.0
 * `kedge score`: log-probabilities, and logits, of data or of ids, as a safetensors file. */
#include "models/decoder/score.h"
#include "models/text/samples.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

#include <math.h>
#include <stdio.h>

typedef struct score_options {
  const char *model, *tokens, *out, *dtype, *backend, *prompt_template, *chat_template, *model_options;
  cli_list data;
  int64_t max_length, batch_size, threads;
  bool logits;
} score_options;

/* What is scored: a dataset, or one list of ids. */
typedef struct score_input {
  kedge_tokenizer *tokenizer;
  kedge_dataset *dataset;
  int32_t *ids;
  uint64_t offsets[2];
} score_input;

static void note(void *context, const char *line) {
  (void)context;
  fprintf(stderr, "note: %s\n", line);
}

static bool advanced(void *context, uint32_t samples, uint32_t total, uint64_t tokens) {
  (void)total;
  progress_update(context, samples, tokens, NULL);
  return !interrupt_requested();
}

static kedge_status read_data(const score_options *o, score_input *in, kedge_score_samples *samples) {
  kedge_dataset_options options = {.max_length = (uint32_t)o->max_length,
                                   .loss_on_all = true,
                                   .eos = -1,
                                   .prompt_template = o->prompt_template,
                                   .chat_template = o->chat_template,
                                   .notice = note};
  KEDGE_TRY(kedge_tokenizer_open(o->model, NULL, &in->tokenizer));
  options.tokenizer = in->tokenizer;
  KEDGE_TRY(kedge_dataset_read(o->data.items, NULL, o->data.count, &options, &in->dataset));
  *samples =
      (kedge_score_samples){in->dataset->count, in->dataset->offsets, in->dataset->ids, in->dataset->spans};
  return KEDGE_OK;
}

static kedge_status read_ids(const score_options *o, const kedge_hf_config *config, score_input *in,
                             kedge_score_samples *samples) {
  size_t count;
  KEDGE_TRY(input_ids(o->tokens, config->vocab_size, &in->ids, &count));
  if (o->max_length && count > (size_t)o->max_length) count = (size_t)o->max_length;
  in->offsets[1] = count;
  *samples = (kedge_score_samples){1, in->offsets, in->ids, NULL};
  return KEDGE_OK;
}

static void print_result(const score_options *o, const kedge_score_result *r) {
  if (!r->scored) {
    printf("%s: %llu tokens, none with a prefix\n", o->out, (unsigned long long)r->tokens);
    return;
  }
  double mean = r->nll / (double)r->scored;
  printf("%s: %llu tokens, %llu scored, mean nll %.6f, perplexity %.6g\n", o->out,
         (unsigned long long)r->tokens, (unsigned long long)r->scored, mean, exp(mean));
  if (!r->answer) return;
  mean = r->answer_nll / (double)r->answer;
  printf("answers: %llu tokens, mean nll %.6f, perplexity %.6g\n", (unsigned long long)r->answer, mean,
         exp(mean));
}

static kedge_status compute(const score_options *o, const kedge_model *model,
                            const kedge_score_samples *samples) {
  kedge_score_result result;
  progress bar;
  progress_init(&bar, stderr, "score", "samples", 0, samples->count);
  const kedge_score_options options = {
      .logits = o->logits, .batch_size = (uint32_t)o->batch_size, .progress = advanced, .context = &bar};
  kedge_status status = kedge_score(model, samples, &options, o->out, &result);
  if (status != KEDGE_OK) {
    progress_clear(&bar);
    return status;
  }
  progress_end(&bar, NULL);
  print_result(o, &result);
  return KEDGE_OK;
}

static kedge_status run(const score_options *o) {
  kedge_hf_config config;
  kedge_device *device = NULL;
  kedge_model *model = NULL;
  kedge_dtype dtype;
  score_input in = {0};
  kedge_score_samples samples = {0};
  if (!o->tokens == !o->data.count)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expected either --data or --tokens");
  KEDGE_TRY(input_spare(o->out, o->model, o->data.items, o->data.count));
  KEDGE_TRY(kedge_hf_config_load(o->model, &config));
  interrupt_listen();
  kedge_status status = input_dtype(o->dtype, &config, &dtype);
  if (status == KEDGE_OK)
    status = o->tokens ? read_ids(o, &config, &in, &samples) : read_data(o, &in, &samples);
  if (status == KEDGE_OK) status = input_device(o->backend, o->threads, &device);
  if (status == KEDGE_OK) input_device_tell(device);
  const kedge_model_how how = {.dtype = dtype, .map = true, .options = o->model_options};
  if (status == KEDGE_OK) status = kedge_model_open(device, o->model, &how, &model);
  if (status == KEDGE_OK) status = compute(o, model, &samples);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_free(in.ids);
  kedge_dataset_free(in.dataset);
  kedge_tokenizer_free(in.tokenizer);
  kedge_hf_config_destroy(&config);
  return status;
}

int command_score(int argc, char **argv) {
  score_options o = {.batch_size = 8, .backend = "cpu"};
  const cli_option options[] = {
      {"--model", CLI_TEXT, &o.model, "DIR", "model directory", true, 0, 0},
      {"--out", CLI_TEXT, &o.out, "FILE", "safetensors file to write", true, 0, 0},
      {"--data", CLI_TEXTS, &o.data, "FILE", "JSON Lines to score; may be given several times", false, 0, 0},
      {"--tokens", CLI_TEXT, &o.tokens, "IDS", "ids to score: 1,2,3", false, 0, 0},
      {"--logits", CLI_FLAG, &o.logits, NULL, "write the logits of every token, too", false, 0, 0},
      {"--max-length", CLI_INT, &o.max_length, "N", "cut samples after N tokens (0: never)", false, 0,
       1 << 24},
      {"--batch-size", CLI_INT, &o.batch_size, "N", "samples a forward pass (8)", false, 1, 1 << 16},
      {"--prompt-template", CLI_TEXT, &o.prompt_template, "TEXT", "text with {prompt} in it", false, 0, 0},
      {"--chat-template", CLI_TEXT, &o.chat_template, "NAME",
       "chatml, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-thinking, moonlight, deepseek, granite, mistral, "
       "tulu (auto)",
       false, 0, 0},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 storage (as the config says)", false, 0, 0},
      {"--model-options", CLI_TEXT, &o.model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--backend", CLI_TEXT, &o.backend, "NAME", "where to compute (cpu)", false, 0, 0},
      INPUT_DEVICE_OPTION,
      {"--threads", CLI_INT, &o.threads, "N", "threads (0: all)", false, 0, 4096}};
  const cli_spec spec = {
      .command = "score",
      .synopsis = "",
      .summary =
          "Writes the log-probability of every token given the tokens before it in its sample:\n"
          "logprobs [tokens], mask, tokens, cu_seqlens and, if asked for, logits [tokens, vocabulary].\n"
          "Prints the mean negative log-probability (nats) and the perplexity.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples = "kedge score --model model --data eval.jsonl --out scores.safetensors\n"
                  "kedge score --model model --tokens 1,2,3 --logits --out scores.safetensors"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("score", run(&o));
}
