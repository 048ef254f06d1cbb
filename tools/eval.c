/* SPDX-License-Identifier: Apache-2.0
 * `kedge eval`: a model's answers to suites (models/evaluation/evaluate.h) as a table, as JSON and as a file
 * of all samples. */
#include "models/checkpoint/atomic.h"
#include "models/evaluation/evaluate.h"
#include "models/retention/probe.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct eval_command {
  const char *model, *out, *json, *dtype, *backend, *template_name, *chat_template, *choice, *options,
      *python, *model_options, *experts_of, *router_bias, *gate_source, *router_span;
  cli_list suites;
  double temperature, top_p, code_seconds, strength, eps, clip;
  int64_t limit, repeats, top_k, seed, max_new_tokens, batch_size, threads, choice_seed, rank;
  bool chat, allow_code, decode_all, whole, hard, no_thinking;
} eval_command;

static void note(void *context, const char *line) {
  progress_clear(context);
  fprintf(stderr, "note: %s\n", line);
}

static bool advanced(void *context, uint64_t samples, uint64_t total, uint64_t tokens) {
  progress *bar = context;
  if (!bar->total) {
    bar->total = total;
    bar->first = samples;
  }
  progress_update(bar, samples, tokens, NULL);
  return !interrupt_requested();
}

/* ---- Table
 * ------------------------------------------------------------------------------------------------------- */

static void print_share(const kedge_eval_group *g, double right, uint64_t samples) {
  double share, low, high;
  if (!samples) {
    printf("  %22s", "-");
    return;
  }
  kedge_eval_share(g, right, samples, &share, &low, &high);
  printf("  %6.4f [%6.4f %6.4f]", share, low, high);
}

/* Widths of the first two columns. */
typedef struct widths {
  int domain, split;
} widths;

static void widen(int *width, const char *text) {
  const int length = (int)strlen(text) > 48 ? 48 : (int)strlen(text);
  if (length > *width) *width = length;
}

static void print_group(const kedge_eval_group *g, widths w, bool choices, bool letters) {
  printf("%-*.*s  %-*.*s %7llu", w.domain, w.domain, g->domain, w.split, w.split, *g->split ? g->split : "-",
         (unsigned long long)g->items);
  print_share(g, g->right, g->samples);
  if (g->nll_tokens)
    printf("  %9.4f", g->nll / (double)g->nll_tokens);
  else
    printf("  %9s", "-");
  if (choices) print_share(g, g->normalised, g->choices);
  if (letters) print_share(g, g->lettered, g->letters);
  printf("\n");
}

static void print_table(const kedge_eval_summary *s) {
  kedge_eval_group all = {.domain = (char *)(uintptr_t) "all", .split = (char *)(uintptr_t) "by item"};
  bool choices = false, letters = false;
  widths w = {10, 10};
  for (uint32_t i = 0; i < s->group_count; i++) {
    const kedge_eval_group *g = &s->groups[i];
    widen(&w.domain, g->domain);
    widen(&w.split, g->split);
    choices |= g->choices > 0;
    letters |= g->letters > 0 && g->choices > 0;
    all.items += g->items, all.samples += g->samples, all.right += g->right;
    all.choices += g->choices, all.normalised += g->normalised;
    all.letters += g->letters, all.lettered += g->lettered;
    all.nll += g->nll, all.nll_tokens += g->nll_tokens;
  }
  printf("%-*s  %-*s %7s  %6s [%-15s  %9s%s%s\n", w.domain, "domain", w.split, "split", "n",
         s->repeats > 1 ? "avg@k" : "acc", "95 % interval]", "nll/token",
         choices ? "  by likelihood per byte" : "", letters ? "  by generated letter" : "");
  for (uint32_t i = 0; i < s->group_count; i++) print_group(&s->groups[i], w, choices, letters);
  if (s->group_count > 1) print_group(&all, w, choices, letters);
  printf("samples: %llu", (unsigned long long)s->samples);
  if (s->repeats > 1) printf(", %llu of each item", (unsigned long long)s->repeats);
  for (int i = 0; i < KEDGE_PATHS; i++)
    if (s->paths[i])
      printf("; %llu %s", (unsigned long long)s->paths[i],
             i == KEDGE_PATH_TOLD        ? "told by the reference's pass"
             : i == KEDGE_PATH_CONTINUED ? "decoded from where it ends"
             : i == KEDGE_PATH_DECODED   ? "decoded"
                                         : "by likelihood of options");
  printf("\n");
  if (s->unstopped) printf("ended by --max-new-tokens: %llu\n", (unsigned long long)s->unstopped);
  if (s->cut_prompts) printf("prompts cut at their beginning: %llu\n", (unsigned long long)s->cut_prompts);
}

