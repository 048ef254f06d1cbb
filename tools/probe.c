/* SPDX-License-Identifier: Apache-2.0
 * `kedge probe`: how much of a base model's routing a post-trained model kept (models/routing/probe.h). */
#include "models/routing/probe.h"
#include "models/checkpoint/atomic.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

#include <stdio.h>
#include <string.h>

static void note(void *context, const char *line) {
  (void)context;
  fprintf(stderr, "note: %s\n", line);
}

static bool advanced(void *context, uint64_t tokens, uint64_t total) {
  (void)total;
  progress_update(context, tokens, tokens, NULL);
  return !interrupt_requested();
}

typedef struct settings {
  const char *base, *post, *backend, *dtype, *template, *trace_out, *model_options;
  cli_list files;
  int64_t max_tokens, batch_size, max_length, threads;
  bool json;
} settings;

/* ---- Tracing
 * ------------------------------------------------------------------------------------------------------ */

/* The asked dtype, or for auto the files' own if both models have the same, else f32. */
static kedge_status choose_dtype(const settings *s, kedge_dtype *dtype) {
  kedge_hf_config a, b;
  *dtype = KEDGE_F32;
  if (!strcmp(s->dtype, "f32")) return KEDGE_OK;
  if (!strcmp(s->dtype, "bf16")) {
    *dtype = KEDGE_BF16;
    return KEDGE_OK;
  }
  if (strcmp(s->dtype, "auto"))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--dtype: expected f32, bf16 or auto, came \"%.80s\"", s->dtype);
  KEDGE_TRY(kedge_hf_config_load(s->base, &a));
  kedge_status status = kedge_hf_config_load(s->post, &b);
  if (status == KEDGE_OK) {
    if (kedge_model_file_dtype(&a) == kedge_model_file_dtype(&b)) *dtype = kedge_model_file_dtype(&a);
    kedge_hf_config_destroy(&b);
  }
  kedge_hf_config_destroy(&a);
  return status;
}

/* Opens one model, routes the data through it, and closes it again: two models never share the memory. */
static kedge_status trace_model(const settings *s, const char *which, const char *directory,
                                kedge_device *device, kedge_dtype dtype, const kedge_dataset *data,
                                const kedge_tokenizer *tokenizer, kedge_trace *trace) {
  kedge_model *model;
  char label[32];
  progress bar;
  fprintf(stderr, "probe: %s %s, %s on %s\n", which, directory, kedge_dtype_name(dtype),
          kedge_device_description(device));
  const kedge_model_how how = {.dtype = dtype, .map = true, .options = s->model_options};
  KEDGE_TRY(kedge_model_open(device, directory, &how, &model));
  uint64_t tokens = data->offsets[data->count];
  if (s->max_tokens && (uint64_t)s->max_tokens < tokens) tokens = (uint64_t)s->max_tokens;
  snprintf(label, sizeof label, "probe %s", which);
  progress_init(&bar, stderr, label, "tokens", 0, tokens);
  const kedge_trace_options options = {.batch_size = (uint32_t)s->batch_size,
                                       .max_tokens = (uint64_t)s->max_tokens,
                                       .with_weights = s->trace_out != NULL,
                                       .progress = advanced,
                                       .context = &bar};
  kedge_status status = kedge_trace_collect(model, data, &options, trace);
  if (status == KEDGE_OK) {
    progress_end(&bar, NULL);
    memcpy(trace->tokenizer, kedge_tokenizer_hash(tokenizer), sizeof trace->tokenizer);
  } else {
    progress_clear(&bar);
    status = kedge_fail_in(status, "%s", directory);
  }
  kedge_model_free(model);
  return status;
}

static kedge_status save_trace(const char *folder, const char *name, const kedge_trace *trace) {
  char *path = kedge_path_join(folder, name);
  kedge_status status = path ? kedge_folder_make(folder) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_trace_save(trace, path);
  kedge_free(path);
  return status;
}

/* ---- Printing
 * ----------------------------------------------------------------------------------------------------- */

