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
  const utf8proc_uint8_t *in = (const utf8proc_uint8_t *)text;
  utf8proc_ssize_t count = utf8proc_decompose(in, (utf8proc_ssize_t)length, NULL, 0, option);
  if (count < 0)
    return kedge_fail(KEDGE_ERR_FORMAT, "Unicode normalisation failed: %s", utf8proc_errmsg(count));
  utf8proc_int32_t *codes = kedge_alloc((size_t)count + 1, sizeof *codes);
  if (!codes) return KEDGE_ERR_MEMORY;
  count = utf8proc_decompose(in, (utf8proc_ssize_t)length, codes, count, option);
  if (count >= 0) count = utf8proc_normalize_utf32(codes, count, option);
  kedge_status status = KEDGE_OK;
  if (count < 0)
    status = kedge_fail(KEDGE_ERR_FORMAT, "Unicode normalisation failed: %s", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count && status == KEDGE_OK; i++) {
    char bytes[4];
    status = kedge__bytes_append(out, bytes, kedge__utf8_encode((uint32_t)codes[i], bytes));
  }
  kedge_free(codes);
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