static kedge_status write_json(const char *path, const kedge_eval_summary *s) {
  json_t *root = kedge_eval_summary_json(s);
  char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
  kedge_status status = text ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (text && !strcmp(path, "-"))
    puts(text);
  else if (text)
    status = kedge_file_write(path, text, strlen(text));
  free(text);
  json_decref(root);
  return status;
}

/* ---- Run
 * ---------------------------------------------------------------------------------------------------------
 */

static kedge_status find_word(const char *option, const char *word, const char *const *words, int count,
                              int *at) {
  for (*at = 0; *at < count; (*at)++)
    if (!strcmp(word, words[*at])) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: expected %s%s%s%s%s, came \"%.40s\"", option, words[0],
                    count > 2 ? ", " : " or ", words[1], count > 2 ? " or " : "", count > 2 ? words[2] : "",
                    word);
}

static kedge_status read_options(const eval_command *o, kedge_eval_options *e) {
  static const char *const choices[] = {"likelihood", "letter", "both"}, *const options[] = {"letters",
                                                                                             "texts"};
  int choice, texts;
  KEDGE_TRY(kedge_eval_template_find(o->template_name, &e->template_of));
  KEDGE_TRY(find_word("--choice", o->choice, choices, 3, &choice));
  KEDGE_TRY(find_word("--options", o->options, options, 2, &texts));
  e->choice = (kedge_choice_by)choice;
  e->option_texts = texts == 1;
  e->suites = o->suites.items;
  e->suite_count = o->suites.count;
  e->limit = (uint64_t)o->limit;
  e->repeats = (uint32_t)o->repeats;
  e->sampling = (kedge_sampling){o->temperature, o->top_p, (uint32_t)o->top_k, (uint64_t)o->seed};
  e->max_new_tokens = (uint32_t)o->max_new_tokens;
  e->sequences = (uint32_t)o->batch_size;
  e->chat = o->chat_template ? o->chat_template : o->chat ? "auto" : NULL;
  if (o->no_thinking && !e->chat)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--no-thinking is for answers in a chat: it needs --chat");
  e->no_thinking = o->no_thinking;
  e->choice_order = o->choice_seed;
  e->decode_all = o->decode_all;
  e->whole = o->whole;
  e->out = o->out;
  return KEDGE_OK;
}

/* ---- Steering
 * ---------------------------------------------------------------------------------------------------- */

