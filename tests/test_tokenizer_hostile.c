/* SPDX-License-Identifier: Apache-2.0
 * Tokenizer files that are wrong, mutated or meant to hurt: one clear line, never a crash, never silence.
 * ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "models/text/tokenizer.h"
#include "tests/support/files.h"

static const char *put_text(const char *name, const char *text) {
  const char *path = test_path(test_folder(), name);
  test_write_text(path, text);
  return path;
}

/* Opening must fail with this status and a message that holds `part` and the file's name. */
static void refuse(const char *path, const char *kind, kedge_status status, const char *part) {
  kedge_tokenizer *t = (kedge_tokenizer *)(uintptr_t)1;
  kedge_status got = kedge_tokenizer_open(path, kind, &t);
  if (got != status || t || !strstr(kedge_message(), part) ||
      !strstr(kedge_message(), strrchr(path, '/') + 1))
    fail_msg("status %s, message '%s'; wanted %s and '%s'", kedge_status_name(got), kedge_message(),
             kedge_status_name(status), part);
}

#define MODEL(inside) "\"model\": {\"type\": \"BPE\", " inside "}"
#define AB            "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]"
#define GOOD          MODEL(AB)

static void wrong_json(void **state) {
  (void)state;
  static const struct {
    const char *text;
    kedge_status status;
    const char *part;
  } cases[] = {
      {"{", KEDGE_ERR_FORMAT, "line 1"},
      {"{}", KEDGE_ERR_FORMAT, "'model'"},
      {"{\"model\": 3}", KEDGE_ERR_FORMAT, "'model'"},
      {"{" MODEL("\"vocab\": {}") "}", KEDGE_ERR_FORMAT, "'merges'"},
      {"{" MODEL("\"vocab\": [], \"merges\": []") "}", KEDGE_ERR_FORMAT, "'vocab'"},
      {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}", KEDGE_ERR_UNSUPPORTED, "WordPiece"},
      {"{\"model\": {\"type\": 7, " AB "}}", KEDGE_ERR_FORMAT, "'type'"},
      {"{" MODEL("\"dropout\": 0.1, " AB) "}", KEDGE_ERR_UNSUPPORTED, "dropout"},
      {"{" MODEL("\"continuing_subword_prefix\": \"##\", " AB) "}", KEDGE_ERR_UNSUPPORTED, "##"},
      {"{" MODEL("\"end_of_word_suffix\": \"</w>\", " AB) "}", KEDGE_ERR_UNSUPPORTED, "</w>"},
      {"version https://git-lfs.github.com/spec/v1", KEDGE_ERR_FORMAT, "line 1 column 7: not valid JSON"},
      {"{" MODEL("\"fuse_unk\": 1, " AB) "}", KEDGE_ERR_FORMAT, "'fuse_unk'"},
      {"{" MODEL("\"vocab\": {\"a\": -1}, \"merges\": []") "}", KEDGE_ERR_FORMAT, "'a'"},
      {"{" MODEL("\"vocab\": {\"a\": 1.5}, \"merges\": []") "}", KEDGE_ERR_FORMAT, "'a'"},
      {"{" MODEL("\"vocab\": {\"a\": 4000000000}, \"merges\": []") "}", KEDGE_ERR_FORMAT, "'a'"},
      {"{" MODEL("\"vocab\": {\"a\": 100000}, \"merges\": []") "}", KEDGE_ERR_FORMAT, "'a'"},
      {"{" MODEL("\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []") "}", KEDGE_ERR_FORMAT,
       "id 0 has two tokens"},
      {"{" MODEL("\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []") "}", KEDGE_ERR_FORMAT, "duplicate"},
      {"{" MODEL("\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]") "}", KEDGE_ERR_FORMAT, "'ab'"},
      {"{" MODEL("\"vocab\": {\"a\": 0}, \"merges\": [\"a c\"]") "}", KEDGE_ERR_FORMAT, "'c'"},
      {"{" MODEL("\"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]") "}", KEDGE_ERR_FORMAT, "merge 0"},
      {"{" MODEL("\"vocab\": {\"a\": 0}, \"merges\": [\"a a a\"]") "}", KEDGE_ERR_FORMAT, "merge 0"},
      {"{" MODEL("\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]") "}", KEDGE_ERR_FORMAT, "merge 0"},
      {"{" MODEL("\"vocab\": {\"a\": 0}, \"merges\": [3]") "}", KEDGE_ERR_FORMAT, "merge 0"},
      {"{" GOOD ", \"normalizer\": 1}", KEDGE_ERR_FORMAT, "normalizer"},
      {"{" GOOD ", \"normalizer\": {\"type\": \"Precompiled\"}}", KEDGE_ERR_UNSUPPORTED,
       "normalizer: stage 'Precompiled'"},
      {"{" GOOD ", \"normalizer\": {\"type\": \"Split\"}}", KEDGE_ERR_UNSUPPORTED, "'Split'"},
      {"{" GOOD ", \"normalizer\": {\"type\": \"Sequence\"}}", KEDGE_ERR_FORMAT, "list of stages"},
      {"{" GOOD ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Nmt\"}]}}",
       KEDGE_ERR_UNSUPPORTED, "'Nmt'"},
      {"{" GOOD ", \"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\"}}", KEDGE_ERR_FORMAT,
       "'pattern'"},
      {"{" GOOD
       ", \"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"X\", \"pattern\": {\"Regex\": \"a\"}}}",
       KEDGE_ERR_FORMAT, "'X'"},
      {"{" GOOD ", \"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": "
       "{\"Regex\": \"\"}}}",
       KEDGE_ERR_UNSUPPORTED, "0 bytes"},
      {"{" GOOD ", \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": 3}}", KEDGE_ERR_FORMAT,
       "'use_regex'"},
      {"{" GOOD ", \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", KEDGE_ERR_UNSUPPORTED,
       "'UnicodeScripts'"},
      {"{" GOOD ", \"post_processor\": {\"type\": \"BertProcessing\"}}", KEDGE_ERR_UNSUPPORTED,
       "'BertProcessing'"},
      {"{" GOOD ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}}",
       KEDGE_ERR_UNSUPPORTED, "'single'"},
      {"{" GOOD ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
       "{\"id\": \"B\"}}]}}",
       KEDGE_ERR_FORMAT, "'B'"},
      {"{" GOOD ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
       "{\"id\": \"B\"}}, {\"Sequence\":"
       "{\"id\": \"A\"}}], \"special_tokens\": {\"B\": {\"ids\": [9]}}}}",
       KEDGE_ERR_FORMAT, "id 9"},
      {"{" GOOD ", \"decoder\": {\"type\": \"WordPiece\"}}", KEDGE_ERR_UNSUPPORTED,
       "decoder: stage 'WordPiece'"},
      {"{" GOOD ", \"added_tokens\": {}}", KEDGE_ERR_FORMAT, "'added_tokens'"},
      {"{" GOOD ", \"added_tokens\": [5]}", KEDGE_ERR_FORMAT, "added_tokens[0]"},
      {"{" GOOD ", \"added_tokens\": [{\"content\": \"x\"}]}", KEDGE_ERR_FORMAT, "'x'"},
      {"{" GOOD ", \"added_tokens\": [{\"content\": \"x\", \"id\": 7}]}", KEDGE_ERR_FORMAT,
       "by its place it has 3"},
      {"{" GOOD ", \"added_tokens\": [{\"content\": \"a\", \"id\": 3}]}", KEDGE_ERR_FORMAT,
       "by its place it has 0"},
      {"{" GOOD ", \"added_tokens\": [{\"content\": \"\", \"id\": 3}]}", KEDGE_ERR_FORMAT, "without content"},
      {"{" GOOD ", \"added_tokens\": [{\"content\": \"x\", \"id\": 3, \"special\": \"yes\"}]}",
       KEDGE_ERR_FORMAT, "'special'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    refuse(put_text("wrong.json", cases[i].text), NULL, cases[i].status, cases[i].part);
}

