/* SPDX-License-Identifier: Apache-2.0
 * Forms of records (suite.h): which fields a published benchmark has, and the item that they make. One table
 * in the order of detection. */
#include "models/evaluation/suite.h"
#include "models/text/random.h"
#include "models/text/unicode.h"

#include <math.h>
#include <string.h>

typedef struct reading {
  json_t *record;
  const char *stem;
  int64_t order;
  uint64_t number;
  kedge_item *item;
} reading;

struct kedge_suite_form {
  const char *name;
  const char *fields[4]; /* that mark it */
  kedge_status (*read)(const reading *r);
};

void kedge_item_destroy(kedge_item *item) {
  char *const texts[] = {item->id,     item->domain, item->split,  item->prompt, item->reference,
                         item->answer, item->lead,   item->middle, item->setup,  item->tests};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) kedge_free(texts[i]);
  for (uint32_t i = 0; i < item->choice_count; i++) kedge_free(item->choices[i]);
  *item = (kedge_item){0};
}

/* ---- Fields
 * ------------------------------------------------------------------------------------------------------ */

static const char *type_name(const json_t *value) {
  static const char *const names[] = {"an object", "an array", "a string", "a number",
                                      "a number",  "true",     "false",    "null"};
  return value ? names[json_typeof(value)] : "nothing";
}

static kedge_status text_of(const reading *r, const char *field, const char **text) {
  const json_t *value = json_object_get(r->record, field);
  *text = "";
  if (!json_is_string(value))
    return kedge_fail(KEDGE_ERR_FORMAT, "\"%s\": expected a string, got %s", field, type_name(value));
  *text = json_string_value(value);
  if (strlen(*text) != json_string_length(value))
    return kedge_fail(KEDGE_ERR_FORMAT, "\"%s\": holds a NUL character", field);
  return KEDGE_OK;
}

static kedge_status keep(char **to, const char *text) {
  kedge_free(*to);
  *to = kedge_strdup(text);
  return *to ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

static kedge_status keep_field(const reading *r, const char *field, char **to) {
  const char *text;
  KEDGE_TRY(text_of(r, field, &text));
  return keep(to, text);
}

/* Keeps formatted text. */
#define KEEP_FORMAT(to, ...)                                                                                 \
  do {                                                                                                       \
    kedge_free(to);                                                                                          \
    (to) = kedge_format(__VA_ARGS__);                                                                        \
    if (!(to)) return KEDGE_ERR_MEMORY;                                                                      \
  } while (0)

/* A string, or a number as the shortest text of its value. */
static kedge_status keep_value(const reading *r, const char *field, char **to) {
  const json_t *value = json_object_get(r->record, field);
  if (json_is_integer(value)) {
    KEEP_FORMAT(*to, "%lld", (long long)json_integer_value(value));
  } else if (json_is_real(value)) {
    const double x = json_real_value(value);
    if (x == floor(x) && fabs(x) < 1e15)
      KEEP_FORMAT(*to, "%.0f", x);
    else
      KEEP_FORMAT(*to, "%.12g", x);
  } else {
    return keep_field(r, field, to);
  }
  return KEDGE_OK;
}

/* The domain and split that a record names, else those of the file's name: "math_test" is math, test. */
static kedge_status keep_place(const reading *r, const char *domain, const char *split) {
  KEDGE_TRY(keep(&r->item->domain, domain));
  KEDGE_TRY(keep(&r->item->split, split));
  if (json_is_string(json_object_get(r->record, "domain")))
    KEDGE_TRY(keep_field(r, "domain", &r->item->domain));
  if (json_is_string(json_object_get(r->record, "split"))) KEDGE_TRY(keep_field(r, "split", &r->item->split));
  return KEDGE_OK;
}

static const char *split_of(const char *stem) {
  static const char *const splits[] = {"train", "test", "validation", "val", "dev"};
  const char *last = strrchr(stem, '_');
  for (size_t i = 0; last && i < sizeof splits / sizeof *splits; i++)
    if (!strcmp(last + 1, splits[i])) return splits[i];
  return "test";
}

/* ---- Choices
 * ----------------------------------------------------------------------------------------------------- */

static kedge_status add_choice(kedge_item *item, const char *text, size_t length) {
  if (item->choice_count == KEDGE_MAX_CHOICES)
    return kedge_fail(KEDGE_ERR_FORMAT, "more than %d choices", KEDGE_MAX_CHOICES);
  char *copy = kedge_alloc(length + 1, 1);
  if (!copy) return KEDGE_ERR_MEMORY;
  memcpy(copy, text, length);
  item->choices[item->choice_count++] = copy;
  return KEDGE_OK;
}

static kedge_status add_choices(const reading *r) {
  const json_t *list = json_object_get(r->record, "choices");
  if (!json_is_array(list) || json_array_size(list) < 2)
    return kedge_fail(KEDGE_ERR_FORMAT, "\"choices\": expected a list of two or more, got %s",
                      json_is_array(list) ? "a shorter one" : type_name(list));
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *text = json_array_get(list, i);
    if (!json_is_string(text))
      return kedge_fail(KEDGE_ERR_FORMAT, "\"choices\"[%zu]: expected a string, got %s", i, type_name(text));
    KEDGE_TRY(add_choice(r->item, json_string_value(text), strlen(json_string_value(text))));
  }
  return KEDGE_OK;
}