/* What steers, and the folder of the other model; NULL: nothing does. */
static kedge_status read_steer(const eval_command *o, kedge_eval_steer *s, const char **base) {
  static const char *const sources[] = {"biased", "raw"}, *const spans[] = {"qa", "sample"};
  int source, span;
  *base = o->experts_of ? o->experts_of : o->router_bias;
  if (o->experts_of && o->router_bias)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--experts-of and --router-bias exclude each other");
  if (o->rank && !o->experts_of)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--experts-rank has no meaning without --experts-of");
  if (o->hard && !o->router_bias)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--router-hard has no meaning without --router-bias");
  KEDGE_TRY(find_word("--router-gates", o->gate_source, sources, 2, &source));
  KEDGE_TRY(find_word("--router-span", o->router_span, spans, 2, &span));
  s->rank = (uint32_t)o->rank;
  s->intervention = (kedge_intervention){.id = o->experts_of ? KEDGE_ROUTER_replay
                                               : o->hard     ? KEDGE_ROUTER_rpb_hard
                                                             : KEDGE_ROUTER_rpb,
                                         .beta = o->strength,
                                         .eps = o->eps,
                                         .clip = o->clip,
                                         .gate_raw = source == 1,
                                         .whole_sample = span == 1};
  return *base ? kedge_probe_check(*base, o->model) : KEDGE_OK;
}

static kedge_status open_steer(const eval_command *o, const kedge_model *model, kedge_eval_steer *s,
                               kedge_model **base, kedge_eval_options *e) {
  const char *folder;
  const kedge_model_how how = {.dtype = model->dtype, .map = true, .options = o->model_options};
  KEDGE_TRY(read_steer(o, s, &folder));
  if (!folder) return KEDGE_OK;
  KEDGE_TRY(kedge_model_open(model->device, folder, &how, base));
  s->base = *base;
  e->steer = s;
  return KEDGE_OK;
}

/* The results, told by the rank that has them. */
static kedge_status report(const eval_command *o, const kedge_eval_summary *s) {
  kedge_status status = KEDGE_OK;
  if (s->resumed)
    fprintf(stderr, "eval: %llu of %llu samples were there from an earlier run\n",
            (unsigned long long)s->resumed, (unsigned long long)s->samples);
  if (!o->json || strcmp(o->json, "-")) print_table(s);
  if (o->json) status = write_json(o->json, s);
  fflush(stdout);
  if (ferror(stdout)) status = kedge_fail(KEDGE_ERR_IO, "standard output: writing failed");
  return status;
}

static kedge_status evaluate(const eval_command *o, kedge_comm *comm, kedge_eval_options *e,
                             const kedge_model *model, const kedge_tokenizer *tokenizer) {
  kedge_eval_summary summary;
  progress bar;
  progress_init(&bar, stderr, "eval", "samples", 0, 0);
  e->notice = note;
  e->context = &bar;
  e->progress = advanced;
  kedge_status status = kedge_evaluate(model, tokenizer, e, &summary);
  progress_clear(&bar);
  if (status == KEDGE_OK) status = kedge_comm_agree(comm, ranks_leads(comm) ? report(o, &summary) : KEDGE_OK);
  kedge_eval_summary_destroy(&summary);
  return status;
}

/* What is opened. */
typedef struct opened {
  kedge_hf_config config;
  kedge_device *device;
  kedge_model *model, *base;
  kedge_eval_steer steer;
  kedge_tokenizer *tokenizer;
  kedge_sandbox sandbox;
} opened;

static kedge_status open_all(const eval_command *o, kedge_comm *comm, kedge_eval_options *e, opened *own) {
  const kedge_open_options open = {.threads = (uint32_t)o->threads, .rowwise = true};
  kedge_model_how how = {.map = true, .options = o->model_options};
  KEDGE_TRY(read_options(o, e));
  KEDGE_TRY(kedge_hf_config_load(o->model, &own->config));
  KEDGE_TRY(input_dtype(o->dtype, &own->config, &how.dtype));
  if (o->allow_code) {
    KEDGE_TRY(kedge_sandbox_open(&own->sandbox, o->python));
    own->sandbox.seconds = o->code_seconds;
    e->sandbox = &own->sandbox;
  }
  KEDGE_TRY(kedge_tokenizer_open(o->model, NULL, &own->tokenizer));
  KEDGE_TRY(ranks_device(comm, o->backend, &open, &own->device));
  input_device_tell(own->device);
  KEDGE_TRY(kedge_model_open(own->device, o->model, &how, &own->model));
  return open_steer(o, own->model, &own->steer, &own->base, e);
}

