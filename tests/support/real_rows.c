/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of real text from the shared folder's files. Sibling: real_rows.h. */
#include "tests/support/real_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/support/files.h"

/* The fields that a row has, joined by newlines, into text[65536]. */
static size_t join(const json_t *row, const char *const fields[3], char *text) {
  size_t length = 0;
  bool any = false;
  for (int i = 0; i < 3 && fields[i]; i++) {
    const json_t *value = json_object_get(row, fields[i]);
    if (!value) continue;
    if (any) text[length++] = '\n';
    any = true;
    assert_true(length + json_string_length(value) + 2 < 65536);
    memcpy(text + length, json_string_value(value), json_string_length(value));
    length += json_string_length(value);
  }
  text[length] = 0;
  return length;
}

size_t test_real_rows(void (*take)(const char *text, size_t length, void *context), void *context) {
  static const struct {
    const char *file;
    size_t step;
    const char *fields[3];
  } sources[] = {{"data/math/gsm8k_train.jsonl", 10, {"question", "answer", NULL}},
                 {"data/code/new_codealpaca.json", 7, {"instruction", "input", "output"}},
                 {"data/general/mmlu_stem_test.jsonl", 7, {"question", NULL, NULL}},
                 {"data/code/mbpp.jsonl", 4, {"text", "code", NULL}}};
  static char text[65536];
  size_t bytes, rows = 0;
  for (size_t s = 0; s < sizeof sources / sizeof *sources; s++) {
    const char *path = test_shared(sources[s].file);
    if (!path) return 0;
    char *data = test_read(path, &bytes), *line = data;
    json_t *list = *data == '[' ? json_loads(data, 0, NULL) : NULL;
    size_t count = list ? json_array_size(list) : SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
      char *end = list ? NULL : strchr(line, '\n');
      if (!list && !end) break;
      if (i % sources[s].step == 0) {
        json_t *row =
            list ? json_incref(json_array_get(list, i)) : json_loadb(line, (size_t)(end - line), 0, NULL);
        take(text, join(row, sources[s].fields, text), context);
        json_decref(row);
        rows++;
      }
      if (!list) line = end + 1;
    }
    json_decref(list);
    free(data);
  }
  return rows;
}
