/* SPDX-License-Identifier: Apache-2.0
 * Routing traces as NumPy arrays (trace_import.h): the header of versions 1 to 3, and numbers in C order. */
#include "models/trace/trace_import.h"

#include "models/checkpoint/convert.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_HEADER = 65536, MAX_RANK = 3, CHUNK = 4096 };

typedef struct npy {
  const char *path;
  FILE *file;
  char kind;     /* 'i', 'u' or 'f' */
  uint32_t size; /* bytes an element */
  uint32_t rank;
  uint64_t shape[MAX_RANK];
  uint64_t left; /* bytes of the file behind the header */
} npy;

static kedge_status wrong(const npy *n, const char *what) {
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: NumPy header: %s", n->path, what);
}

/* ---- The header: a Python dict of three keys
 * -------------------------------------------------------------------------- */

static const char *blanks(const char *at) {
  return at + strspn(at, " \t\n");
}

/* A quoted word of at most 31 characters; NULL if there is none. */
static const char *take_word(const char *at, char word[32]) {
  char quote = *at;
  if (quote != '\'' && quote != '"') return NULL;
  const char *end = strchr(++at, quote);
  if (!end || end - at > 31) return NULL;
  memcpy(word, at, (size_t)(end - at));
  word[end - at] = 0;
  return blanks(end + 1);
}

