/* SPDX-License-Identifier: Apache-2.0
 *
 * Dense products by the vendor's library (blas.h): cuBLASLt or hipBLASLt, which are alike but for the numbers
 * of their names (blas_vendors.h) and are loaded where they are installed. Where the library is not, or does
 * not take a product, the kernels of matmul.cu do it. A product that came before goes by the algorithm that
 * was chosen then. KEDGE_GPU_BLAS names another file to load; the simulated card, which has no such library,
 * loads that file alone, with the names that its setting `blas` asks for.
 */
#include "backends/gpu/blas.h"
#include "backends/gpu/blas_vendors.h"
#include "backends/gpu/state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KNOWN = 64 };
static const size_t WORKSPACE = (size_t)32 << 20;

/* A product that was asked for: what tells it from others, and how it is done; `taken` false: not by the
 * library. */
typedef struct known {
  gpu_blas_call call;    /* without addresses */
  uint32_t alignment[3]; /* of a, b, c */
  bool used, taken;
  void *product, *layout[3]; /* of b, a, c: the library's matrices are by columns */
  blas_choice choice;
} known;

struct gpu_blas {
  void *library, *workspace, *handle;
  const blas_vendor *vendor;
  uint32_t next;
  known list[KNOWN];
  blas_functions call;
};

static void forget(gpu_blas *b, known *k) {
  if (k->product) b->call.MatmulDescDestroy(k->product);
  for (int i = 0; i < 3; i++)
    if (k->layout[i]) b->call.MatrixLayoutDestroy(k->layout[i]);
  *k = (known){0};
}

void gpu__blas_close(gpu_blas *b) {
  if (!b) return;
  for (int i = 0; i < KNOWN; i++) forget(b, &b->list[i]);
  if (b->handle) b->call.Destroy(b->handle);
  if (b->workspace) GPU(Free)(b->workspace);
  if (b->library) dlclose(b->library);
  kedge_free(b);
}

/* The library's functions; the name of one that it lacks, or NULL. */
static const char *find_functions(gpu_blas *b, char *name, size_t size) {
#define X(function)                                                                                          \
  snprintf(name, size, "%s%s", b->vendor->prefix, #function);                                                \
  *(void **)(void *)&b->call.function = dlsym(b->library, name);                                             \
  if (!b->call.function) return name;
  BLAS_FUNCTIONS(X)
#undef X
  return NULL;
}

/* Why the library cannot be used, or NULL. */
static const char *load(gpu_blas *b, const char *file, char *text, size_t size) {
  for (size_t i = 0; !file && i < BLAS_FILES && b->vendor->files[i] && !b->library; i++)
    b->library = dlopen(b->vendor->files[i], RTLD_NOW | RTLD_LOCAL);
  if (file) b->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!b->library) {
    const char *why = dlerror();
    const size_t named = file && why && !strncmp(why, file, strlen(file)) ? strlen(file) : 0;
    snprintf(text, size, "%s",
             why ? why + named + (named ? strspn(why + named, ": ") : 0) : "it is not here");
    return text;
  }
  char name[64];
  const char *lacks = find_functions(b, name, sizeof name);
  if (lacks) {
    snprintf(text, size, "it has no %s", lacks);
    return text;
  }
  return b->call.Create(&b->handle) == 0 ? NULL : "it does not start";
}

kedge_status gpu__blas_open(kedge_device *device, const gpu_settings *settings, gpu_blas **out) {
  const char *file = getenv("KEDGE_GPU_BLAS");
  const blas_vendor *vendor = &blas_vendors[settings->blas_vendor];
  char text[200];
  *out = NULL;
  if (file && !*file) file = NULL;
  if (!file && GPU_HOST_MEMORY)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      GPU_NAME ": setting blas: expected KEDGE_GPU_BLAS, a library with the "
                               "names of %s, in the environment",
                      vendor->name);
  gpu_blas *b = kedge_alloc(1, sizeof *b);
  if (!b) return KEDGE_ERR_MEMORY;
  b->vendor = vendor;
  const size_t length = strlen(device->description);
  const char *why = load(b, file, text, sizeof text);
  if (!why && GPU(Malloc)(&b->workspace, WORKSPACE) != GPU(Success)) {
    (void)GPU(GetLastError)();
    b->workspace = NULL;
    why = "no memory for its workspace";
  }
  snprintf(device->description + length, sizeof device->description - length, ", %s",
           why ? "own products" : vendor->name);
  if (!why) {
    *out = b;
    return KEDGE_OK;
  }
  kedge_status status = KEDGE_OK; /* a library that nobody named may be absent */
  if (file) status = kedge_fail(KEDGE_ERR_DEVICE, GPU_NAME ": KEDGE_GPU_BLAS: %s: %s", file, why);
  gpu__blas_close(b);
  return status;
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
  const blas_vendor *v = b->vendor;
  const blas_functions *f = &b->call;
  const int in = c->bf16 ? v->type_bf16 : v->type_f32, out = c->c_bf16 ? v->type_bf16 : v->type_f32;
  const int32_t op_b = c->b_along_k ? v->op_n : v->op_t, op_a = c->a_along_k ? v->op_t : v->op_n;
  return f->MatmulDescCreate(&k->product, v->compute_f32, v->type_f32) == 0 &&
         f->MatmulDescSetAttribute(k->product, v->desc_transa, &op_b, sizeof op_b) == 0 &&
         f->MatmulDescSetAttribute(k->product, v->desc_transb, &op_a, sizeof op_a) == 0 &&
         f->MatrixLayoutCreate(&k->layout[0], in, c->b_along_k ? c->n : c->k, c->b_along_k ? c->k : c->n,
                               (int64_t)c->pitch_b) == 0 &&
         f->MatrixLayoutCreate(&k->layout[1], in, c->a_along_k ? c->m : c->k, c->a_along_k ? c->k : c->m,
                               (int64_t)c->pitch_a) == 0 &&
         f->MatrixLayoutCreate(&k->layout[2], out, c->n, c->m, c->n) == 0;
}

static bool choose(gpu_blas *b, known *k) {
  const blas_vendor *v = b->vendor;
  void *wish = NULL;
  int count = 0;
  if (!describe(b, k) || b->call.MatmulPreferenceCreate(&wish) != 0) return false;
  /* The library's A is b, its B is a, its C and D are c. */
  const uint32_t alignment[4] = {k->alignment[1], k->alignment[0], k->alignment[2], k->alignment[2]};
  const uint64_t workspace = WORKSPACE;
  bool good =
      b->call.MatmulPreferenceSetAttribute(wish, v->wish_workspace, &workspace, sizeof workspace) == 0;
  for (int i = 0; i < 4 && v->wish_alignment; i++)
    good &= b->call.MatmulPreferenceSetAttribute(wish, v->wish_alignment + i, &alignment[i],
                                                 sizeof alignment[i]) == 0;
  good = good &&
         b->call.MatmulAlgoGetHeuristic(b->handle, k->product, k->layout[0], k->layout[1], k->layout[2],
                                        k->layout[2], wish, 1, &k->choice, &count) == 0 &&
         count == 1 && blas_choice_good(v, &k->choice);
  b->call.MatmulPreferenceDestroy(wish);
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
  return b->call.Matmul(b->handle, k->product, &one, call->b, k->layout[0], call->a, k->layout[1], &old,
                        call->c, k->layout[2], call->c, k->layout[2], &k->choice, b->workspace, WORKSPACE,
                        (void *)s->stream) == 0;
}
