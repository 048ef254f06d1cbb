/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions of tokenizer files, run by PCRE2. Siblings: tokenizer_regex.c (compile and match),
 * tokenizer_pattern.c (translation of the files' dialect). Character properties are of PCRE2's Unicode
 * version; to an older one, characters that came later are unassigned, not letters. Patterns are immutable
 * and shared by threads; each caller brings its own scratch memory.
 */
#ifndef KEDGE_MODELS_TEXT_TOKENIZER_REGEX_H
#define KEDGE_MODELS_TEXT_TOKENIZER_REGEX_H

#include "models/text/unicode.h"

typedef struct kedge__regex kedge__regex;

typedef enum kedge__syntax {
  KEDGE__FILE_SYNTAX, /* as tokenizer.json has it (Oniguruma); translated, or refused where no translation is
                         exact */
  KEDGE__LITERAL_SYNTAX, /* the text itself */
  KEDGE__OWN_SYNTAX      /* PCRE2, for patterns in Kedge's own source */
} kedge__syntax;

/* White_Space of Unicode as the inside of a PCRE2 class; PCRE2's \s is not the same set. */
#define KEDGE__SPACE                                                                                         \
  "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{"   \
  "3000}"

/* Compiles a pattern. Errors: ERR_UNSUPPORTED (syntax that is not translated exactly), ERR_FORMAT (not a
 * pattern), ERR_MEMORY. Owned by the caller. */
kedge_status kedge__regex_new(kedge__syntax syntax, const char *pattern, size_t length, kedge__regex **regex);
void kedge__regex_free(kedge__regex *regex);

/* Memory for matching. All zero is valid and becomes usable by the first match. */
typedef struct kedge__regex_scratch {
  void *data, *context, *stack;
  bool check; /* the text may be invalid UTF-8: report it */
} kedge__regex_scratch;
void kedge__regex_scratch_free(kedge__regex_scratch *scratch);

/* Looks for the leftmost match at or after `from` (lookbehind sees what is before). Errors: ERR_UNSUPPORTED
 * where the pattern needs more steps or memory than any sane one, ERR_FORMAT for invalid UTF-8 where that is
 * checked. */
kedge_status kedge__regex_find(const kedge__regex *regex, kedge__regex_scratch *scratch, const char *text,
                               size_t length, size_t from, bool *found, size_t *start, size_t *end);

/* Appends the PCRE2 form of a pattern in the files' dialect. */
kedge_status kedge__pattern_translate(const char *pattern, size_t length, kedge__bytes *out);

#endif
