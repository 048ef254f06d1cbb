/* SPDX-License-Identifier: Apache-2.0
 *
 * Head matmul and cross-entropy in panels of tokens times blocks of words; meaning in core/ops/softmax.c.
 * Only tokens with a label are looked at: they are packed into panels first, so that a prompt costs nothing.
 *
 * Backward: for each panel and each chunk of words, tasks of WORDS words compute the gradient of their logits
 * and add to dW, then tasks of dH tiles add the chunk's part. Each sum has one owner and runs over panels or
 * chunks in ascending order. */
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/vexp.h"

enum { PANEL = 512, WORDS = 128, CHUNK = 16 * WORDS, TILE = 128 };

/* Indices of the tokens with a label. */
static size_t labelled(const int32_t *labels, size_t tokens, int32_t *chosen) {
  size_t n = 0;
  for (size_t t = 0; t < tokens; t++)
    if (labels[t] >= 0) chosen[n++] = (int32_t)t;
  return n;
}

/* Rows of h, packed as floats. */
static void pack(const kedge_call *call, const int32_t *chosen, size_t count, size_t dim, float *panel) {
  KEDGE_PARALLEL_FOR
  for (size_t r = 0; r < count; r++)
    kedge__widen(panel + r * dim, KEDGE_IN_X(0) + (size_t)chosen[r] * dim, dim);
}

/* ---- Loss
 * -------------------------------------------------------------------------------------------------------------
 */

/* What a block of words knows of a row: its largest logit, and the sum of exp relative to it. */
typedef struct partial {
  float max, sum;
} partial;

typedef struct loss_scratch {
  float *panel, *label_logit, *threads;
  partial *partials; /* [blocks of words][rows of a panel] */
  int32_t *chosen;
  size_t a_thread; /* floats */
  uint64_t bytes;
} loss_scratch;

static size_t panel_rows(size_t tokens) {
  return kedge__min(PANEL, tokens);
}

static loss_scratch loss_layout(const kedge_call *call, size_t tokens, size_t dim, size_t vocab) {
  loss_scratch s;
  float *at = call->scratch;
  size_t rows = panel_rows(tokens), used = 0;
  const size_t pieces[] = {rows * dim, rows, 2 * rows * kedge__blocks(vocab, WORDS), tokens};
  float *places[4];
  for (size_t i = 0; i < 4; i++) {
    places[i] = at ? at + used : NULL;
    used += kedge__pad(pieces[i]);
  }
  s.panel = places[0];
  s.label_logit = places[1];
  s.partials = (partial *)(void *)places[2];
  s.chosen = (int32_t *)(void *)places[3];
  s.a_thread = kedge__pad(rows * WORDS) + kedge__pad(WORDS * dim);
  s.threads = at ? at + used : NULL;
  s.bytes = (used + s.a_thread * call->threads) * sizeof(float);
  return s;
}

KEDGE_SCRATCH(head_loss) {
  KEDGE_CALL_ARGS(head_loss);
  return loss_layout(call, a->tokens, a->dim, a->vocab).bytes;
}

static void loss_words(const kedge_call *call, const loss_scratch *s, const int32_t *chosen, size_t rows,
                       size_t block) {
  KEDGE_CALL_ARGS(head_loss);
  size_t first = block * WORDS, n = kedge__min(WORDS, a->vocab - first), dim = a->dim;
  float *logits = s->threads + (size_t)omp_get_thread_num() * s->a_thread;
  kedge_panel w = kedge__panel_of(KEDGE_IN_X(1) + first * dim, dim, n, dim,
                                  logits + kedge__pad(panel_rows(a->tokens) * WORDS));
  kedge__gemm(false, true, rows, n, dim, (kedge_panel){s->panel, dim}, w, 0, logits, WORDS);
  for (size_t r = 0; r < rows; r++) {
    const float *z = logits + r * WORDS;
    size_t label = (size_t)KEDGE_IN_I(2)[chosen[r]];
    if (label >= first && label < first + n) s->label_logit[r] = z[label - first];
    float max = z[0], sum = 0;
#pragma omp simd reduction(max : max)
    for (size_t v = 0; v < n; v++) max = z[v] > max ? z[v] : max;
#pragma omp simd reduction(+ : sum)
    for (size_t v = 0; v < n; v++) sum += kedge__vexp(z[v] - max);
    s->partials[block * panel_rows(a->tokens) + r] = (partial){max, sum};
  }
}

