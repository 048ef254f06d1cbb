/* SPDX-License-Identifier: Apache-2.0
 *
 * cuBLASLt's and hipBLASLt's functions on the host, as their manuals describe them, for test_sim_blas.c:
 * built once under each vendor's names with that vendor's numbers, on purpose not those of the header that
 * the backend has. Matrices are by columns. What the manuals forbid is refused: unknown names, wrong sizes of
 * values, pitches under the rows, shapes that do not fit, addresses less aligned than was promised.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(BLAS_HIP)
#define NAME(function) hipblasLt##function
enum { OP_N = 111, OP_T = 112, COMPUTE_F32 = 2, DESC_TRANSA = 0, DESC_TRANSB = 1, WISH_ALIGNMENT = -1 };
typedef struct algorithm {
  uint8_t data[16];
  size_t most_workspace;
} algorithm;
#else
#define NAME(function) cublasLt##function
enum { OP_N = 0, OP_T = 1, COMPUTE_F32 = 68, DESC_TRANSA = 3, DESC_TRANSB = 4, WISH_ALIGNMENT = 5 };
typedef struct algorithm {
  uint64_t data[8];
} algorithm;
#endif
enum { F32 = 0, BF16 = 14, WISH_WORKSPACE = 1, SUCCESS = 0, INVALID = 7, NOT_SUPPORTED = 15, MARK = 0x5a };

typedef struct choice {
  algorithm algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} choice;
typedef struct matrix {
  int type;
  uint64_t rows, cols;
  int64_t pitch;
} matrix;
typedef struct product {
  int32_t op_a, op_b;
} product;
typedef struct wish {
  uint64_t workspace;
  uint32_t alignment[4];
} wish;

/* How many products were made, and what is alive. */
int NAME(TestCalls)(void);
int NAME(TestAlive)(void);
static int calls, alive;
int NAME(TestCalls)(void) {
  return calls;
}
int NAME(TestAlive)(void) {
  return alive;
}

static int made(void **out, const void *from, size_t bytes) {
  void *copy = malloc(bytes);
  if (!copy) return INVALID;
  memcpy(copy, from, bytes);
  *out = copy;
  alive++;
  return SUCCESS;
}
static int dropped(void *what) {
  free(what);
  alive--;
  return SUCCESS;
}

int NAME(Create)(void **handle);
int NAME(Create)(void **handle) {
  return getenv("KEDGE_TEST_BLAS_DEAD") ? INVALID : made(handle, "h", 2);
}
int NAME(Destroy)(void *handle);
int NAME(Destroy)(void *handle) {
  return dropped(handle);
}

int NAME(MatmulDescCreate)(void **out, int compute, int scale);
int NAME(MatmulDescCreate)(void **out, int compute, int scale) {
  const product p = {OP_N, OP_N};
  return compute == COMPUTE_F32 && scale == F32 ? made(out, &p, sizeof p) : INVALID;
}
int NAME(MatmulDescDestroy)(void *what);
int NAME(MatmulDescDestroy)(void *what) {
  return dropped(what);
}
int NAME(MatmulDescSetAttribute)(void *what, int name, const void *value, size_t bytes);
int NAME(MatmulDescSetAttribute)(void *what, int name, const void *value, size_t bytes) {
  product *p = what;
  int32_t op;
  if (bytes != sizeof op) return INVALID;
  memcpy(&op, value, bytes);
  if ((op != OP_N && op != OP_T) || (name != DESC_TRANSA && name != DESC_TRANSB)) return INVALID;
  *(name == DESC_TRANSA ? &p->op_a : &p->op_b) = op;
  return SUCCESS;
}

int NAME(MatrixLayoutCreate)(void **out, int type, uint64_t rows, uint64_t cols, int64_t pitch);
int NAME(MatrixLayoutCreate)(void **out, int type, uint64_t rows, uint64_t cols, int64_t pitch) {
  const matrix m = {type, rows, cols, pitch};
  return (type == F32 || type == BF16) && pitch >= (int64_t)rows ? made(out, &m, sizeof m) : INVALID;
}
int NAME(MatrixLayoutDestroy)(void *what);
int NAME(MatrixLayoutDestroy)(void *what) {
  return dropped(what);
}

int NAME(MatmulPreferenceCreate)(void **out);
int NAME(MatmulPreferenceCreate)(void **out) {
  const wish w = {0, {256, 256, 256, 256}};
  return made(out, &w, sizeof w);
}
int NAME(MatmulPreferenceDestroy)(void *what);
int NAME(MatmulPreferenceDestroy)(void *what) {
  return dropped(what);
}
int NAME(MatmulPreferenceSetAttribute)(void *what, int name, const void *value, size_t bytes);
int NAME(MatmulPreferenceSetAttribute)(void *what, int name, const void *value, size_t bytes) {
  wish *w = what;
  if (name == WISH_WORKSPACE && bytes == sizeof w->workspace)
    memcpy(&w->workspace, value, bytes);
  else if (WISH_ALIGNMENT > 0 && name >= WISH_ALIGNMENT && name < WISH_ALIGNMENT + 4 &&
           bytes == sizeof *w->alignment)
    memcpy(&w->alignment[name - WISH_ALIGNMENT], value, bytes);
  else
    return INVALID;
  return SUCCESS;
}

