/* SPDX-License-Identifier: Apache-2.0
 *
 * Dense products by the vendor's library (blas.h): cuBLASLt, where it was there to compile against and is
 * there to load. Where it is not, or does not take a product, the kernels of matmul.cu do it. A product that
 * came before goes by the algorithm that was chosen then.
 */
#include "backends/gpu/blas.h"
#include "backends/gpu/state.h"

#if defined(KEDGE_GPU_CUBLASLT)

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The functions that are used, by name. */
#define LIBRARY(X)                                                                                           \
  X(cublasLtCreate)                                                                                          \
  X(cublasLtDestroy)                                                                                         \
  X(cublasLtMatmul)                                                                                          \
  X(cublasLtMatmulDescCreate)                                                                                \
  X(cublasLtMatmulDescDestroy)                                                                               \
  X(cublasLtMatmulDescSetAttribute)                                                                          \
  X(cublasLtMatrixLayoutCreate)                                                                              \
  X(cublasLtMatrixLayoutDestroy)                                                                             \
  X(cublasLtMatmulPreferenceCreate)                                                                          \
  X(cublasLtMatmulPreferenceDestroy)                                                                         \
  X(cublasLtMatmulPreferenceSetAttribute)                                                                    \
  X(cublasLtMatmulAlgoGetHeuristic)

enum { KNOWN = 64 };
static const size_t WORKSPACE = (size_t)32 << 20;

/* A product that was asked for: what tells it from others, and how it is done; `taken` false: not by the
 * library. */
typedef struct known {
  gpu_blas_call call;    /* without addresses */
  uint32_t alignment[3]; /* of a, b, c */
  bool used, taken;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t layout[3]; /* of b, a, c: the library's matrices are by columns */
  cublasLtMatmulAlgo_t algorithm;
} known;

struct gpu_blas {
  void *library, *workspace;
  cublasLtHandle_t handle;
  uint32_t next;
  known list[KNOWN];
#define X(name) __typeof__(&name) name;
  LIBRARY(X)
#undef X
};

static void forget(gpu_blas *b, known *k) {
  if (k->product) b->cublasLtMatmulDescDestroy(k->product);
  for (int i = 0; i < 3; i++)
    if (k->layout[i]) b->cublasLtMatrixLayoutDestroy(k->layout[i]);
  *k = (known){0};
}

void gpu__blas_close(gpu_blas *b) {
  if (!b) return;
  for (int i = 0; i < KNOWN; i++) forget(b, &b->list[i]);
  if (b->handle) b->cublasLtDestroy(b->handle);
  if (b->workspace) cudaFree(b->workspace);
  if (b->library) dlclose(b->library);
  kedge_free(b);
}

static bool load(gpu_blas *b) {
  char name[64];
  snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
  b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!b->library) return false;
  bool whole = true;
#define X(name)                                                                                              \
  *(void **)(void *)&b->name = dlsym(b->library, #name);                                                     \
  whole &= b->name != NULL;
  LIBRARY(X)
#undef X
  return whole;
}

kedge_status gpu__blas_open(kedge_device *device, gpu_blas **out) {
  *out = NULL;
  gpu_blas *b = kedge_alloc(1, sizeof *b);
  if (!b) return KEDGE_ERR_MEMORY;
  const size_t length = strlen(device->description);
  if (load(b) && b->cublasLtCreate(&b->handle) == CUBLAS_STATUS_SUCCESS &&
      cudaMalloc(&b->workspace, WORKSPACE) == cudaSuccess) {
    snprintf(device->description + length, sizeof device->description - length, ", cuBLASLt");
    *out = b;
    return KEDGE_OK;
  }
  (void)cudaGetLastError();
  snprintf(device->description + length, sizeof device->description - length, ", own products");
  b->handle = NULL;
  gpu__blas_close(b);
  return KEDGE_OK;
}

static uint32_t alignment_of(const void *address) {
  uint32_t most = 256;
  while ((uintptr_t)address % most) most /= 2;
  return most;
}

/* What a product is told from others by. */
static known key_of(const gpu_blas_call *call) {
  known k;
  memset(&k, 0, sizeof k);
  k.call.pitch_a = call->pitch_a;
  k.call.pitch_b = call->pitch_b;
  k.call.a_along_k = call->a_along_k;
  k.call.b_along_k = call->b_along_k;
  k.call.accumulate = call->accumulate;
  k.call.bf16 = call->bf16;
  k.call.c_bf16 = call->c_bf16;
  k.call.m = call->m;
  k.call.n = call->n;
  k.call.k = call->k;
  k.alignment[0] = alignment_of(call->a);
  k.alignment[1] = alignment_of(call->b);
  k.alignment[2] = alignment_of(call->c);
  return k;
}