static void wrong_ranks(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } cases[] = {
      {"", "no ranks"},
      {"IQ==\n", "line 1"},
      {"IQ== 1\n", "rank 0 was expected, not '1'"},
      {"IQ== 0\nIg== 2\n", "line 2: rank 1"},
      {"IQ== 0\nIg== 01\n", "line 2"},
      {"IQ== 0\nIg== 1x\n", "line 2"},
      {"IQ== 0\nIQ== 1\n", "two ids"},
      {"IQ= 0\n", "base64"},
      {"I!== 0\n", "base64"},
      {"IR== 0\n", "base64"},
      {"==== 0\n", "base64"},
      {"I=== 0\n", "base64"},
      {"IQ==IQ== 0\n", "base64"},
      {" 0\n", "base64"},
      {"IQ== 0\n\nIg== 1\n", "line 2"},
      {"IQ== 0\n", "byte 0x00 has no token"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    refuse(put_text("wrong.tiktoken", cases[i].text), "gpt2", KEDGE_ERR_FORMAT, cases[i].part);
  refuse(test_path(test_folder(), "absent"), NULL, KEDGE_ERR_IO, "absent");
}

static void deep_and_large(void **state) {
  (void)state;
  /* JSON nested deeper than the parser's limit, sequences deeper than ours, a token of a megabyte. */
  enum { DEEP = 100000, LONG = 1 << 20 };
  char *text = malloc(LONG + 64);
  memcpy(text, "{\"model\":", 9);
  memset(text + 9, '[', DEEP);
  text[9 + DEEP] = 0;
  refuse(put_text("deep.json", text), NULL, KEDGE_ERR_FORMAT, "deep.json");
  strcpy(text, "{" GOOD ", \"normalizer\": ");
  for (int i = 0; i < 20; i++) strcat(text, "{\"type\": \"Sequence\", \"normalizers\": [");
  for (int i = 0; i < 20; i++) strcat(text, "]}");
  strcat(text, "}");
  refuse(put_text("deep.json", text), NULL, KEDGE_ERR_UNSUPPORTED, "8 sequences");
  memset(text, 'A', LONG);
  strcpy(text + LONG, " 0\n");
  refuse(put_text("long.tiktoken", text), "gpt2", KEDGE_ERR_FORMAT, "base64");
  free(text);
}

/* A vocabulary with one split pattern, written out. */
static const char *with_pattern(const char *pattern) {
  json_t *root = json_pack("{s:{s:s,s:{s:i,s:i},s:[]},s:{s:s,s:s,s:{s:s}}}", "model", "type", "BPE", "vocab",
                           "a", 0, "b", 1, "merges", "pre_tokenizer", "type", "Split", "behavior", "Isolated",
                           "pattern", "Regex", pattern);
  assert_non_null(root);
  const char *path = test_path(test_folder(), "pattern.json");
  assert_int_equal(json_dump_file(root, path, 0), 0);
  json_decref(root);
  return path;
}

static void patterns_that_are_not_translated(void **state) {
  (void)state;
  static const char *const cases[] = {
      "\\bword", "a\\B",     "(?<name>a)",   "(a)\\1",       "(?#c)a",      "(?m)a",
      "a(?i)b",  "\\p{Foo}", "\\pL",         "[[:alpha:]]",  "\\Ka",        "\\X",
      "\\R",     "\\G",      "a{2,3}+",      "a{2}?",        "a{,3}",       "a{x}",
      "[a",      "(a",       "a)",           "[]",           "[]a]",        "[^]",
      "\\",      "\\xFF",    "\\x{D800}",    "\\x{110000}",  "\\u12",       "[z-a]",
      "[\\w-z]", "[a-\\d]",  "[a[^b]]",      "[^a&&b]",      "[a&&]",       "[&&a]",
      "\\p{^L}", "(?|a)",    "(*FAIL)",      "[\\W]",        "\\k<a>",      "\\g<a>",
      "\\Qa\\E", "\\cA",     "(?(a)b)",      "(?P<n>a)",     "\\1",         "\\07",
      "\\N",     "[a-[b]]",  "(?i)\xC3\x9F", "(?i:x(?:s)S)", "(?i:[a&&b])", "(?i:[\xC3\xA9])",
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kedge_tokenizer *t;
    kedge_status status = kedge_tokenizer_open(with_pattern(cases[i]), NULL, &t);
    if (status != KEDGE_ERR_UNSUPPORTED)
      fail_msg("'%s': %s %s", cases[i], kedge_status_name(status), kedge_message());
    assert_non_null(strstr(kedge_message(), "pre_tokenizer"));
  }
  /* Translated, but no pattern. */
  refuse(with_pattern("a**"), NULL, KEDGE_ERR_FORMAT, "a**");
  refuse(with_pattern("*"), NULL, KEDGE_ERR_FORMAT, "pattern '*'");
  refuse(with_pattern("(?<=a+)b"), NULL, KEDGE_ERR_FORMAT, "lookbehind");
  char deep[300];
  memset(deep, '(', 100);
  deep[100] = 'a';
  memset(deep + 101, ')', 100);
  deep[201] = 0;
  refuse(with_pattern(deep), NULL, KEDGE_ERR_UNSUPPORTED, "nested");
}

/* An unk_token without an id is an error only of a text that needs it, as in the reference library. */
static void unknown_token_that_is_not_there(void **state) {
  (void)state;
  kedge_tokenizer *t;
  int32_t *ids;
  size_t count;
  const char *path = put_text("lost.json", "{" MODEL("\"unk_token\": \"?\", " AB) "}");
  assert_int_equal(kedge_tokenizer_open(path, NULL, &t), KEDGE_OK);
  assert_int_equal(kedge_tokenizer_encode(t, "a", 1, 0, &ids, &count), KEDGE_OK);
  assert_int_equal(count, 1);
  kedge_free(ids);
  assert_int_equal(kedge_tokenizer_encode(t, "aZ", 2, 0, &ids, &count), KEDGE_ERR_FORMAT);
  assert_non_null(strstr(kedge_message(), "U+005A"));
  kedge_tokenizer_free(t);
}

static void patterns_that_never_end(void **state) {
  (void)state;
  static const char *const cases[] = {"(a|a)*[bc]", "(a*)*[bc]", "(a+)+(?=[bc])",
                                      "((a{0,50}){0,50}){0,50}[bc]"};
  char text[4001];
  memset(text, 'a', 4000);
  text[4000] = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kedge_tokenizer *t;
    if (kedge_tokenizer_open(with_pattern(cases[i]), NULL, &t) != KEDGE_OK)
      continue; /* Too large to compile is an answer too. */
    int32_t *ids;
    size_t count;
    kedge_status status = kedge_tokenizer_encode(t, text, 4000, 0, &ids, &count);
    if (status != KEDGE_ERR_UNSUPPORTED && status != KEDGE_OK)
      fail_msg("'%s': %s", cases[i], kedge_message());
    if (i == 0) assert_int_equal(status, KEDGE_ERR_UNSUPPORTED);
    kedge_free(ids);
    kedge_tokenizer_free(t);
  }
}