static kedge_status take_descr(npy *n, const char **at) {
  char word[32];
  const char *next = take_word(*at, word);
  if (!next) return wrong(n, "descr: expected a plain type such as '<i4'");
  const bool one = !strcmp(word + (*word ? 1 : 0), "i1") || !strcmp(word + (*word ? 1 : 0), "u1");
  const bool plain = *word == '<' || ((*word == '|' || *word == '>' || *word == '=') && one);
  static const char *const types[] = {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"};
  for (size_t i = 0; plain && i < sizeof types / sizeof *types; i++) {
    if (strcmp(word + 1, types[i])) continue;
    n->kind = types[i][0], n->size = (uint32_t)(types[i][1] - '0');
    *at = next;
    return KEDGE_OK;
  }
  return kedge_fail(KEDGE_ERR_FORMAT,
                    "%s: NumPy header: descr: expected a little-endian integer or float such as '<i4', got "
                    "'%s'",
                    n->path, word);
}

static kedge_status take_order(npy *n, const char **at) {
  if (!strncmp(*at, "True", 4)) return wrong(n, "Fortran order; save with numpy.ascontiguousarray");
  if (strncmp(*at, "False", 5)) return wrong(n, "fortran_order: expected True or False");
  *at = blanks(*at + 5);
  return KEDGE_OK;
}

static kedge_status take_shape(npy *n, const char **text) {
  const char *at = *text;
  if (*at++ != '(') return wrong(n, "shape: expected a tuple");
  for (at = blanks(at); *at != ')'; at = blanks(at)) {
    uint64_t value = 0;
    if (*at < '0' || *at > '9' || n->rank == MAX_RANK)
      return wrong(n, "shape: expected one to three numbers of elements");
    for (; *at >= '0' && *at <= '9'; at++) {
      if (value > INT32_MAX) return wrong(n, "shape: too large");
      value = value * 10 + (uint64_t)(*at - '0');
    }
    n->shape[n->rank++] = value;
    at = blanks(at);
    if (*at == ',')
      at++;
    else if (*at != ')')
      return wrong(n, "shape: expected a comma or a closing bracket");
  }
  *text = blanks(at + 1);
  return KEDGE_OK;
}

static kedge_status parse_dict(npy *n, const char *at) {
  bool descr = false, order = false, shape = false;
  at = blanks(at);
  if (*at++ != '{') return wrong(n, "expected a dict");
  for (at = blanks(at); *at != '}'; at = blanks(at)) {
    char key[32];
    at = take_word(at, key);
    if (!at || *at++ != ':') return wrong(n, "expected keys and values");
    at = blanks(at);
    bool *seen = !strcmp(key, "descr")           ? &descr
                 : !strcmp(key, "fortran_order") ? &order
                 : !strcmp(key, "shape")         ? &shape
                                                 : NULL;
    if (!seen || *seen) return wrong(n, "expected the keys descr, fortran_order and shape, each once");
    *seen = true;
    KEDGE_TRY(seen == &descr ? take_descr(n, &at) : seen == &order ? take_order(n, &at) : take_shape(n, &at));
    if (*at == ',')
      at++;
    else if (*at != '}')
      return wrong(n, "expected a comma between keys");
  }
  if (!descr || !order || !shape) return wrong(n, "expected the keys descr, fortran_order and shape");
  return *blanks(at + 1) ? wrong(n, "something stands behind the dict") : KEDGE_OK;
}

static kedge_status read_header(npy *n, uint64_t size) {
  unsigned char start[12];
  if (fread(start, 1, 10, n->file) != 10 || memcmp(start, "\x93NUMPY", 6))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected a NumPy array, got something else", n->path);
  const bool wide = start[6] > 1;
  if (start[6] < 1 || start[6] > 3) return wrong(n, "expected version 1, 2 or 3");
  if (wide && fread(start + 10, 1, 2, n->file) != 2) return wrong(n, "the file ends in it");
  uint64_t length = (uint64_t)start[8] | (uint64_t)start[9] << 8, begin = wide ? 12 : 10;
  if (wide) length |= (uint64_t)start[10] << 16 | (uint64_t)start[11] << 24;
  if (length > MAX_HEADER || begin + length > size)
    return wrong(n, "longer than the file, or than 65536 bytes");
  char *text = kedge_alloc(length + 1, 1);
  if (!text) return KEDGE_ERR_MEMORY;
  kedge_status status = fread(text, 1, length, n->file) == length && !memchr(text, 0, length)
                            ? parse_dict(n, text)
                            : wrong(n, "expected text");
  kedge_free(text);
  n->left = size - begin - length;
  return status;
}

static void npy_close(npy *n) {
  if (n->file) fclose(n->file);
  n->file = NULL;
}

/* Opens and checks that the file holds exactly its array. */
static kedge_status npy_open(const char *path, npy *n) {
  struct stat info;
  *n = (npy){.path = path, .file = fopen(path, "rb")};
  if (!n->file || fstat(fileno(n->file), &info)) {
    kedge_status status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
    npy_close(n);
    return status;
  }
  kedge_status status = read_header(n, (uint64_t)info.st_size);
  if (status == KEDGE_OK) {
    uint64_t most = n->left / n->size, count = 1;
    bool fits = n->left % n->size == 0;
    for (uint32_t i = 0; i < n->rank; i++) {
      fits = fits && (!n->shape[i] || count <= most / n->shape[i]);
      count = fits ? count * n->shape[i] : 0;
    }
    if (!fits || count != most)
      status = kedge_fail(KEDGE_ERR_FORMAT,
                          "%s: the shape does not fit the file: %llu bytes of %u-byte numbers stand behind "
                          "the header",
                          path, (unsigned long long)n->left, n->size);
  }
  if (status != KEDGE_OK) npy_close(n);
  return status;
}

/* ---- Numbers
 * ------------------------------------------------------------------------------------------------------ */

static double real_at(const npy *n, const unsigned char *bytes) {
  uint16_t half;
  float single;
  double wide;
  if (n->size == 2) return memcpy(&half, bytes, 2), (double)kedge_f16_to_f32(half);
  if (n->size == 4) return memcpy(&single, bytes, 4), (double)single;
  memcpy(&wide, bytes, 8);
  return wide;
}

/* Sign-extended; an unsigned number over INT64_MAX comes as INT64_MAX, which no id is. */
static int64_t integer_at(const npy *n, const unsigned char *bytes) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < n->size; i++) value |= (uint64_t)bytes[i] << 8 * i;
  const uint32_t bits = 8 * n->size;
  if (n->kind == 'u') return value > INT64_MAX ? INT64_MAX : (int64_t)value;
  if (bits < 64 && value >> (bits - 1)) value |= ~UINT64_C(0) << bits;
  int64_t out;
  memcpy(&out, &value, sizeof out);
  return out;
}

