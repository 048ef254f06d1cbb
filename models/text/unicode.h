/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8, the printable byte alphabet of byte-level tokenizers, and Unicode normal forms. Sibling: unicode.c.
 * Users: the tokenizer files of this folder.
 */
#ifndef KEDGE_MODELS_TEXT_UNICODE_H
#define KEDGE_MODELS_TEXT_UNICODE_H

#include "core/kedge.h"

/* Growing bytes. All zero is empty; `data` is kept closed by a 0 byte that `length` excludes. */
typedef struct kedge__bytes {
  char *data;
  size_t length, capacity;
} kedge__bytes;

/* Appends `length` bytes. Errors: ERR_MEMORY. */
kedge_status kedge__bytes_append(kedge__bytes *bytes, const void *data, size_t length);
kedge_status kedge__bytes_text(kedge__bytes *bytes, const char *text);
void kedge__bytes_free(kedge__bytes *bytes);

/* Length in bytes of the longest valid UTF-8 prefix: `length` itself where the whole text is valid. */
size_t kedge__utf8_valid(const char *text, size_t length);

/* Reads one character of valid UTF-8; returns its length in bytes, 1 to 4. */
size_t kedge__utf8_decode(const char *text, uint32_t *code);
/* Writes one character; returns its length in bytes. */
size_t kedge__utf8_encode(uint32_t code, char text[4]);

/* The byte alphabet of GPT-2: printable bytes stand for themselves, the other 68 for U+0100 and up. Code
 * points of the alphabet are below KEDGE__ALPHABET_END. */
enum { KEDGE__ALPHABET_END = 0x144 };
uint32_t kedge__byte_char(uint8_t byte);
/* The byte that a character of the alphabet stands for, -1 if it is none. */
int kedge__char_byte(uint32_t code);
/* Appends bytes spelled in the alphabet. */
kedge_status kedge__spell_bytes(kedge__bytes *out, const char *data, size_t length);

bool kedge__is_space(uint32_t code); /* White_Space */
bool kedge__is_word(uint32_t code);  /* Alphabetic, marks, decimal digits, connectors, joiners */

typedef enum kedge__form { KEDGE__NFC, KEDGE__NFD, KEDGE__NFKC, KEDGE__NFKD } kedge__form;
/* Appends the normal form of valid UTF-8 (the Unicode version of utf8proc). Errors: ERR_MEMORY. */
kedge_status kedge__normalize(kedge__form form, const char *text, size_t length, kedge__bytes *out);
/* Appends the lowercase of every character by itself, as the reference library does. */
kedge_status kedge__lowercase(const char *text, size_t length, kedge__bytes *out);

#endif
