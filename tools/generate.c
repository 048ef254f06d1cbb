/* SPDX-License-Identifier: Apache-2.0
 * `kedge generate`: continues a prompt (models/decoder/generate.h). Text comes out as it is made. */
#include "models/decoder/generate.h"
#include "models/text/samples.h"
#include "models/text/unicode.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"

#include <stdio.h>
#include <string.h>

enum { MAX_STOPS = 2 * KEDGE_HF_MAX_IDS + 2 };

typedef struct generate_command {
  const char *model, *prompt, *tokens, *dtype, *backend, *prompt_template, *chat_template, *model_options;
  double temperature, top_p;
  int64_t top_k, seed, max_new_tokens, threads;
  bool chat, no_thinking;
} generate_command;

/* A generation on its way to standard output. */
typedef struct generate_state {
  kedge_tokenizer *tokenizer; /* NULL: ids are printed */
  int32_t *prompt;
  size_t prompt_count;
  int32_t stops[MAX_STOPS];
  uint32_t stop_count;
  size_t count; /* new tokens */
  int32_t *ids; /* those of them that have text */
  size_t text_count;
  size_t printed; /* bytes of their text */
  kedge_status status;
} generate_state;

/* ---- Output
 * ------------------------------------------------------------------------------------------------------ */

/* Prints text[0..length) up to the last complete character; what can be no character becomes U+FFFD. With
 * `last`, an incomplete one at the end, too. Returns the bytes that are done with. */
static size_t print_text(const char *text, size_t length, bool last) {
  size_t at = 0;
  while (at < length) {
    size_t valid = kedge__utf8_valid(text + at, length - at);
    fwrite(text + at, 1, valid, stdout);
    at += valid;
    if (at == length) break;
    const unsigned char lead = (unsigned char)text[at];
    const size_t wants = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 1;
    size_t got = 1;
    while (got < wants && at + got < length && ((unsigned char)text[at + got] & 0xc0) == 0x80) got++;
    if (!last && at + got == length && got < wants) break; /* the rest may come */
    fputs("\xef\xbf\xbd", stdout);
    at += got;
  }
  fflush(stdout);
  return at;
}

static kedge_status print_more(generate_state *s, bool last) {
  char *text;
  size_t length;
  KEDGE_TRY(kedge_tokenizer_decode(s->tokenizer, s->ids, s->text_count, true, &text, &length));
  if (length > s->printed) s->printed += print_text(text + s->printed, length - s->printed, last);
  kedge_free(text);
  return KEDGE_OK;
}

static bool on_token(void *context, int32_t id, const float *logits) {
  generate_state *s = context;
  (void)logits;
  s->count++;
  if (!s->tokenizer) {
    printf("%s%d", s->count > 1 ? "," : "", id);
    fflush(stdout);
  } else if (kedge_tokenizer_content(s->tokenizer, id)) { /* rows past the vocabulary have no text */
    s->ids[s->text_count++] = id;
    s->status = print_more(s, false);
  }
  return s->status == KEDGE_OK && !interrupt_requested() && !ferror(stdout);
}

/* ---- Prompt
 * ------------------------------------------------------------------------------------------------------ */

static void add_stop(generate_state *s, int32_t id) {
  if (id >= 0 && s->stop_count < MAX_STOPS) s->stops[s->stop_count++] = id;
}

/* What generation_config.json lists, else config.json; and with text the token with which samples end. */
static void list_stops(generate_state *s, const kedge_hf_config *config) {
  const kedge_id_list *list = config->generation_eos.count ? &config->generation_eos : &config->eos;
  for (uint32_t i = 0; i < list->count; i++) add_stop(s, list->ids[i]);
  if (s->tokenizer) add_stop(s, kedge_tokenizer_eos(s->tokenizer));
}