static void loss_row(const kedge_call *call, const loss_scratch *s, size_t t, size_t r) {
  KEDGE_CALL_ARGS(head_loss);
  size_t blocks = kedge__blocks(a->vocab, WORDS), rows = panel_rows(a->tokens);
  float max = s->partials[r].max, sum = 0;
  for (size_t b = 1; b < blocks; b++) max = fmaxf(max, s->partials[b * rows + r].max);
  for (size_t b = 0; b < blocks; b++)
    sum += s->partials[b * rows + r].sum * expf(s->partials[b * rows + r].max - max);
  float lse = max + logf(sum);
  KEDGE_OUT_F(0)[t] = lse - s->label_logit[r];
  KEDGE_OUT_F(1)[t] = lse;
}

KEDGE_KERNEL(head_loss) {
  KEDGE_CALL_ARGS(head_loss);
  loss_scratch s = loss_layout(call, a->tokens, a->dim, a->vocab);
  size_t count = labelled(KEDGE_IN_I(2), a->tokens, s.chosen), blocks = kedge__blocks(a->vocab, WORDS);
  memset(KEDGE_OUT_F(0), 0, a->tokens * sizeof(float));
  memset(KEDGE_OUT_F(1), 0, a->tokens * sizeof(float));
  for (size_t first = 0; first < count; first += PANEL) {
    size_t rows = kedge__min(PANEL, count - first);
    const int32_t *chosen = s.chosen + first;
    pack(call, chosen, rows, a->dim, s.panel);
    KEDGE_PARALLEL_FOR
    for (size_t b = 0; b < blocks; b++) loss_words(call, &s, chosen, rows, b);
    KEDGE_PARALLEL_FOR
    for (size_t r = 0; r < rows; r++) loss_row(call, &s, (size_t)chosen[r], r);
  }
}

/* ---- Gradient
 * ---------------------------------------------------------------------------------------------------------
 */

typedef struct grad_scratch {
  float *panel, *dpanel, *words,
      *logits; /* h and dh [PANEL,D]; w [CHUNK,D]; gradients of logits [PANEL,CHUNK] */
  int32_t *chosen;
  uint64_t bytes;
} grad_scratch;

static grad_scratch grad_layout(const kedge_call *call, size_t tokens, size_t dim, size_t vocab) {
  size_t rows = panel_rows(tokens), used = 0;
  const size_t pieces[] = {rows * dim, rows * dim, kedge__min(CHUNK, vocab) * dim, rows * CHUNK, tokens};
  float *places[5];
  for (size_t i = 0; i < 5; i++) {
    places[i] = call->scratch ? (float *)call->scratch + used : NULL;
    used += kedge__pad(pieces[i]);
  }
  return (grad_scratch){places[0],           places[1], places[2], places[3], (int32_t *)(void *)places[4],
                        used * sizeof(float)};
}

KEDGE_SCRATCH(head_loss_grad) {
  KEDGE_CALL_ARGS(head_loss_grad);
  return grad_layout(call, a->tokens, a->dim, a->vocab).bytes;
}

/* A panel of tokens against one chunk of words. */
typedef struct grad_step {
  const int32_t *chosen;
  size_t rows, word; /* first word of the chunk */
  bool first;        /* first panel: dW starts here */
} grad_step;

static kedge_panel chunk_words(const kedge_call *call, const grad_scratch *s, const grad_step *step,
                               size_t first, size_t n) {
  KEDGE_CALL_ARGS(head_loss_grad);
  size_t dim = a->dim;
  return kedge__panel_of(KEDGE_IN_X(1) + first * dim, dim, n, dim, s->words + (first - step->word) * dim);
}