/* ---- Failing memory
 * ---------------------------------------------------------------------------------------------------- */

/* Opens, encodes, decodes and saves; every failure must be ERR_MEMORY and leave nothing behind. */
static kedge_status use(const char *path, const char *kind, const char *folder) {
  static const char text[] = "The ships\xCC\x81<|im_end|> in the bay, 36 of them, "
                             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.";
  kedge_tokenizer *t;
  int32_t *ids = NULL;
  char *decoded = NULL;
  size_t count, length;
  KEDGE_TRY(kedge_tokenizer_open(path, kind, &t));
  kedge_status status = kedge_tokenizer_encode(t, text, strlen(text), KEDGE_ENCODE_SPECIAL, &ids, &count);
  if (status == KEDGE_OK) status = kedge_tokenizer_decode(t, ids, count, false, &decoded, &length);
  if (status == KEDGE_OK) status = kedge_tokenizer_save(t, folder);
  kedge_free(ids);
  kedge_free(decoded);
  kedge_tokenizer_free(t);
  return status;
}

static void every_allocation_fails_once(void **state) {
  (void)state;
  char *folder = strdup(test_path(test_folder(), "saved")),
       *ranks = strdup(test_path(test_folder(), "bytes.tiktoken"));
  test_make_folder(folder);
  /* The 256 bytes as a ranks file. */
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  FILE *file = fopen(ranks, "w");
  for (unsigned byte = 0; byte < 256; byte++)
    fprintf(file, "%c%c== %u\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
  fclose(file);
  const char *const paths[] = {test_golden("tokenizer/tiny"), ranks};
  for (int i = 0; i < 2; i++) {
    kedge_alloc_fail_nth(0);
    assert_int_equal(use(paths[i], i ? "qwen" : NULL, folder), KEDGE_OK);
    uint64_t made = kedge_alloc_fail_nth(0);
    assert_true(made > 50);
    for (uint64_t nth = 1; nth <= made; nth++) {
      kedge_alloc_fail_nth(nth);
      kedge_status status = use(paths[i], i ? "qwen" : NULL, folder);
      kedge_alloc_fail_nth(0);
      /* PCRE2 does without its compiled form, and the same ids come out. */
      if (status != KEDGE_ERR_MEMORY && status != KEDGE_OK)
        fail_msg("allocation %llu of %llu: %s %s", (unsigned long long)nth, (unsigned long long)made,
                 kedge_status_name(status), kedge_message());
    }
  }
  free(folder);
  free(ranks);
}

/* ---- Mutations
 * -----------------------------------------------------------------------------------------------------------
 */

static uint64_t next(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Changes a few places: a byte, a stretch that goes, one that comes twice, a digit, a quote. */
static size_t mutate(char *text, size_t length, uint64_t *seed) {
  for (uint64_t changes = 1 + next(seed) % 3; changes; changes--) {
    size_t at = next(seed) % length, size = 1 + next(seed) % 40;
    if (at + size > length) size = length - at;
    switch (next(seed) % 5) {
    case 0:
      text[at] = (char)next(seed);
      break;
    case 1:
      memmove(text + at, text + at + size, length - at - size);
      length -= size;
      break;
    case 2:
      memmove(text + at + size, text + at, length - at);
      length += size;
      break;
    case 3:
      text[at] = "0123456789-.eE"[next(seed) % 14];
      break;
    default:
      text[at] = "\"\\[]{}(),:&|?+*"[next(seed) % 15];
      break;
    }
    if (!length) return 0;
  }
  return length;
}

static void mutations(void **state) {
  (void)state;
  static const char sample[] = "The ships cafe\xCC\x81<|im_end|> 12 \n\n x  <think> \xF0\x9F\x98\x80";
  size_t bytes;
  char *original = test_read(test_golden("tokenizer/tiny/tokenizer.json"), &bytes);
  char *pipeline = strstr(original, "\"model\"");
  size_t head = (size_t)(pipeline - original);
  char *text = malloc(bytes + 4096);
  uint64_t seed = 7;
  unsigned opened = 0, refused = 0;
  for (int round = 0; round < 1500; round++) {
    /* Half of the time only what stands before the model: the pipeline and the added tokens. */
    size_t part = round & 1 ? head : bytes;
    memcpy(text, original, part);
    size_t length = mutate(text, part, &seed);
    memcpy(text + length, original + part, bytes - part);
    length += bytes - part;
    const char *path = test_path(test_folder(), "mutated.json");
    test_write(path, text, length);
    kedge_tokenizer *t;
    kedge_status status = kedge_tokenizer_open(path, "qwen", &t);
    if (status != KEDGE_OK) {
      assert_null(t);
      assert_true(*kedge_message() && !strchr(kedge_message(), '\n'));
      refused++;
      continue;
    }
    opened++;
    int32_t *ids;
    size_t count, decoded_length;
    char *decoded;
    if (kedge_tokenizer_encode(t, sample, strlen(sample), 3, &ids, &count) == KEDGE_OK) {
      for (size_t i = 0; i < count; i++)
        assert_true(ids[i] >= 0 && (uint32_t)ids[i] < kedge_tokenizer_size(t));
      assert_int_equal(kedge_tokenizer_decode(t, ids, count, true, &decoded, &decoded_length), KEDGE_OK);
      kedge_free(decoded);
      kedge_free(ids);
    }
    kedge_tokenizer_free(t);
  }
  if (opened < 50 || refused < 500) fail_msg("%u opened, %u refused", opened, refused);
  free(text);
  free(original);
}

/* Patterns of random pieces of syntax: refused or run, and what is run keeps every character. */
static void random_patterns(void **state) {
  (void)state;
  static const char *const pieces[] = {"a",
                                       "\\s",
                                       "\\S+",
                                       "\\p{L}",
                                       "\\P{N}",
                                       "[",
                                       "]",
                                       "^",
                                       "&&",
                                       "(",
                                       ")",
                                       "(?:",
                                       "(?=",
                                       "(?!",
                                       "(?<=",
                                       "(?i:",
                                       "|",
                                       "*",
                                       "+",
                                       "?",
                                       "{1,3}",
                                       "-",
                                       "\\",
                                       "$",
                                       "\\r",
                                       ".",
                                       "é",
                                       "[^\\s]",
                                       "[\\p{L}&&[^a]]",
                                       "\\d",
                                       " ?",
                                       "\\w",
                                       "\\x{301}",
                                       "\\p{Han}",
                                       "{2}"};
  static const char sample[] = "aa cafe\xCC\x81 12\r\n  \xE6\xBC\xA2\xE5\xAD\x97 -a^]x";
  json_t *root = json_load_file(test_golden("tokenizer/tiny/tokenizer.json"), 0, NULL);
  assert_non_null(root);
  json_object_set_new(root, "normalizer", json_null());
  json_t *stages = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
  json_t *pattern = json_object_get(json_array_get(stages, 0), "pattern");
  char *path = strdup(test_path(test_folder(), "random.json"));
  uint64_t seed = 11;
  unsigned opened = 0;
  for (int round = 0; round < 1200; round++) {
    char text[256] = "";
    for (uint64_t left = 1 + next(&seed) % 7; left; left--)
      strcat(text, pieces[next(&seed) % (sizeof pieces / sizeof *pieces)]);
    json_object_set_new(pattern, "Regex", json_string(text));
    assert_int_equal(json_dump_file(root, path, JSON_COMPACT), 0);
    kedge_tokenizer *t;
    if (kedge_tokenizer_open(path, NULL, &t) != KEDGE_OK) {
      assert_non_null(strstr(kedge_message(), "pattern"));
      continue;
    }
    opened++;
    int32_t *ids;
    size_t count, length;
    char *decoded;
    if (kedge_tokenizer_encode(t, sample, strlen(sample), 0, &ids, &count) != KEDGE_OK)
      fail_msg("'%s': %s", text, kedge_message());
    assert_int_equal(kedge_tokenizer_decode(t, ids, count, false, &decoded, &length), KEDGE_OK);
    if (strcmp(decoded, sample)) fail_msg("pattern '%s' loses text: '%s'", text, decoded);
    kedge_free(decoded);
    kedge_free(ids);
    kedge_tokenizer_free(t);
  }
  if (opened < 200) fail_msg("%u opened", opened);
  free(path);
  json_decref(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_json),
      cmocka_unit_test(wrong_ranks),
      cmocka_unit_test(deep_and_large),
      cmocka_unit_test(patterns_that_are_not_translated),
      cmocka_unit_test(unknown_token_that_is_not_there),
      cmocka_unit_test(patterns_that_never_end),
      cmocka_unit_test(every_allocation_fails_once),
      cmocka_unit_test(mutations),
      cmocka_unit_test(random_patterns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
