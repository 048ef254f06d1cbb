/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8, the byte alphabet and normal forms. Sibling: unicode.h.
 */
#include "models/text/unicode.h"

#include <string.h>
#include <utf8proc.h>

kedge_status kedge__bytes_append(kedge__bytes *bytes, const void *data, size_t length) {
  if (bytes->capacity - bytes->length <= length) {
    size_t wanted;
    if (__builtin_add_overflow(bytes->length, length, &wanted) || wanted > SIZE_MAX / 2 - 64)
      return kedge_fail(KEDGE_ERR_MEMORY, "a text of more than %zu bytes", bytes->length);
    size_t capacity = bytes->capacity * 2 > wanted ? bytes->capacity * 2 : wanted + 1;
    if (capacity < 64) capacity = 64;
    char *grown = kedge_realloc(bytes->data, capacity, 1);
    if (!grown) return KEDGE_ERR_MEMORY;
    bytes->data = grown;
    bytes->capacity = capacity;
  }
  if (length) memcpy(bytes->data + bytes->length, data, length);
  bytes->length += length;
  bytes->data[bytes->length] = 0;
  return KEDGE_OK;
}

kedge_status kedge__bytes_text(kedge__bytes *bytes, const char *text) {
  return kedge__bytes_append(bytes, text, strlen(text));
}

void kedge__bytes_free(kedge__bytes *bytes) {
  kedge_free(bytes->data);
  *bytes = (kedge__bytes){0};
}

/* Length of the character at `t`, 0 if it is not well formed. */
static size_t well_formed(const unsigned char *t, size_t left) {
  if (t[0] < 0x80) return 1;
  if (t[0] < 0xC2 || t[0] > 0xF4) return 0;
  size_t need = t[0] < 0xE0 ? 2 : t[0] < 0xF0 ? 3 : 4;
  if (left < need) return 0;
  for (size_t i = 1; i < need; i++)
    if ((t[i] & 0xC0) != 0x80) return 0;
  if (t[0] == 0xE0 && t[1] < 0xA0) return 0; /* overlong */
  if (t[0] == 0xED && t[1] > 0x9F) return 0; /* surrogate */
  if (t[0] == 0xF0 && t[1] < 0x90) return 0; /* overlong */
  if (t[0] == 0xF4 && t[1] > 0x8F) return 0; /* above U+10FFFF */
  return need;
}

size_t kedge__utf8_valid(const char *text, size_t length) {
  size_t at = 0;
  while (at < length) {
    uint64_t word;
    if (length - at >= sizeof word) {
      memcpy(&word, text + at, sizeof word);
      if (!(word & 0x8080808080808080u)) {
        at += sizeof word;
        continue;
      }
    }
    size_t size = well_formed((const unsigned char *)text + at, length - at);
    if (!size) return at;
    at += size;
  }
  return length;
}

size_t kedge__utf8_decode(const char *text, uint32_t *code) {
  const unsigned char *t = (const unsigned char *)text;
  if (t[0] < 0x80) {
    *code = t[0];
    return 1;
  }
  if (t[0] < 0xE0) {
    *code = (t[0] & 0x1Fu) << 6 | (t[1] & 0x3Fu);
    return 2;
  }
  if (t[0] < 0xF0) {
    *code = (t[0] & 0x0Fu) << 12 | (t[1] & 0x3Fu) << 6 | (t[2] & 0x3Fu);
    return 3;
  }
  *code = (t[0] & 0x07u) << 18 | (t[1] & 0x3Fu) << 12 | (t[2] & 0x3Fu) << 6 | (t[3] & 0x3Fu);
  return 4;
}