/* Which choice the field "answer" names: by index, by letter, or by its text. */
static kedge_status find_correct(const reading *r) {
  kedge_item *item = r->item;
  const json_t *value = json_object_get(r->record, "answer");
  if (json_is_number(value)) { /* records are read with all numbers as reals */
    const double index = json_number_value(value);
    if (!(index >= 0 && index < item->choice_count) || index != floor(index))
      return kedge_fail(KEDGE_ERR_FORMAT, "\"answer\": %g is no index of the %u choices", index,
                        item->choice_count);
    item->correct = (uint32_t)index;
    return KEDGE_OK;
  }
  const char *text;
  KEDGE_TRY(text_of(r, "answer", &text));
  for (uint32_t i = 0; i < item->choice_count; i++)
    if (!strcmp(text, item->choices[i])) {
      item->correct = i;
      return KEDGE_OK;
    }
  const char letter = kedge_extract_letter(text, strlen(text), item->choice_count);
  if (!letter) return kedge_fail(KEDGE_ERR_FORMAT, "\"answer\": \"%.40s\" is none of the choices", text);
  item->correct = (uint32_t)(letter - 'A');
  return KEDGE_OK;
}

/* The order of the choices as the seed and the item's number give it. */
static void order_choices(const reading *r) {
  kedge_item *item = r->item;
  if (r->order < 0) return;
  uint32_t order[KEDGE_MAX_CHOICES], correct = 0;
  char *old[KEDGE_MAX_CHOICES];
  kedge_random random = kedge_random_start((uint64_t)r->order, r->number);
  for (uint32_t i = 0; i < item->choice_count; i++) order[i] = i, old[i] = item->choices[i];
  kedge_random_shuffle(&random, order, item->choice_count);
  for (uint32_t i = 0; i < item->choice_count; i++) {
    item->choices[i] = old[order[i]];
    if (order[i] == item->correct) correct = i;
  }
  item->correct = correct;
}

static kedge_status close_choice(kedge_item *item) {
  item->kind = KEDGE_ANSWER_LETTER;
  KEEP_FORMAT(item->answer, "%c", 'A' + (int)item->correct);
  return KEDGE_OK;
}

/* ---- Own rows
 * ---------------------------------------------------------------------------------------------------- */

/* What the reference says before the letter that ends it, where that is no more than a few words, or the text
 * of the right option and a few words: any other worked answer would give the letter away. */