static bool same(const known *a, const known *b) {
  return !memcmp(&a->call, &b->call, sizeof a->call) &&
         !memcmp(a->alignment, b->alignment, sizeof a->alignment);
}

/* By columns, C^T [n, m] = B^T A^T: a matrix that is stored [k, n] by rows is [n, k] by columns. */
static bool describe(gpu_blas *b, known *k) {
  const gpu_blas_call *c = &k->call;
  const cudaDataType_t in = c->bf16 ? CUDA_R_16BF : CUDA_R_32F, out = c->c_bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const cublasOperation_t op_b = c->b_along_k ? CUBLAS_OP_N : CUBLAS_OP_T,
                          op_a = c->a_along_k ? CUBLAS_OP_T : CUBLAS_OP_N;
  return b->cublasLtMatmulDescCreate(&k->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         b->cublasLtMatmulDescSetAttribute(k->product, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b) ==
             CUBLAS_STATUS_SUCCESS &&
         b->cublasLtMatmulDescSetAttribute(k->product, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a) ==
             CUBLAS_STATUS_SUCCESS &&
         b->cublasLtMatrixLayoutCreate(&k->layout[0], in, c->b_along_k ? c->n : c->k,
                                       c->b_along_k ? c->k : c->n,
                                       (int64_t)c->pitch_b) == CUBLAS_STATUS_SUCCESS &&
         b->cublasLtMatrixLayoutCreate(&k->layout[1], in, c->a_along_k ? c->m : c->k,
                                       c->a_along_k ? c->k : c->m,
                                       (int64_t)c->pitch_a) == CUBLAS_STATUS_SUCCESS &&
         b->cublasLtMatrixLayoutCreate(&k->layout[2], out, c->n, c->m, c->n) == CUBLAS_STATUS_SUCCESS;
}

static bool choose(gpu_blas *b, known *k) {
  cublasLtMatmulPreference_t wish = NULL;
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  if (!describe(b, k) || b->cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS) return false;
  const struct {
    cublasLtMatmulPreferenceAttributes_t name;
    const void *value;
    size_t bytes;
  } wishes[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->alignment[1], sizeof(uint32_t)},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->alignment[0], sizeof(uint32_t)},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->alignment[2], sizeof(uint32_t)},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->alignment[2], sizeof(uint32_t)}};
  bool good = true;
  for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
    good &= b->cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].name, wishes[i].value, wishes[i].bytes) ==
            CUBLAS_STATUS_SUCCESS;
  good = good &&
         b->cublasLtMatmulAlgoGetHeuristic(b->handle, k->product, k->layout[0], k->layout[1], k->layout[2],
                                           k->layout[2], wish, 1, &found, &count) == CUBLAS_STATUS_SUCCESS &&
         count == 1;
  if (good) k->algorithm = found.algo;
  b->cublasLtMatmulPreferenceDestroy(wish);
  return good;
}

static known *find(gpu_blas *b, const gpu_blas_call *call) {
  const known key = key_of(call);
  for (int i = 0; i < KNOWN; i++)
    if (b->list[i].used && same(&b->list[i], &key)) return &b->list[i];
  known *k = &b->list[b->next++ % KNOWN];
  forget(b, k);
  *k = key;
  k->used = true;
  k->taken = choose(b, k);
  return k;
}

bool gpu__blas_multiply(const gpu_step *s, const gpu_blas_call *call) {
  gpu_blas *b = s->blas;
  if ((!call->bf16 && call->c_bf16) || !call->k) return false;
  const known *k = find(b, call);
  if (!k->taken) return false;
  const float one = 1, old = call->accumulate ? 1 : 0;
  return b->cublasLtMatmul(b->handle, k->product, &one, call->b, k->layout[0], call->a, k->layout[1], &old,
                           call->c, k->layout[2], call->c, k->layout[2], &k->algorithm, b->workspace,
                           WORKSPACE, s->stream) == CUBLAS_STATUS_SUCCESS;
}

#else

kedge_status gpu__blas_open(kedge_device *device, gpu_blas **blas) {
  (void)device;
  *blas = NULL;
  return KEDGE_OK;
}

void gpu__blas_close(gpu_blas *blas) {
  (void)blas;
}

bool gpu__blas_multiply(const gpu_step *s, const gpu_blas_call *call) {
  (void)s;
  (void)call;
  return false;
}

#endif