/* The token that ends an answer in a chat template: the last one of an empty answer's text. */
static kedge_status add_end_of_turn(generate_state *s, const kedge_chat_template *chat) {
  const kedge_chat_turn talk[] = {{.role = "user", .content = ""},
                                  {.role = "assistant", .content = "", .answer = true}};
  kedge_rendering turn = {0};
  int32_t *ids = NULL;
  size_t count = 0;
  kedge_status status = kedge_chat_render(&turn, chat, talk, 2);
  for (size_t i = 0; status == KEDGE_OK && i < turn.part_count; i++) {
    if (!turn.parts[i].trained) continue;
    status = kedge_tokenizer_encode(s->tokenizer, turn.text + turn.parts[i].start, turn.parts[i].length,
                                    KEDGE_ENCODE_SPECIAL, &ids, &count);
    if (status == KEDGE_OK && count && kedge_tokenizer_is_special(s->tokenizer, ids[count - 1]))
      add_stop(s, ids[count - 1]);
    kedge_free(ids);
    ids = NULL;
  }
  kedge_rendering_destroy(&turn);
  return status;
}

static kedge_status encode_chat(const generate_command *o, generate_state *s,
                                const kedge_dataset_options *options) {
  const kedge_chat_turn asked = {.role = "user", .content = o->prompt, .length = strlen(o->prompt)};
  const kedge_chat_template *chat;
  kedge_rendering turns = {0};
  KEDGE_TRY(kedge_chat_template_choose(o->chat_template, s->tokenizer, &chat));
  kedge_status status = kedge_chat_render(&turns, chat, &asked, 1);
  if (status == KEDGE_OK) status = kedge_chat_render_header(&turns, chat, !o->no_thinking);
  if (status == KEDGE_OK) status = kedge_dataset_encode(options, &turns, &s->prompt, &s->prompt_count);
  if (status == KEDGE_OK) status = add_end_of_turn(s, chat);
  kedge_rendering_destroy(&turns);
  return status;
}

static kedge_status read_prompt(const generate_command *o, generate_state *s, const kedge_hf_config *config) {
  if (o->tokens) {
    list_stops(s, config);
    return input_ids(o->tokens, config->vocab_size, &s->prompt, &s->prompt_count);
  }
  KEDGE_TRY(kedge_tokenizer_open(o->model, NULL, &s->tokenizer));
  list_stops(s, config);
  const kedge_dataset_options options = {.tokenizer = s->tokenizer,
                                         .eos = -1,
                                         .prompt_template = o->prompt_template,
                                         .chat_template = o->chat_template};
  if (o->chat) return encode_chat(o, s, &options);
  return kedge_dataset_encode_prompt(&options, o->prompt, strlen(o->prompt), &s->prompt, &s->prompt_count);
}

static kedge_status check_options(const generate_command *o) {
  if (!o->prompt == !o->tokens) return kedge_fail(KEDGE_ERR_ARGUMENT, "expected either --prompt or --tokens");
  if (o->tokens && (o->chat || o->prompt_template || o->chat_template))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--tokens are taken as they are: no template with them");
  if (o->chat && o->prompt_template)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--chat and --prompt-template exclude each other");
  if (o->no_thinking && !o->chat)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--no-thinking is for answers in a chat: it needs --chat");
  return KEDGE_OK;
}

/* ---- Run
 * ---------------------------------------------------------------------------------------------------------
 */

static kedge_status compute(const generate_command *o, generate_state *s, const kedge_model *model) {
  s->ids = kedge_alloc((size_t)o->max_new_tokens, sizeof *s->ids);
  if (!s->ids) return KEDGE_ERR_MEMORY;
  if (s->prompt_count > INT32_MAX / 2)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "a prompt of %zu tokens is too long", s->prompt_count);
  const kedge_generate_options options = {
      .max_new_tokens = (uint32_t)o->max_new_tokens,
      .sampling = {o->temperature, o->top_p, (uint32_t)o->top_k, (uint64_t)o->seed},
      .stops = s->stops,
      .stop_count = s->stop_count,
      .token = on_token,
      .context = s};
  kedge_generate_result result;
  kedge_status status = kedge_generate(model, s->prompt, (uint32_t)s->prompt_count, &options, &result);
  if (s->status != KEDGE_OK) return kedge_fail(s->status, "%s", kedge_status_text(s->status));
  if (s->tokenizer && s->count) KEDGE_TRY(print_more(s, true));
  if (s->count) printf("\n");
  fflush(stdout);
  if (ferror(stdout)) return kedge_fail(KEDGE_ERR_IO, "standard output: writing failed");
  KEDGE_TRY(status);
  /* The first token comes of the prompt's pass, each further one of its own. */
  double rate =
      result.decode_seconds > 0 && result.tokens > 1 ? (result.tokens - 1) / result.decode_seconds : 0;
  fprintf(stderr, "generate: %zu prompt tokens in %.2f s, %u new ones at %.1f tokens/s, %s\n",
          s->prompt_count, result.prompt_seconds, result.tokens, rate,
          result.stopped ? "ended" : "cut at --max-new-tokens");
  return KEDGE_OK;
}