size_t kedge__utf8_encode(uint32_t code, char text[4]) {
  if (code < 0x80) {
    text[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    text[0] = (char)(0xC0 | code >> 6);
    text[1] = (char)(0x80 | (code & 0x3F));
    return 2;
  }
  if (code < 0x10000) {
    text[0] = (char)(0xE0 | code >> 12);
    text[1] = (char)(0x80 | (code >> 6 & 0x3F));
    text[2] = (char)(0x80 | (code & 0x3F));
    return 3;
  }
  text[0] = (char)(0xF0 | code >> 18);
  text[1] = (char)(0x80 | (code >> 12 & 0x3F));
  text[2] = (char)(0x80 | (code >> 6 & 0x3F));
  text[3] = (char)(0x80 | (code & 0x3F));
  return 4;
}

/* The bytes that stand for themselves are 21-7E, A1-AC and AE-FF; the others, in order, become U+0100, U+0101
 * and so on: 33 from 00 to 20, 34 from 7F to A0, and AD. */
uint32_t kedge__byte_char(uint8_t byte) {
  if (byte <= 0x20) return 0x100u + byte;
  if (byte >= 0x7F && byte <= 0xA0) return 0x121u + byte - 0x7F;
  return byte == 0xAD ? 0x143u : byte;
}

int kedge__char_byte(uint32_t code) {
  if (code >= KEDGE__ALPHABET_END) return -1;
  if (code == 0x143) return 0xAD;
  if (code >= 0x121) return (int)(code - 0x121 + 0x7F);
  if (code >= 0x100) return (int)(code - 0x100);
  return code <= 0x20 || (code >= 0x7F && code <= 0xA0) || code == 0xAD ? -1 : (int)code;
}

kedge_status kedge__spell_bytes(kedge__bytes *out, const char *data, size_t length) {
  for (size_t from = 0; from < length;) {
    char spelled[256];
    size_t used = 0;
    for (; from < length && used + 2 <= sizeof spelled; from++)
      used += kedge__utf8_encode(kedge__byte_char((uint8_t)data[from]), spelled + used);
    KEDGE_TRY(kedge__bytes_append(out, spelled, used));
  }
  return KEDGE_OK;
}

bool kedge__is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

/* The enclosed letters are symbols by category but alphabetic. */
bool kedge__is_word(uint32_t code) {
  if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) || code == 0x200C ||
      code == 0x200D)
    return true;
  utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

/* No character below `limit` changes in, or composes into, any form: U+0300 is the first combining mark. */
static bool all_below(const char *text, size_t length, uint32_t limit) {
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += kedge__utf8_decode(text + at, &code);
    if (code >= limit) return false;
  }
  return true;
}

/* Code points under work; `codes` grows. */
typedef struct code_list {
  utf8proc_int32_t *codes;
  size_t count, capacity;
} code_list;

static int combining_class(utf8proc_int32_t code) {
  return code < 0x300 ? 0 : utf8proc_get_property(code)->combining_class;
}

/* Appends the decomposition of every character, in the order of the text. */
static kedge_status decompose(const char *text, size_t length, utf8proc_option_t option, code_list *list) {
  int boundary = 0;
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += kedge__utf8_decode(text + at, &code);
    for (;;) {
      size_t room = list->capacity - list->count;
      utf8proc_ssize_t size = utf8proc_decompose_char((utf8proc_int32_t)code, list->codes + list->count,
                                                      (utf8proc_ssize_t)room, option, &boundary);
      if (size < 0)
        return kedge_fail(KEDGE_ERR_FORMAT, "Unicode normalisation failed: %s", utf8proc_errmsg(size));
      if ((size_t)size <= room) {
        list->count += (size_t)size;
        break;
      }
      size_t capacity = list->capacity * 2 + (size_t)size;
      utf8proc_int32_t *grown = kedge_realloc(list->codes, capacity, sizeof *grown);
      if (!grown) return KEDGE_ERR_MEMORY;
      list->codes = grown;
      list->capacity = capacity;
    }
  }
  return KEDGE_OK;
}

/* Sorts a run of marks by their classes and keeps the order within a class. A short run is sorted in place; a
 * long one, which only hostile text has, by counting, so that it takes no more than linear time. */