/* The next `count` numbers, to ints (each in [least, most]) or to floats. */
static kedge_status take_numbers(npy *n, uint64_t count, int64_t least, int64_t most, int32_t *ints,
                                 float *floats) {
  unsigned char bytes[CHUNK * 8];
  for (uint64_t done = 0; done < count;) {
    uint64_t now = count - done < CHUNK ? count - done : CHUNK;
    if (fread(bytes, n->size, now, n->file) != now)
      return kedge_fail(KEDGE_ERR_IO, "%s: the file ends too early", n->path);
    for (uint64_t i = 0; i < now; i++, done++) {
      const unsigned char *at = bytes + i * n->size;
      if (floats) {
        floats[done] = (float)real_at(n, at);
        continue;
      }
      int64_t value = integer_at(n, at);
      if (value < least || value > most)
        return kedge_fail(KEDGE_ERR_FORMAT, "%s: number %llu: expected %lld to %lld, got %lld", n->path,
                          (unsigned long long)done, (long long)least, (long long)most, (long long)value);
      ints[done] = (int32_t)value;
    }
  }
  return KEDGE_OK;
}

/* ---- The trace
 * ---------------------------------------------------------------------------------------------------- */

/* An array beside the ids, of integers [tokens] or of floats as the ids are. */
static kedge_status take_beside(const char *path, const kedge_trace *t, int64_t least, int64_t most,
                                int32_t *ints, float *floats) {
  npy n;
  KEDGE_TRY(npy_open(path, &n));
  bool same = floats ? n.rank == 3 && n.shape[1] == t->layers && n.shape[2] == t->topk : n.rank == 1;
  kedge_status status;
  if (!same || n.shape[0] != t->tokens)
    status = kedge_fail(KEDGE_ERR_MISMATCH, "%s: expected the shape (%u%s), as the ids have it", path,
                        t->tokens, floats ? ", layers, k" : ",");
  else if ((n.kind == 'f') != (floats != NULL))
    status = kedge_fail(KEDGE_ERR_FORMAT, "%s: expected %s", path, floats ? "floats" : "integers");
  else
    status = take_numbers(&n, floats ? (uint64_t)t->tokens * t->layers * t->topk : t->tokens, least, most,
                          ints, floats);
  npy_close(&n);
  return status;
}

static kedge_status take_trace(npy *n, const kedge_trace_import_options *o, kedge_trace *t) {
  if (n->kind == 'f') return wrong(n, "descr: expected integers, the ids of experts");
  if (n->rank != 3) return wrong(n, "shape: expected (tokens, layers, k)");
  if (!o->experts)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: a NumPy array does not tell the number of experts (--experts)",
                      n->path);
  const uint64_t *s = n->shape;
  if (!s[0] || s[0] > INT32_MAX || !s[1] || s[1] > 65536 || !s[2] || s[2] > o->experts)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: expected at least one token, 1 to 65536 layers and 1 to %u experts a token, got "
                      "(%llu, %llu, %llu)",
                      n->path, o->experts, (unsigned long long)s[0], (unsigned long long)s[1],
                      (unsigned long long)s[2]);
  KEDGE_TRY(kedge_trace_init(t, (uint32_t)s[0], (uint32_t)s[1], o->experts, (uint32_t)s[2]));
  const uint64_t count = s[0] * s[1] * s[2];
  KEDGE_TRY(take_numbers(n, count, -1, (int64_t)o->experts - 1, t->ids, NULL));
  if (o->weights) {
    t->weights = kedge_alloc(count, sizeof *t->weights);
    if (!t->weights) return KEDGE_ERR_MEMORY;
    KEDGE_TRY(take_beside(o->weights, t, 0, 0, NULL, t->weights));
  }
  if (o->samples) KEDGE_TRY(take_beside(o->samples, t, 0, INT32_MAX, t->samples, NULL));
  return o->spans ? take_beside(o->spans, t, -1, 1, t->spans, NULL) : KEDGE_OK;
}

kedge_status kedge__trace_read_npy(const char *path, const kedge_trace_import_options *options,
                                   kedge_trace *trace) {
  npy n;
  KEDGE_TRY(npy_open(path, &n));
  kedge_status status = take_trace(&n, options, trace);
  npy_close(&n);
  return status;
}