static kedge_status find_lead(kedge_item *item) {
  const char *text = item->reference, *right = item->choices[item->correct];
  const size_t told = strlen(right);
  size_t length = strlen(text);
  while (length && (text[length - 1] == ' ' || text[length - 1] == '\n')) length--;
  const bool ends = length && text[length - 1] == *item->answer && (length == 1 || text[length - 2] == ' ');
  if (ends && length <= 24 && !memchr(text, '\n', length)) {
    KEEP_FORMAT(item->lead, "%.*s", (int)length - 1, text);
    return KEDGE_OK;
  }
  const char *at = ends ? strstr(text, right) : NULL;
  if (!at || at - text > 24 || (size_t)(at - text) + told + 25 < length ||
      (size_t)(at - text) + told >= length)
    return keep(&item->lead, "Answer: ");
  KEEP_FORMAT(item->lead, "%.*s", (int)(at - text), text);
  KEEP_FORMAT(item->middle, "%.*s", (int)(text + length - 1 - (at + told)), at + told);
  return KEDGE_OK;
}

static kedge_status read_own_choice(const reading *r) {
  KEDGE_TRY(add_choices(r));
  KEDGE_TRY(find_correct(r));
  r->item->listed = true;
  KEDGE_TRY(close_choice(r->item));
  return find_lead(r->item);
}

/* The answer is the field's, else what is extracted from the completion where that is marked, else all of it.
 */
static kedge_status read_own(const reading *r) {
  kedge_item *item = r->item;
  item->own = true;
  KEDGE_TRY(keep_field(r, "prompt", &item->prompt));
  KEDGE_TRY(keep_field(r, "completion", &item->reference));
  KEDGE_TRY(keep_place(r, r->stem, ""));
  if (json_object_get(r->record, "choices")) return read_own_choice(r);
  const char *text = item->reference;
  if (json_is_string(json_object_get(r->record, "program_output"))) {
    item->kind = KEDGE_ANSWER_PROGRAM;
    return keep_field(r, "program_output", &item->answer);
  }
  const bool marked =
      kedge_extract_boxed(text, strlen(text)).start || kedge_extract_hashes(text, strlen(text)).start;
  if (json_object_get(r->record, "answer"))
    KEDGE_TRY(keep_value(r, "answer", &item->answer));
  else
    KEDGE_TRY(kedge_extract_answer(marked ? KEDGE_ANSWER_TEXT : KEDGE_ANSWER_EXACT, text, strlen(text), 0,
                                   &item->answer));
  char *whole = NULL;
  KEDGE_TRY(kedge_extract_answer(KEDGE_ANSWER_EXACT, text, strlen(text), 0, &whole));
  const bool exact = !strcmp(whole, item->answer);
  kedge_free(whole);
  item->kind = exact                                  ? KEDGE_ANSWER_EXACT
               : kedge_answer_is_number(item->answer) ? KEDGE_ANSWER_NUMBER
                                                      : KEDGE_ANSWER_TEXT;
  return KEDGE_OK;
}

kedge_status kedge_item_take_whole(kedge_item *item) {
  const kedge_answer_kind kind = item->kind;
  if (!item->own || (kind != KEDGE_ANSWER_TEXT && kind != KEDGE_ANSWER_NUMBER && kind != KEDGE_ANSWER_LETTER))
    return KEDGE_OK;
  char *whole;
  KEDGE_TRY(kedge_extract_answer(KEDGE_ANSWER_EXACT, item->reference, strlen(item->reference), 0, &whole));
  kedge_free(item->answer);
  item->answer = whole;
  item->kind = KEDGE_ANSWER_EXACT;
  return KEDGE_OK;
}

/* ---- Published ones
 * ---------------------------------------------------------------------------------------------- */

static kedge_status read_mmlu(const reading *r) {
  kedge_item *item = r->item;
  const char *subject = "all";
  KEDGE_TRY(keep_field(r, "question", &item->prompt));
  if (json_is_string(json_object_get(r->record, "subject"))) KEDGE_TRY(text_of(r, "subject", &subject));
  if (json_is_string(json_object_get(r->record, "type"))) KEDGE_TRY(text_of(r, "type", &subject));
  KEDGE_TRY(keep_place(r, "mmlu", subject));
  KEDGE_TRY(add_choices(r));
  KEDGE_TRY(find_correct(r));
  order_choices(r);
  KEDGE_TRY(close_choice(item));
  KEEP_FORMAT(item->reference, "Answer: %s", item->answer);
  return keep(&item->lead, "Answer: ");
}