static kedge_status run(const eval_command *o, kedge_comm *comm) {
  kedge_eval_options e = {0};
  opened own = {0};
  interrupt_listen();
  kedge_status status = kedge_comm_agree(comm, open_all(o, comm, &e, &own));
  if (status == KEDGE_OK) status = evaluate(o, comm, &e, own.model, own.tokenizer);
  kedge_model_free(own.base);
  kedge_model_free(own.model);
  kedge_device_close(own.device);
  kedge_tokenizer_free(own.tokenizer);
  kedge_sandbox_close(&own.sandbox);
  kedge_hf_config_destroy(&own.config);
  return status;
}

int command_eval(int argc, char **argv) {
  eval_command o = {.top_p = 1,
                    .repeats = 1,
                    .max_new_tokens = 256,
                    .batch_size = 32,
                    .choice_seed = 42,
                    .code_seconds = 10,
                    .strength = 1,
                    .eps = 0.05,
                    .clip = 5,
                    .gate_source = "biased",
                    .router_span = "qa",
                    .backend = "cpu",
                    .template_name = "auto",
                    .choice = "likelihood",
                    .options = "letters"};
  const cli_option options[] = {
      {"--model", CLI_TEXT, &o.model, "DIR", "model directory", true, 0, 0},
      {"--suite", CLI_TEXTS, &o.suites, "PATH", "file or folder of questions; more may follow", true, 0, 0},
      {"--out", CLI_TEXT, &o.out, "DIR", "keep every sample here; a run that was ended goes on from it",
       false, 0, 0},
      {"--json", CLI_TEXT, &o.json, "FILE", "write the table as JSON, - for standard output", false, 0, 0},
      {"--limit", CLI_INT, &o.limit, "N", "the first N questions of each file (0: all)", false, 0, 0x1p53},
      {"--repeats", CLI_INT, &o.repeats, "N", "samples of each question, averaged (1)", false, 1, 10000},
      {"--temperature", CLI_REAL, &o.temperature, "X", "0: always the most likely token (0)", false, 0, 1000},
      {"--top-p", CLI_REAL, &o.top_p, "X", "draw from the tokens that make up this probability (1)", false, 0,
       1},
      {"--top-k", CLI_INT, &o.top_k, "N", "draw from the N most likely tokens (0: all)", false, 0, 1 << 30},
      {"--seed", CLI_INT, &o.seed, "N", "seed of the first sample; later ones count on (0)", false, 0,
       0x1p53},
      {"--max-new-tokens", CLI_INT, &o.max_new_tokens, "N", "of an answer (256)", false, 1, 1 << 20},
      {"--template", CLI_TEXT, &o.template_name, "NAME", "auto, bare, math, choice, code (auto: by question)",
       false, 0, 0},
      {"--chat", CLI_FLAG, &o.chat, NULL, "prompts are turns of a chat", false, 0, 0},
      {"--chat-template", CLI_TEXT, &o.chat_template, "NAME",
       "chatml, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-thinking, moonlight, deepseek, granite, mistral, "
       "tulu (auto)",
       false, 0, 0},
      {"--no-thinking", CLI_FLAG, &o.no_thinking, NULL,
       "answers open with an empty think block, where the chat template has them", false, 0, 0},
      {"--choice", CLI_TEXT, &o.choice, "HOW",
       "choices by likelihood, letter (generated) or both (likelihood)", false, 0, 0},
      {"--options", CLI_TEXT, &o.options, "WHAT", "likelihood of the options' letters or texts (letters)",
       false, 0, 0},
      {"--choice-seed", CLI_INT, &o.choice_seed, "N", "seed of the order of options; -1: as published (42)",
       false, -1, 0x1p53},
      {"--allow-code-execution", CLI_FLAG, &o.allow_code, NULL,
       "run Python that the model writes, in a sandbox", false, 0, 0},
      {"--python", CLI_TEXT, &o.python, "NAME", "interpreter for it (python3)", false, 0, 0},
      {"--code-seconds", CLI_REAL, &o.code_seconds, "X", "time of one program (10)", false, 0.1, 3600},
      {"--whole", CLI_FLAG, &o.whole, NULL, "own rows are right only if the whole completion is said (fast)",
       false, 0, 0},
      {"--decode-all", CLI_FLAG, &o.decode_all, NULL, "decode also where one pass over the reference tells",
       false, 0, 0},
      {"--experts-of", CLI_TEXT, &o.experts_of, "DIR",
       "use the experts that this model chooses for the same tokens, with the own gate weights on them",
       false, 0, 0},
      {"--experts-rank", CLI_INT, &o.rank, "N", "only in the place of the N-th best expert (0: all of them)",
       false, 0, 65536},
      {"--router-bias", CLI_TEXT, &o.router_bias, "DIR",
       "keep the bias of rpb on, of the prior that this base has of each question and its reference", false,
       0, 0},
      {"--router-strength", CLI_REAL, &o.strength, "X", "beta of that bias (1)", false, 0, 1e6},
      {"--router-hard", CLI_FLAG, &o.hard, NULL, "the prior's own experts in place of the bias (rpb_hard)",
       false, 0, 0},
      {"--router-eps", CLI_REAL, &o.eps, "X", "lower clip of the prior, in parts of 1/E (0.05)", false, 1e-12,
       1},
      {"--router-clip", CLI_REAL, &o.clip, "X", "upper clip of the prior, in parts of 1/E (5)", false, 1,
       1e6},
      {"--router-gates", CLI_TEXT, &o.gate_source, "WHAT", "gate weights from biased or raw logits (biased)",
       false, 0, 0},
      {"--router-span", CLI_TEXT, &o.router_span, "WHAT", "a prior for question and answer (qa), or a sample",
       false, 0, 0},
      {"--batch-size", CLI_INT, &o.batch_size, "N", "sequences together; changes no result (32)", false, 1,
       4096},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 storage (as the config says)", false, 0, 0},
      {"--model-options", CLI_TEXT, &o.model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--backend", CLI_TEXT, &o.backend, "NAME", "where to compute (cpu)", false, 0, 0},
      INPUT_DEVICE_OPTION,
      {"--threads", CLI_INT, &o.threads, "N", "threads (0: all)", false, 0, 4096}};
  const cli_spec spec = {
      .command = "eval",
      .synopsis = "[PATH ...]",
      .summary =
          "Lets a model answer questions and prints the share of right answers by domain and split.\n"
          "Reads Kedge's own rows (prompt, completion, and answer, choices, domain, split where they are\n"
          "there) and GSM8K, SVAMP, BBH, MMLU, MBPP and HumanEval as published, also with .gz.\n"
          "Ranks that mpirun or srun starts share the questions; results and files have the same bits.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .most = CLI_MAX_ARGUMENTS,
      .examples =
          "kedge eval --model runs/a --suite test.jsonl --out runs/a/eval\n"
          "kedge eval --model model --suite gsm8k_test.jsonl --suite bbh --chat --max-new-tokens 512\n"
          "kedge eval --model model --suite test.jsonl --temperature 0.6 --top-p 0.95 --repeats 5 --seed 42"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  for (size_t i = 0; i < arguments.count && o.suites.count < CLI_MAX_ARGUMENTS; i++)
    o.suites.items[o.suites.count++] = arguments.items[i];
  kedge_comm *comm = NULL;
  kedge_status status = ranks_open("eval", true, &comm);
  if (status == KEDGE_OK) status = ranks_same_arguments(comm, argc, argv);
  if (status == KEDGE_OK) status = run(&o, comm);
  return ranks_finish("eval", comm, status);
}