static void print_row(const char *name, const kedge_retention_layer *r, uint64_t tokens) {
  if (!tokens) {
    printf("%-10s %9d  no token\n", name, 0);
    return;
  }
  printf("%-10s %9llu %9.4f %9.4f %9.4f %9.4f %9.4f %6.0f %6.0f %8.2f %8.2f\n", name,
         (unsigned long long)tokens, r->overlap, r->top1, r->tvd, r->jsd_nats, r->jsd_bits, r->dead_base,
         r->dead_post, r->load_base, r->load_post);
}

static void print_table(const settings *s, const kedge_probe *p) {
  printf("base %s\npost %s\n", s->base, s->post);
  printf("%llu tokens of %u samples, %u MoE layers, top %u of %u experts\n\n",
         (unsigned long long)p->all.tokens, p->samples, p->all.count, p->topk, p->experts);
  printf("%-10s %9s %9s %9s %9s %9s %9s %13s %17s\n", "", "", "", "", "", "JSD", "JSD", "dead experts",
         "load max/mean");
  printf("%-10s %9s %9s %9s %9s %9s %9s %6s %6s %8s %8s\n", "layer", "tokens", "overlap", "top-1", "TVD",
         "nats", "bits", "base", "post", "base", "post");
  for (uint32_t l = 0; l < p->all.count; l++) {
    char name[16];
    snprintf(name, sizeof name, "%d", p->all.layers[l].layer);
    print_row(name, &p->all.layers[l], p->all.layers[l].tokens);
  }
  print_row("mean", &p->all.mean, p->all.tokens);
  print_row("question", &p->question.mean, p->question.tokens);
  print_row("answer", &p->answer.mean, p->answer.tokens);
  printf("\nMeans over layers; dead experts are summed.\n");
  if (p->all.ties_known && p->all.mean.ties)
    printf("%llu choices hung on equal scores, where the lower expert is taken.\n",
           (unsigned long long)p->all.mean.ties);
}

static kedge_status print_report(const settings *s, const kedge_probe *p) {
  char *text;
  if (!s->json) {
    print_table(s, p);
    return KEDGE_OK;
  }
  KEDGE_TRY(kedge_probe_json(p, true, &text));
  puts(text);
  kedge_free(text);
  return KEDGE_OK;
}

/* ---- The command
 * -------------------------------------------------------------------------------------------------- */

/* Both tokenizers must give the same ids for the data; that their files differ (another library saved one)
 * does not matter. */
static kedge_status check_tokens(const settings *s, const kedge_dataset_options *options,
                                 const kedge_tokenizer *other, const kedge_dataset *data) {
  kedge_dataset_options again = *options;
  kedge_dataset *theirs;
  if (!strcmp(kedge_tokenizer_hash(options->tokenizer), kedge_tokenizer_hash(other))) return KEDGE_OK;
  again.tokenizer = other;
  again.notice = NULL;
  KEDGE_TRY(kedge_dataset_read(s->files.items, NULL, s->files.count, &again, &theirs));
  bool same = !strcmp(data->hash, theirs->hash);
  kedge_dataset_free(theirs);
  if (!same)
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "the tokenizers of %s and %s give this data other ids: the models would not see the same tokens",
        s->base, s->post);
  note(NULL, "the two tokenizers differ as files and give the same ids for this data");
  return KEDGE_OK;
}