/* Choices in the text of a question: lines "(A) ...", in order from A on. */
static kedge_status find_listed(kedge_item *item) {
  const char *at = strstr(item->prompt, "Options:");
  while (at && (at = strchr(at, '\n'))) {
    at++;
    const char letter = (char)('A' + item->choice_count);
    if (at[0] != '(' || at[1] != letter || at[2] != ')') break;
    const char *text = at + 3;
    while (*text == ' ') text++;
    KEDGE_TRY(add_choice(item, text, strcspn(text, "\n")));
  }
  return KEDGE_OK;
}

static kedge_status read_bbh(const reading *r) {
  kedge_item *item = r->item;
  const char *target;
  KEDGE_TRY(keep_field(r, "input", &item->prompt));
  KEDGE_TRY(text_of(r, "target", &target));
  KEDGE_TRY(keep_place(r, "bbh", r->stem));
  item->fold = true;
  const bool letter = strlen(target) == 3 && target[0] == '(' && target[2] == ')';
  if (letter) KEDGE_TRY(find_listed(item));
  if (letter && item->choice_count > 1 && target[1] >= 'A' &&
      (uint32_t)(target[1] - 'A') < item->choice_count) {
    item->correct = (uint32_t)(target[1] - 'A');
    item->listed = true;
    KEDGE_TRY(close_choice(item));
    KEEP_FORMAT(item->reference, "Answer: %s", item->answer);
    return keep(&item->lead, "Answer: ");
  }
  item->kind = kedge_answer_is_number(target) ? KEDGE_ANSWER_NUMBER : KEDGE_ANSWER_TEXT;
  KEDGE_TRY(keep(&item->answer, target));
  KEEP_FORMAT(item->reference, "Answer: %s", target);
  return KEDGE_OK;
}

static kedge_status read_gsm8k(const reading *r) {
  kedge_item *item = r->item;
  KEDGE_TRY(keep_field(r, "question", &item->prompt));
  KEDGE_TRY(keep_field(r, "answer", &item->reference));
  KEDGE_TRY(keep_place(r, strncmp(r->stem, "gsm8k", 5) ? r->stem : "gsm8k", split_of(r->stem)));
  const kedge_extract e = kedge_extract_hashes(item->reference, strlen(item->reference));
  if (!e.start) return kedge_fail(KEDGE_ERR_FORMAT, "\"answer\": expected \"#### \" before its result");
  KEEP_FORMAT(item->answer, "%.*s", (int)e.length, e.start);
  item->kind = kedge_answer_is_number(item->answer) ? KEDGE_ANSWER_NUMBER : KEDGE_ANSWER_TEXT;
  return KEDGE_OK;
}

static kedge_status read_svamp(const reading *r) {
  kedge_item *item = r->item;
  const char *body, *question;
  KEDGE_TRY(text_of(r, "Body", &body));
  KEDGE_TRY(text_of(r, "Question", &question));
  KEDGE_TRY(keep_place(r, "svamp", split_of(r->stem)));
  size_t length = strlen(body);
  while (length && body[length - 1] == ' ') length--;
  const bool closed = length && strchr(".?!,", body[length - 1]);
  KEEP_FORMAT(item->prompt, "%.*s%s %s", (int)length, body, closed ? "" : ".", question);
  KEDGE_TRY(keep_value(r, "Answer", &item->answer));
  KEDGE_TRY(keep(&item->reference, item->answer));
  item->kind = KEDGE_ANSWER_NUMBER;
  if (json_is_string(json_object_get(r->record, "ID"))) return keep_field(r, "ID", &item->id);
  return KEDGE_OK;
}

static kedge_status keep_lines(const reading *r, const char *field, char **to) {
  const json_t *list = json_object_get(r->record, field);
  KEDGE_TRY(keep(to, ""));
  if (!list) return KEDGE_OK;
  if (!json_is_array(list))
    return kedge_fail(KEDGE_ERR_FORMAT, "\"%s\": expected a list, got %s", field, type_name(list));
  kedge__bytes lines = {0};
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; status == KEDGE_OK && i < json_array_size(list); i++) {
    const json_t *line = json_array_get(list, i);
    if (!json_is_string(line))
      status =
          kedge_fail(KEDGE_ERR_FORMAT, "\"%s\"[%zu]: expected a string, got %s", field, i, type_name(line));
    if (status == KEDGE_OK) status = kedge__bytes_text(&lines, json_string_value(line));
    if (status == KEDGE_OK) status = kedge__bytes_text(&lines, "\n");
  }
  if (status == KEDGE_OK) status = kedge__bytes_append(&lines, "", 1);
  if (status == KEDGE_OK) status = keep(to, lines.data);
  kedge__bytes_free(&lines);
  return status;
}