static bool fits(const product *p, const matrix *a, const matrix *b, const matrix *c) {
  const uint64_t m = p->op_a == OP_N ? a->rows : a->cols, k = p->op_a == OP_N ? a->cols : a->rows,
                 k_b = p->op_b == OP_N ? b->rows : b->cols, n = p->op_b == OP_N ? b->cols : b->rows;
  return m && n && k && k == k_b && c->rows == m && c->cols == n && a->type == b->type &&
         (c->type == a->type || c->type == F32);
}

int NAME(MatmulAlgoGetHeuristic)(void *handle, void *desc, void *layout_a, void *layout_b, void *layout_c,
                                 void *layout_d, void *wished, int wanted, void *choices, int *count);
int NAME(MatmulAlgoGetHeuristic)(void *handle, void *desc, void *layout_a, void *layout_b, void *layout_c,
                                 void *layout_d, void *wished, int wanted, void *choices, int *count) {
  const wish *w = wished;
  const char *refuse = getenv("KEDGE_TEST_BLAS_REFUSES");
  choice c;
  *count = 0;
  if (!handle || wanted != 1 || layout_c != layout_d || !fits(desc, layout_a, layout_b, layout_c))
    return INVALID;
  if (refuse && !strcmp(refuse, "status")) return NOT_SUPPORTED;
  memset(&c, 0, sizeof c);
  memset(&c.algo, MARK, sizeof c.algo);
  memcpy(&c.algo, w->alignment, WISH_ALIGNMENT > 0 ? sizeof w->alignment : 0);
  c.workspace = (size_t)w->workspace;
  c.state = refuse && !strcmp(refuse, "state") ? NOT_SUPPORTED : SUCCESS;
  c.waves = 1;
  memcpy(choices, &c, sizeof c);
  *count = refuse && !strcmp(refuse, "count") ? 0 : 1;
  return SUCCESS;
}

static float load(const void *base, int type, uint64_t at) {
  uint32_t bits;
  if (type == F32) {
    memcpy(&bits, (const char *)base + 4 * at, 4);
  } else {
    uint16_t half;
    memcpy(&half, (const char *)base + 2 * at, 2);
    bits = (uint32_t)half << 16;
  }
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void store(void *base, int type, uint64_t at, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (type == F32) {
    memcpy((char *)base + 4 * at, &bits, 4);
    return;
  }
  const uint16_t half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  memcpy((char *)base + 2 * at, &half, 2);
}

int NAME(Matmul)(void *handle, void *desc, const void *alpha, const void *a, void *layout_a, const void *b,
                 void *layout_b, const void *beta, const void *c, void *layout_c, void *d, void *layout_d,
                 const void *algo, void *workspace, size_t workspace_bytes, void *stream);
int NAME(Matmul)(void *handle, void *desc, const void *alpha, const void *a, void *layout_a, const void *b,
                 void *layout_b, const void *beta, const void *c, void *layout_c, void *d, void *layout_d,
                 const void *algo, void *workspace, size_t workspace_bytes, void *stream) {
  const product *p = desc;
  const matrix *ma = layout_a, *mb = layout_b, *mc = layout_c;
  float one, old;
  if (!handle || !stream || !workspace || !workspace_bytes || c != d || layout_c != layout_d ||
      !fits(p, ma, mb, mc) || ((const unsigned char *)algo)[sizeof(algorithm) - 1] != MARK)
    return INVALID;
  if (WISH_ALIGNMENT > 0) {
    uint32_t promised[4];
    memcpy(promised, algo, sizeof promised);
    if ((uintptr_t)a % promised[0] || (uintptr_t)b % promised[1] || (uintptr_t)c % promised[2] ||
        (uintptr_t)d % promised[3])
      return INVALID;
  }
  memcpy(&one, alpha, sizeof one);
  memcpy(&old, beta, sizeof old);
  const uint64_t depth = p->op_a == OP_N ? ma->cols : ma->rows;
  for (uint64_t row = 0; row < mc->rows; row++)
    for (uint64_t col = 0; col < mc->cols; col++) {
      float sum = 0;
      for (uint64_t k = 0; k < depth; k++)
        sum += load(a, ma->type,
                    p->op_a == OP_N ? row + k * (uint64_t)ma->pitch : k + row * (uint64_t)ma->pitch) *
               load(b, mb->type,
                    p->op_b == OP_N ? k + col * (uint64_t)mb->pitch : col + k * (uint64_t)mb->pitch);
      const uint64_t at = row + col * (uint64_t)mc->pitch;
      store(d, mc->type, at, old != 0 ? one * sum + old * load(c, mc->type, at) : one * sum);
    }
  calls++;
  return SUCCESS;
}
