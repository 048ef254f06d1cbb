/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers without a tokenizer.json: tiktoken ranks files, and pairs of a vocabulary and a merges file.
 * Such files hold no pattern and no special tokens; the table of kinds supplies them. A new kind is a row.
 * Sibling header: tokenizer_internal.h.
 */
#include "models/text/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOKEN = 1024 };

#define QWEN_PATTERN                                                                                         \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                      \
  "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"                                                             \
  "\\s+(?!\\S)|\\s+"
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define KIMI_UPPER   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_PATTERN                                                                                         \
  "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"           \
  "[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|"           \
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* ChatML: every turn between its markers, then the opening of the answer. */
#define CHATML                                                                                               \
  "{% for turn in messages %}{{ '<|im_start|>' + turn['role'] + '\\n' + turn['content'] + '<|im_end|>\\n' "  \
  "}}{% endfor %}"                                                                                           \
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static kedge_status add_special(kedge_tokenizer *tokenizer, const char *content, uint32_t id, bool special) {
  return kedge__added_push(tokenizer, content, (int32_t)id, (kedge__added_token){.special = special});
}

/* The tokens after the vocabulary in Qwen's order. The later twelve are not special: ordinary text may hold
 * them. */
static kedge_status add_qwen(kedge_tokenizer *tokenizer, uint32_t first) {
  static const char *const contents[] = {
      "<|endoftext|>",  "<|im_start|>",   "<|im_end|>",      "<|object_ref_start|>", "<|object_ref_end|>",
      "<|box_start|>",  "<|box_end|>",    "<|quad_start|>",  "<|quad_end|>",         "<|vision_start|>",
      "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",   "<|video_pad|>",        "<tool_call>",
      "</tool_call>",   "<|fim_prefix|>", "<|fim_middle|>",  "<|fim_suffix|>",       "<|fim_pad|>",
      "<|repo_name|>",  "<|file_sep|>",   "<tool_response>", "</tool_response>",     "<think>",
      "</think>"};
  for (uint32_t i = 0; i < sizeof contents / sizeof *contents; i++)
    KEDGE_TRY(add_special(tokenizer, contents[i], first + i, i < 14));
  return KEDGE_OK;
}

static kedge_status add_gpt2(kedge_tokenizer *tokenizer, uint32_t first) {
  return add_special(tokenizer, "<|endoftext|>", first, true);
}

/* 258 tokens, most of them reserved under their own number. Models of this kind have no embedding for the
 * last two. */
static kedge_status add_kimi(kedge_tokenizer *tokenizer, uint32_t first) {
  static const struct {
    uint32_t place;
    const char *content;
  } named[] = {{0, "[BOS]"},
               {1, "[EOS]"},
               {2, "<|im_end|>"},
               {3, "<|im_user|>"},
               {4, "<|im_assistant|>"},
               {10, "<|im_system|>"},
               {17, "<|im_middle|>"},
               {254, "[PAD]"},
               {255, "[UNK]"}};
  for (uint32_t i = 0; i < 258; i++) {
    char content[40];
    snprintf(content, sizeof content, "<|reserved_token_%u|>", first + i);
    for (size_t j = 0; j < sizeof named / sizeof *named; j++)
      if (named[j].place == i) snprintf(content, sizeof content, "%s", named[j].content);
    KEDGE_TRY(add_special(tokenizer, content, first + i, true));
  }
  return KEDGE_OK;
}

static const kedge__kind kinds[] = {
    {"qwen", 151643, QWEN_PATTERN, true, false, NULL, "<|endoftext|>", "<|endoftext|>", "Qwen2Tokenizer",
     CHATML, add_qwen},
    {"gpt2", 50256, GPT2_PATTERN, false, false, "<|endoftext|>", "<|endoftext|>", NULL, "GPT2Tokenizer", NULL,
     add_gpt2},
    {"kimi", 163584, KIMI_PATTERN, false, true, "[BOS]", "[EOS]", "[PAD]", "PreTrainedTokenizerFast", NULL,
     add_kimi},
};