static kedge_status run(const generate_command *o) {
  kedge_hf_config config;
  kedge_device *device = NULL;
  kedge_model *model = NULL;
  kedge_dtype dtype;
  generate_state s = {0};
  KEDGE_TRY(check_options(o));
  KEDGE_TRY(kedge_hf_config_load(o->model, &config));
  interrupt_listen();
  kedge_status status = input_dtype(o->dtype, &config, &dtype);
  if (status == KEDGE_OK) status = read_prompt(o, &s, &config);
  if (status == KEDGE_OK) status = input_device(o->backend, o->threads, &device);
  if (status == KEDGE_OK) input_device_tell(device);
  const kedge_model_how how = {.dtype = dtype, .map = true, .options = o->model_options};
  if (status == KEDGE_OK) status = kedge_model_open(device, o->model, &how, &model);
  if (status == KEDGE_OK) status = compute(o, &s, model);
  kedge_model_free(model);
  kedge_device_close(device);
  kedge_tokenizer_free(s.tokenizer);
  kedge_free(s.prompt);
  kedge_free(s.ids);
  kedge_hf_config_destroy(&config);
  return status;
}

int command_generate(int argc, char **argv) {
  generate_command o = {.top_p = 1, .max_new_tokens = 128, .backend = "cpu"};
  const cli_option options[] = {
      {"--model", CLI_TEXT, &o.model, "DIR", "model directory", true, 0, 0},
      {"--prompt", CLI_TEXT, &o.prompt, "TEXT", "text to continue", false, 0, 0},
      {"--tokens", CLI_TEXT, &o.tokens, "IDS", "ids to continue: 1,2,3; new ids are printed", false, 0, 0},
      {"--max-new-tokens", CLI_INT, &o.max_new_tokens, "N", "at most so many (128)", false, 1, 1 << 20},
      {"--temperature", CLI_REAL, &o.temperature, "X", "0: always the most likely token (0)", false, 0, 1000},
      {"--top-p", CLI_REAL, &o.top_p, "X", "draw from the tokens that make up this probability (1)", false, 0,
       1},
      {"--top-k", CLI_INT, &o.top_k, "N", "draw from the N most likely tokens (0: all)", false, 0, 1 << 30},
      {"--seed", CLI_INT, &o.seed, "N", "seed of the draws (0)", false, 0, 0x1p53},
      {"--chat", CLI_FLAG, &o.chat, NULL, "the prompt is a user's turn in a chat", false, 0, 0},
      {"--no-thinking", CLI_FLAG, &o.no_thinking, NULL,
       "answer with an empty think block, where the chat template has them", false, 0, 0},
      {"--chat-template", CLI_TEXT, &o.chat_template, "NAME",
       "chatml, qwen1.5, qwen2, qwen2.5, qwen3, qwen3-thinking, moonlight, deepseek, granite, mistral, "
       "tulu (auto)",
       false, 0, 0},
      {"--prompt-template", CLI_TEXT, &o.prompt_template, "TEXT", "text with {prompt} in it", false, 0, 0},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 storage (as the config says)", false, 0, 0},
      {"--model-options", CLI_TEXT, &o.model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--backend", CLI_TEXT, &o.backend, "NAME", "where to compute (cpu)", false, 0, 0},
      INPUT_DEVICE_OPTION,
      {"--threads", CLI_INT, &o.threads, "N", "threads (0: all)", false, 0, 4096}};
  const cli_spec spec = {
      .command = "generate",
      .synopsis = "",
      .summary =
          "Continues a prompt and prints the new text as it is made. Templates and special tokens are\n"
          "those of training, so that a prompt opens as a training sample does.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge generate --model model --prompt \"Once upon a time\"\n"
          "kedge generate --model model --prompt \"Who is taller?\" --chat --temperature 0.7 --top-p 0.9"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("generate", run(&o));
}