/* The full file has "text" and "test_setup_code", the sanitized one "prompt" and "test_imports". */
static kedge_status read_mbpp(const reading *r) {
  kedge_item *item = r->item;
  const bool full = json_object_get(r->record, "text") != NULL;
  const char *task;
  KEDGE_TRY(text_of(r, full ? "text" : "prompt", &task));
  KEDGE_TRY(keep_field(r, "code", &item->reference));
  KEDGE_TRY(keep_place(r, "mbpp", split_of(r->stem)));
  KEDGE_TRY(keep_lines(r, "test_list", &item->tests));
  if (!*item->tests) return kedge_fail(KEDGE_ERR_FORMAT, "\"test_list\": there is no test");
  KEEP_FORMAT(item->prompt, "%s\nThe code has to pass these tests:\n%s", task, item->tests);
  item->kind = KEDGE_ANSWER_PYTHON;
  if (json_object_get(r->record, "task_id")) KEDGE_TRY(keep_value(r, "task_id", &item->id));
  if (full && json_object_get(r->record, "test_setup_code"))
    return keep_field(r, "test_setup_code", &item->setup);
  return keep_lines(r, "test_imports", &item->setup);
}

static kedge_status read_humaneval(const reading *r) {
  kedge_item *item = r->item;
  const char *entry, *test;
  KEDGE_TRY(keep_field(r, "prompt", &item->prompt));
  KEDGE_TRY(keep_field(r, "canonical_solution", &item->reference));
  KEDGE_TRY(text_of(r, "test", &test));
  KEDGE_TRY(text_of(r, "entry_point", &entry));
  KEDGE_TRY(keep_place(r, "humaneval", "test"));
  KEEP_FORMAT(item->tests, "%s\ncheck(%s)\n", test, entry);
  KEDGE_TRY(keep(&item->setup, item->prompt));
  item->kind = KEDGE_ANSWER_PYTHON;
  item->listed = true; /* the prompt is the head of the code */
  return keep_value(r, "task_id", &item->id);
}

/* ---- Table
 * ------------------------------------------------------------------------------------------------------- */

static const kedge_suite_form forms[] = {
    {"humaneval", {"prompt", "canonical_solution", "test", "entry_point"}, read_humaneval},
    {"mbpp", {"text", "code", "test_list"}, read_mbpp},
    {"mbpp", {"prompt", "code", "test_list"}, read_mbpp},
    {"kedge", {"prompt", "completion"}, read_own},
    {"svamp", {"Body", "Question", "Answer"}, read_svamp},
    {"mmlu", {"question", "choices", "answer"}, read_mmlu},
    {"gsm8k", {"question", "answer"}, read_gsm8k},
    {"bbh", {"input", "target"}, read_bbh},
};

const char *kedge_suite_form_name(const kedge_suite_form *form) {
  return form->name;
}

const kedge_suite_form *kedge__form_detect(json_t *record) {
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    bool all = true;
    for (size_t f = 0; f < 4 && forms[i].fields[f]; f++)
      all &= json_object_get(record, forms[i].fields[f]) != NULL;
    if (all) return &forms[i];
  }
  return NULL;
}

kedge_status kedge__form_read(const kedge_suite_form *form, json_t *record, const char *stem, uint64_t number,
                              int64_t order, kedge_item *item) {
  const reading r = {record, stem, order, number, item};
  kedge_status status = form->read(&r);
  if (status == KEDGE_OK && !item->id) {
    item->id = kedge_format("%llu", (unsigned long long)number);
    if (!item->id) status = KEDGE_ERR_MEMORY;
  }
  return status;
}