const kedge__kind *kedge__kind_find(const char *name, uint32_t ranks) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (name ? !strcmp(name, kinds[i].name) : kinds[i].ranks == ranks) return &kinds[i];
  return NULL;
}

/* ---- Ranks
 * -------------------------------------------------------------------------------------------------------------
 */

static int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Strict base64 with its padding; returns the number of bytes, 0 if it is not base64 or too long. */
static size_t decode_base64(const char *text, size_t length, char out[MAX_TOKEN]) {
  if (!length || length % 4 || length / 4 * 3 > MAX_TOKEN) return 0;
  size_t padding = text[length - 1] != '=' ? 0 : text[length - 2] != '=' ? 1 : 2, count = 0;
  for (size_t at = 0; at < length; at += 4) {
    uint32_t bits = 0;
    size_t pads = at + 4 == length ? padding : 0;
    for (size_t i = 0; i < 4; i++) {
      int digit = i < 4 - pads ? base64_digit(text[at + i]) : 0;
      if (digit < 0) return 0;
      bits = bits << 6 | (uint32_t)digit;
    }
    if (pads && (bits & (pads == 1 ? 0xFFu : 0xFFFFu))) return 0;
    for (size_t i = 0; i < 3 - pads; i++) out[count++] = (char)(bits >> (16 - 8 * i));
  }
  return count;
}

/* One line: base64, a space, the decimal rank, which must be the next one. */
static kedge_status read_line(kedge__bpe *bpe, kedge__bytes *spelled, const char *line, size_t length,
                              uint32_t rank) {
  char bytes[MAX_TOKEN], number[16];
  const char *space = memchr(line, ' ', length);
  size_t digits = space ? length - (size_t)(space + 1 - line) : 0;
  if (!digits) return kedge_fail(KEDGE_ERR_FORMAT, "base64, a space and a rank were expected");
  size_t count = decode_base64(line, (size_t)(space - line), bytes);
  if (!count) return kedge_fail(KEDGE_ERR_FORMAT, "the token is not base64 of 1 to %d bytes", MAX_TOKEN - 2);
  int expected = snprintf(number, sizeof number, "%u", rank);
  if ((size_t)expected != digits || memcmp(number, space + 1, digits))
    return kedge_fail(KEDGE_ERR_FORMAT, "rank %u was expected, not '%.*s'", rank,
                      (int)(digits < 20 ? digits : 20), space + 1);
  spelled->length = 0;
  KEDGE_TRY(kedge__spell_bytes(spelled, bytes, count));
  return kedge__vocab_add(&bpe->vocab, spelled->data, spelled->length, rank);
}

static kedge_status read_lines(kedge__bpe *bpe, const kedge__bytes *text) {
  kedge__bytes spelled = {0};
  kedge_status status = KEDGE_OK;
  uint32_t rank = 0;
  for (size_t at = 0; at < text->length && status == KEDGE_OK;) {
    const char *line = text->data + at, *newline = memchr(line, '\n', text->length - at);
    size_t length = newline ? (size_t)(newline - line) : text->length - at;
    at += length + 1;
    if (length && line[length - 1] == '\r') length--;
    if (!length && at >= text->length) break;
    status = read_line(bpe, &spelled, line, length, rank);
    if (status != KEDGE_OK) status = kedge_fail_in(status, "line %u", rank + 1);
    rank++;
  }
  kedge__bytes_free(&spelled);
  if (status == KEDGE_OK && !rank) return kedge_fail(KEDGE_ERR_FORMAT, "no ranks in it");
  return status;
}

/* tiktoken joins any two neighbours whose bytes together are a token, so that every way to cut a token into
 * two tokens is a merge, all with the rank of the whole. */
static kedge_status split_tokens(kedge__bpe *bpe) {
  for (uint32_t id = 0; id < bpe->vocab.size; id++) {
    size_t length, size;
    const char *text = kedge__vocab_text(&bpe->vocab, id, &length);
    for (size_t cut = 0; cut < length; cut += size) {
      uint32_t code;
      size = kedge__utf8_decode(text + cut, &code);
      if (!cut) continue;
      int32_t left = kedge__vocab_find(&bpe->vocab, text, cut);
      int32_t right = left < 0 ? -1 : kedge__vocab_find(&bpe->vocab, text + cut, length - cut);
      if (right >= 0)
        KEDGE_TRY(kedge__merges_add(&bpe->merges, (kedge__merge){(uint32_t)left, (uint32_t)right, id, id}));
    }
  }
  return KEDGE_OK;
}