static kedge_status order_run(utf8proc_int32_t *codes, size_t count) {
  enum { SHORT_RUN = 32, CLASSES = 256 };
  if (count <= SHORT_RUN) {
    for (size_t i = 1; i < count; i++) {
      utf8proc_int32_t code = codes[i];
      size_t at = i;
      for (; at && combining_class(codes[at - 1]) > combining_class(code); at--) codes[at] = codes[at - 1];
      codes[at] = code;
    }
    return KEDGE_OK;
  }
  size_t starts[CLASSES + 1] = {0};
  utf8proc_int32_t *copy = kedge_alloc(count, sizeof *copy);
  if (!copy) return KEDGE_ERR_MEMORY;
  memcpy(copy, codes, count * sizeof *copy);
  for (size_t i = 0; i < count; i++) starts[combining_class(copy[i]) + 1]++;
  for (int i = 0; i < CLASSES; i++) starts[i + 1] += starts[i];
  for (size_t i = 0; i < count; i++) codes[starts[combining_class(copy[i])]++] = copy[i];
  kedge_free(copy);
  return KEDGE_OK;
}

/* Canonical order: between two characters of class 0, marks stand in the order of their classes. */
static kedge_status order_marks(code_list *list) {
  for (size_t at = 0, end; at < list->count; at = end + 1) {
    for (end = at; end < list->count && combining_class(list->codes[end]); end++) {
    }
    if (end - at > 1) KEDGE_TRY(order_run(list->codes + at, end - at));
  }
  return KEDGE_OK;
}

/* Appends the composition of ordered code points. */
static kedge_status compose(utf8proc_int32_t *codes, size_t length, utf8proc_option_t option,
                            kedge__bytes *out) {
  utf8proc_ssize_t count = utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)length, option);
  if (count < 0)
    return kedge_fail(KEDGE_ERR_FORMAT, "Unicode normalisation failed: %s", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; i++) {
    char bytes[4];
    KEDGE_TRY(kedge__bytes_append(out, bytes, kedge__utf8_encode((uint32_t)codes[i], bytes)));
  }
  return KEDGE_OK;
}

kedge_status kedge__normalize(kedge__form form, const char *text, size_t length, kedge__bytes *out) {
  if (all_below(text, length, form == KEDGE__NFC ? 0x300 : 0x80))
    return kedge__bytes_append(out, text, length);
  static const int options[] = {
      [KEDGE__NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
      [KEDGE__NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
      [KEDGE__NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
      [KEDGE__NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
  };
  utf8proc_option_t option = (utf8proc_option_t)options[form];
  /* utf8proc's own ordering of marks is quadratic in the length of a run: only its tables are used here. */
  code_list list = {.capacity = length};
  kedge_status status = KEDGE_OK;
  list.codes = kedge_alloc(length, sizeof *list.codes);
  if (!list.codes) return KEDGE_ERR_MEMORY;
  KEDGE_GOTO(decompose(text, length, option, &list), status, end);
  KEDGE_GOTO(order_marks(&list), status, end);
  for (size_t at = 0, stop; at < list.count && status == KEDGE_OK; at = stop) {
    /* utf8proc lets U+11A7, which composes with nothing, vanish behind a Hangul syllable: it begins anew. */
    for (stop = at + 1; stop < list.count && list.codes[stop] != 0x11A7; stop++) {
    }
    status = compose(list.codes + at, stop - at, option, out);
  }
end:
  kedge_free(list.codes);
  return status;
}

kedge_status kedge__lowercase(const char *text, size_t length, kedge__bytes *out) {
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += kedge__utf8_decode(text + at, &code);
    /* The one character whose own lowercase is two characters. */
    if (code == 0x130) {
      KEDGE_TRY(kedge__bytes_text(out, "i\xCC\x87"));
      continue;
    }
    char bytes[4];
    KEDGE_TRY(kedge__bytes_append(
        out, bytes, kedge__utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)code), bytes)));
  }
  return KEDGE_OK;
}
