/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiling and matching with PCRE2. Siblings: tokenizer_regex.h, tokenizer_pattern.c.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/text/tokenizer_regex.h"

#include <pcre2.h>
#include <string.h>

/* Far above what any tokenizer's pattern needs on real text; a pattern that reaches them is an attack or a
 * mistake. */
enum {
  MATCH_STEPS = 20000000,
  HEAP_KIB = 256 * 1024,
  STACK_START = 64 * 1024,
  STACK_LIMIT = 256 * 1024 * 1024,
  PATTERN_LIMIT = 65536
};

struct kedge__regex {
  pcre2_code *code;
};

static void *allocate(size_t size, void *unused) {
  (void)unused;
  return kedge_alloc(size, 1);
}

static void release(void *memory, void *unused) {
  (void)unused;
  kedge_free(memory);
}

static kedge_status compile(kedge__syntax syntax, const char *pattern, size_t length,
                            pcre2_general_context *general, pcre2_code **code) {
  pcre2_compile_context *context = pcre2_compile_context_create(general);
  if (!context) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for a pattern");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  uint32_t options =
      syntax == KEDGE__LITERAL_SYNTAX ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
  int error;
  PCRE2_SIZE offset;
  *code = pcre2_compile((PCRE2_SPTR)pattern, length, options, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (*code) return KEDGE_OK;
  if (error == PCRE2_ERROR_NOMEMORY || error == 121)
    return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for a pattern");
  char reason[160];
  pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
  return kedge_fail(KEDGE_ERR_FORMAT, "%s", reason);
}

kedge_status kedge__regex_new(kedge__syntax syntax, const char *pattern, size_t length,
                              kedge__regex **regex) {
  *regex = NULL;
  if (!length || length > PATTERN_LIMIT)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "a pattern of %zu bytes; 1 to %d are possible", length,
                      PATTERN_LIMIT);
  kedge_status status = KEDGE_OK;
  kedge__bytes translated = {0};
  pcre2_general_context *general = NULL;
  kedge__regex *made = kedge_alloc(1, sizeof *made);
  if (!made) return KEDGE_ERR_MEMORY;
  const char *run = pattern;
  size_t run_length = length;
  if (syntax == KEDGE__FILE_SYNTAX) {
    KEDGE_GOTO(kedge__pattern_translate(pattern, length, &translated), status, end);
    run = translated.data;
    run_length = translated.length;
  }
  general = pcre2_general_context_create(allocate, release, NULL);
  if (!general) {
    status = kedge_fail(KEDGE_ERR_MEMORY, "out of memory for a pattern");
    goto end;
  }
  status = compile(syntax, run, run_length, general, &made->code);
  if (status != KEDGE_OK) {
    kedge_fail_in(status, "pattern '%.*s'", (int)(length < 200 ? length : 200), pattern);
    goto end;
  }
  /* Without a just-in-time compiler the same code is interpreted: slower, same matches. */
  (void)pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);
  *regex = made;
  made = NULL;
end:
  kedge__regex_free(made);
  pcre2_general_context_free(general);
  kedge__bytes_free(&translated);
  return status;
}

void kedge__regex_free(kedge__regex *regex) {
  if (!regex) return;
  pcre2_code_free(regex->code);
  kedge_free(regex);
}

void kedge__regex_scratch_free(kedge__regex_scratch *scratch) {
  pcre2_match_data_free(scratch->data);
  pcre2_match_context_free(scratch->context);
  pcre2_jit_stack_free(scratch->stack);
  *scratch = (kedge__regex_scratch){0};
}

static kedge_status prepare(kedge__regex_scratch *scratch) {
  pcre2_general_context *general = pcre2_general_context_create(allocate, release, NULL);
  if (!general) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for matching");
  if (!scratch->data) scratch->data = pcre2_match_data_create(1, general);
  if (!scratch->context) scratch->context = pcre2_match_context_create(general);
  pcre2_general_context_free(general);
  if (!scratch->data || !scratch->context) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for matching");
  pcre2_set_match_limit(scratch->context, MATCH_STEPS);
  pcre2_set_heap_limit(scratch->context, HEAP_KIB);
  return KEDGE_OK;
}

kedge_status kedge__regex_find(const kedge__regex *regex, kedge__regex_scratch *scratch, const char *text,
                               size_t length, size_t from, bool *found, size_t *start, size_t *end) {
  if (!scratch->context || !scratch->data) KEDGE_TRY(prepare(scratch));
  uint32_t options = scratch->check ? 0 : PCRE2_NO_UTF_CHECK;
  PCRE2_SPTR subject = (PCRE2_SPTR)text;
  int rc = pcre2_match(regex->code, subject, length, from, options, scratch->data, scratch->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !scratch->stack) {
    /* Compiled code starts on the machine stack; a group that repeats very often needs its own. */
    pcre2_jit_stack *stack = pcre2_jit_stack_create(STACK_START, STACK_LIMIT, NULL);
    if (!stack) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for matching");
    scratch->stack = stack;
    pcre2_jit_stack_assign(scratch->context, NULL, stack);
    rc = pcre2_match(regex->code, subject, length, from, options, scratch->data, scratch->context);
  }
  *found = rc >= 0;
  if (*found) {
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(scratch->data);
    *start = offsets[0];
    *end = offsets[1];
    if (*end < *start) *end = *start;
    return KEDGE_OK;
  }
  if (rc == PCRE2_ERROR_NOMATCH) return KEDGE_OK;
  if (rc == PCRE2_ERROR_NOMEMORY) return kedge_fail(KEDGE_ERR_MEMORY, "out of memory for matching");
  if (rc >= PCRE2_ERROR_UTF8_ERR21 && rc <= PCRE2_ERROR_UTF8_ERR1)
    return kedge_fail(KEDGE_ERR_FORMAT, "the text is not valid UTF-8");
  char reason[160];
  pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
  return kedge_fail(KEDGE_ERR_UNSUPPORTED, "a pattern of the tokenizer failed on %zu bytes of text: %s",
                    length, reason);
}