/* What follows the vocabulary: pattern, special tokens, names. */
static kedge_status finish(kedge_tokenizer *tokenizer, const kedge__kind *kind, const char *what) {
  tokenizer->kind = kind;
  kedge__bpe_index(&tokenizer->bpe);
  for (unsigned byte = 0; byte < 256; byte++)
    if (tokenizer->bpe.first[kedge__byte_char((uint8_t)byte)] < 0)
      return kedge_fail(KEDGE_ERR_FORMAT, "byte 0x%02x has no token", byte);
  if (tokenizer->normalized && !tokenizer->bare)
    KEDGE_TRY(kedge__stages_push(&tokenizer->normalizer,
                                 (kedge__stage){.run = kedge__stage_normalize, .form = KEDGE__NFC}));
  kedge__stage split = {.run = kedge__stage_split, .behavior = KEDGE__ISOLATED};
  KEDGE_TRY(kedge__regex_new(KEDGE__FILE_SYNTAX, kind->pattern, strlen(kind->pattern), &split.regex));
  KEDGE_TRY(kedge__stages_push(&tokenizer->pre_tokenizer, split));
  KEDGE_TRY(kedge__push_byte_level(&tokenizer->pre_tokenizer, false, NULL));
  KEDGE_TRY(kedge__stages_push(&tokenizer->decoder, (kedge__stage){.run = kedge__stage_unspell}));
  const char *marks[] = {what, kind->name, tokenizer->bare ? "bare" : "model", kind->pattern};
  for (int i = 0; i < 4; i++)
    KEDGE_TRY(kedge__bytes_append(&tokenizer->pipeline, marks[i], strlen(marks[i]) + 1));
  if (kind->chat_template && !(tokenizer->chat_template = kedge_strdup(kind->chat_template)))
    return KEDGE_ERR_MEMORY;
  tokenizer->description = kedge_format("%s %s", what, kind->name);
  return tokenizer->description ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status name_tokens(kedge_tokenizer *tokenizer, const kedge__kind *kind) {
  tokenizer->bos = kind->bos ? kedge_tokenizer_id(tokenizer, kind->bos) : -1;
  tokenizer->eos = kind->eos ? kedge_tokenizer_id(tokenizer, kind->eos) : -1;
  tokenizer->pad = kind->pad ? kedge_tokenizer_id(tokenizer, kind->pad) : -1;
  return KEDGE_OK;
}

static kedge_status read_ranks(kedge_tokenizer *tokenizer, const kedge__bytes *text, const char *name) {
  kedge__bpe *bpe = &tokenizer->bpe;
  KEDGE_TRY(read_lines(bpe, text));
  const kedge__kind *kind = kedge__kind_find(name, bpe->vocab.size);
  if (!kind)
    return name
               ? kedge_fail(KEDGE_ERR_ARGUMENT, "tokenizer kind '%.40s' is not one of qwen, gpt2, kimi", name)
               : kedge_fail(KEDGE_ERR_UNSUPPORTED,
                            "%u ranks tell no pattern (151643 qwen, 50256 gpt2, 163584 kimi); name the kind",
                            bpe->vocab.size);
  tokenizer->from_ranks = bpe->whole_first = true;
  tokenizer->normalized = kind->nfc;
  KEDGE_TRY(finish(tokenizer, kind, "tiktoken"));
  KEDGE_TRY(split_tokens(bpe));
  KEDGE_TRY(kind->add_tokens(tokenizer, bpe->vocab.size));
  return name_tokens(tokenizer, kind);
}

kedge_status kedge__read_ranks(kedge_tokenizer *tokenizer, const char *path, const kedge__bytes *text,
                               const char *kind) {
  kedge_status status = read_ranks(tokenizer, text, kind);
  return status == KEDGE_OK ? status : kedge_fail_in(status, "%s", path);
}

/* ---- A vocabulary and its merges
 * ------------------------------------------------------------------------------------------ */

/* Lines "a b"; a first line that starts with #version is a heading. */
static kedge_status read_merge_lines(kedge__bpe *bpe, const kedge__bytes *text) {
  kedge__bytes joined = {0};
  kedge_status status = KEDGE_OK;
  uint32_t rank = 0;
  for (size_t at = 0, number = 1; at < text->length && status == KEDGE_OK; number++) {
    const char *line = text->data + at, *newline = memchr(line, '\n', text->length - at);
    size_t length = newline ? (size_t)(newline - line) : text->length - at;
    at += length + 1;
    if (length && line[length - 1] == '\r') length--;
    if (!length || (number == 1 && length >= 8 && !memcmp(line, "#version", 8))) continue;
    const char *space = memchr(line, ' ', length);
    size_t left = space ? (size_t)(space - line) : 0, right = space ? length - left - 1 : 0;
    joined.length = 0;
    KEDGE_GOTO(kedge__bytes_append(&joined, line, left), status, end);
    KEDGE_GOTO(kedge__bytes_append(&joined, line + length - right, right), status, end);
    int32_t a = kedge__vocab_find(&bpe->vocab, line, left),
            b = kedge__vocab_find(&bpe->vocab, line + length - right, right);
    int32_t id = kedge__vocab_find(&bpe->vocab, joined.data, joined.length);
    if (!left || !right || a < 0 || b < 0 || id < 0)
      status = kedge_fail(KEDGE_ERR_FORMAT, "line %zu: '%.*s' is not two tokens that make a third", number,
                          (int)(length < 80 ? length : 80), line);
    else
      status =
          kedge__merges_add(&bpe->merges, (kedge__merge){(uint32_t)a, (uint32_t)b, rank++, (uint32_t)id});
  }
end:
  kedge__bytes_free(&joined);
  return status;
}

static kedge_status read_pair(kedge_tokenizer *tokenizer, const char *vocab_path, const char *merges_path,
                              const char *name, kedge__bytes *text, json_t **vocab) {
  const kedge__kind *kind = kedge__kind_find(name, 0);
  if (!kind)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "tokenizer kind '%.40s' is not one of qwen, gpt2, kimi", name);
  KEDGE_TRY(kedge__read_file(vocab_path, text, NULL));
  KEDGE_TRY(kedge__parse_json(vocab_path, text, vocab));
  kedge_status status = kedge__read_vocab(&tokenizer->bpe.vocab, *vocab);
  if (status != KEDGE_OK) return kedge_fail_in(status, "%s", vocab_path);
  KEDGE_TRY(kedge__read_file(merges_path, text, NULL));
  if (kedge__utf8_valid(text->data, text->length) != text->length)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: not valid UTF-8", merges_path);
  status = read_merge_lines(&tokenizer->bpe, text);
  if (status != KEDGE_OK) return kedge_fail_in(status, "%s", merges_path);
  tokenizer->normalized = kind->nfc;
  status = finish(tokenizer, kind, "vocabulary and merges");
  if (status != KEDGE_OK) return kedge_fail_in(status, "%s", vocab_path);
  /* The special tokens of a kind may be entries of the vocabulary already. */
  uint32_t first = tokenizer->bpe.vocab.size;
  if (kind->eos && kedge__vocab_find(&tokenizer->bpe.vocab, kind->eos, strlen(kind->eos)) >= 0)
    first = (uint32_t)kedge__vocab_find(&tokenizer->bpe.vocab, kind->eos, strlen(kind->eos));
  KEDGE_TRY(kind->add_tokens(tokenizer, first));
  return name_tokens(tokenizer, kind);
}

kedge_status kedge__read_pair(kedge_tokenizer *tokenizer, const char *vocab_path, const char *merges_path,
                              const char *kind) {
  kedge__bytes text = {0};
  json_t *vocab = NULL;
  kedge_status status = read_pair(tokenizer, vocab_path, merges_path, kind, &text, &vocab);
  json_decref(vocab);
  kedge__bytes_free(&text);
  return status;
}