static kedge_status probe(const settings *s) {
  kedge_tokenizer *base_tokenizer = NULL, *post_tokenizer = NULL;
  kedge_dataset *data = NULL;
  kedge_device *device = NULL;
  kedge_trace base = {0}, post = {0};
  kedge_probe result = {0};
  kedge_dtype dtype;
  kedge_status status;
  KEDGE_GOTO(choose_dtype(s, &dtype), status, done);
  KEDGE_GOTO(kedge_tokenizer_open(s->base, NULL, &base_tokenizer), status, done);
  KEDGE_GOTO(kedge_tokenizer_open(s->post, NULL, &post_tokenizer), status, done);
  KEDGE_GOTO(kedge_probe_check(s->base, s->post), status, done);
  /* Every token is routed whatever its part in a loss, so samples without a target stay. */
  const kedge_dataset_options options = {.tokenizer = base_tokenizer,
                                         .max_length = (uint32_t)s->max_length,
                                         .loss_on_all = true,
                                         .eos = -1,
                                         .prompt_template = s->template,
                                         .notice = note};
  KEDGE_GOTO(kedge_dataset_read(s->files.items, NULL, s->files.count, &options, &data), status, done);
  KEDGE_GOTO(check_tokens(s, &options, post_tokenizer, data), status, done);
  KEDGE_GOTO(input_device(s->backend, s->threads, &device), status, done);
  KEDGE_GOTO(trace_model(s, "base", s->base, device, dtype, data, base_tokenizer, &base), status, done);
  KEDGE_GOTO(trace_model(s, "post", s->post, device, dtype, data, base_tokenizer, &post), status, done);
  if (s->trace_out) {
    KEDGE_GOTO(save_trace(s->trace_out, "base.safetensors", &base), status, done);
    KEDGE_GOTO(save_trace(s->trace_out, "post.safetensors", &post), status, done);
  }
  KEDGE_GOTO(kedge_probe_compare(&base, &post, &result), status, done);
  status = print_report(s, &result);
done:
  kedge_probe_destroy(&result);
  kedge_trace_destroy(&base);
  kedge_trace_destroy(&post);
  kedge_device_close(device);
  kedge_dataset_free(data);
  kedge_tokenizer_free(base_tokenizer);
  kedge_tokenizer_free(post_tokenizer);
  return status;
}

int command_probe(int argc, char **argv) {
  settings s = {.backend = "cpu", .dtype = "auto", .batch_size = 8, .max_length = 1024};
  cli_list arguments;
  int code;
  const cli_option options[] = {
      {"--base", CLI_TEXT, &s.base, "DIR", "folder of the base model", true, 0, 0},
      {"--post", CLI_TEXT, &s.post, "DIR", "folder of the post-trained model", true, 0, 0},
      {"--data", CLI_TEXTS, &s.files, "FILE", "JSONL file to route; may be given again", true, 0, 0},
      {"--json", CLI_FLAG, &s.json, NULL, "print one JSON object", false, 0, 0},
      {"--max-tokens", CLI_INT, &s.max_tokens, "N", "stop after so many tokens, 0 = all (0)", false, 0,
       INT32_MAX},
      {"--max-length", CLI_INT, &s.max_length, "N", "longest sample in tokens (1024)", false, 2, 1048576},
      {"--batch-size", CLI_INT, &s.batch_size, "N", "samples in one forward pass (8)", false, 1, 65536},
      {"--prompt-template", CLI_TEXT, &s.template, "TEXT", "template of prompts with {prompt} in it", false,
       0, 0},
      {"--trace-out", CLI_TEXT, &s.trace_out, "DIR", "keep both routing traces (safetensors) here", false, 0,
       0},
      {"--dtype", CLI_TEXT, &s.dtype, "TYPE", "f32, bf16, or auto: the files' own (auto)", false, 0, 0},
      {"--model-options", CLI_TEXT, &s.model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--backend", CLI_TEXT, &s.backend, "NAME", "where to compute (cpu)", false, 0, 0},
      {"--threads", CLI_INT, &s.threads, "N", "CPU threads, 0 = all (0)", false, 0, 4096},
  };
  const cli_spec spec = {
      .command = "probe",
      .synopsis = "",
      .summary = "Routes the same tokens through a base model and a post-trained one, without any "
                 "intervention, and\n"
                 "tells how much of the routing was kept: top-k overlap, top-1 agreement, total variation "
                 "(TVD) and\n"
                 "Jensen-Shannon divergence (JSD) of expert utilisation, dead experts, and load.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge probe --base base --post run/final --data heldout.jsonl\n"
          "kedge probe --base base --post run/final --data a.jsonl --data b.jsonl --max-tokens 5000 --json"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  interrupt_listen();
  return cli_finish("probe", probe(&s));
}