static void grad_words(const kedge_call *call, const grad_scratch *s, const grad_step *step, size_t first) {
  KEDGE_CALL_ARGS(head_loss_grad);
  size_t n = kedge__min(WORDS, a->vocab - first), dim = a->dim;
  float *logits = s->logits + (first - step->word);
  kedge_panel h = {s->panel, dim};
  kedge__gemm(false, true, step->rows, n, dim, h, chunk_words(call, s, step, first, n), 0, logits, CHUNK);
  for (size_t r = 0; r < step->rows; r++) {
    float *g = logits + r * CHUNK;
    size_t t = (size_t)step->chosen[r], label = (size_t)KEDGE_IN_I(2)[t];
    float lse = KEDGE_IN_F(3)[t], dnll = KEDGE_IN_F(4)[t];
    for (size_t v = 0; v < n; v++) g[v] = dnll * kedge__vexp(g[v] - lse);
    if (label >= first && label < first + n) g[label - first] -= dnll;
  }
  kedge__gemm(true, false, n, dim, step->rows, (kedge_panel){logits, CHUNK}, h, step->first ? 0 : 1,
              KEDGE_OUT_F(1) + first * dim, dim);
}

/* A tile of dH [rows of the panel, columns] += the chunk's logit gradients times its words. */
static void grad_hidden(const kedge_call *call, const grad_scratch *s, const grad_step *step, size_t words,
                        size_t row, size_t col) {
  KEDGE_CALL_ARGS(head_loss_grad);
  size_t dim = a->dim;
#if defined(KEDGE_STORAGE_BF16)
  const float *w = s->words; /* widened by grad_words */
#else
  const float *w = KEDGE_IN_X(1) + step->word * dim;
#endif
  kedge__gemm(false, false, kedge__min(TILE, step->rows - row), kedge__min(TILE, dim - col), words,
              (kedge_panel){s->logits + row * CHUNK, CHUNK}, (kedge_panel){w + col, dim}, step->word ? 1 : 0,
              s->dpanel + row * dim + col, dim);
}

static void grad_panel(const kedge_call *call, const grad_scratch *s, grad_step step) {
  KEDGE_CALL_ARGS(head_loss_grad);
  size_t dim = a->dim, row_tiles = kedge__blocks(step.rows, TILE), col_tiles = kedge__blocks(dim, TILE);
  pack(call, step.chosen, step.rows, dim, s->panel);
  for (step.word = 0; step.word < a->vocab; step.word += CHUNK) {
    size_t words = kedge__min(CHUNK, a->vocab - step.word);
    KEDGE_PARALLEL_FOR
    for (size_t b = 0; b < kedge__blocks(words, WORDS); b++)
      grad_words(call, s, &step, step.word + b * WORDS);
    KEDGE_PARALLEL_FOR
    for (size_t i = 0; i < row_tiles * col_tiles; i++)
      grad_hidden(call, s, &step, words, i / col_tiles * TILE, i % col_tiles * TILE);
  }
  KEDGE_PARALLEL_FOR
  for (size_t r = 0; r < step.rows; r++)
    kedge__narrow(KEDGE_OUT_X(0) + (size_t)step.chosen[r] * dim, s->dpanel + r * dim, dim);
}

KEDGE_KERNEL(head_loss_grad) {
  KEDGE_CALL_ARGS(head_loss_grad);
  grad_scratch s = grad_layout(call, a->tokens, a->dim, a->vocab);
  size_t count = labelled(KEDGE_IN_I(2), a->tokens, s.chosen);
  memset(KEDGE_OUT_X(0), 0, (size_t)a->tokens * a->dim * sizeof(kedge_x));
  if (!count) memset(KEDGE_OUT_F(1), 0, (size_t)a->vocab * a->dim * sizeof(float));
  for (size_t first = 0; first < count; first += PANEL)
    grad_panel(call, &s, (grad_step){s.chosen + first, kedge__min(PANEL, count - first), 0, first == 0});
}
