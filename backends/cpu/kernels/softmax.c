/* SPDX-License-Identifier: Apache-2.0
 *
 * Head matmul and cross-entropy in panels of tokens times blocks of words; meaning in core/ops/softmax.c.
 * Only tokens with a label are looked at: blocks gather them, so that a prompt costs nothing.
 *
 * Backward: for each panel and each chunk of words, tasks compute the gradients of the logits, which are kept
 * in the storage dtype; then tasks of dW blocks and of dH blocks add the chunk's part. Each sum has one owner
 * and runs over panels or chunks in ascending order. */
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/vexp.h"

enum { PANEL = 1024, CHUNK = 2048, ROWS = 256, WORDS = KEDGE_NC, COLS = 256 };
/* Rows of a chunk of logits are not a power of two apart, which would put a column into one set of the cache.
 */
enum { PITCH = CHUNK + 32 };

/* Indices of the tokens with a label. */
static size_t labelled(const int32_t *labels, size_t tokens, int32_t *chosen) {
  size_t n = 0;
  for (size_t t = 0; t < tokens; t++)
    if (labels[t] >= 0) chosen[n++] = (int32_t)t;
  return n;
}

static size_t panel_rows(size_t tokens) {
  return kedge__min(PANEL, tokens);
}

/* h of the chosen tokens times W^T. */
static kedge_product logits_of(const kedge_call *call, const int32_t *chosen, size_t dim) {
  return (kedge_product){{KEDGE_IN_X(0), dim, chosen, 1}, {KEDGE_IN_X(1), dim, NULL, 1}, false, true, dim};
}

/* Packed panels and a block of logits [ROWS, WORDS] of each thread. */
static uint32_t *thread_scratch(uint32_t *threads) {
  return threads + (size_t)omp_get_thread_num() * KEDGE_GEMM_WORDS;
}

/* Logits of a block of chosen rows and words, [ROWS, WORDS] in the thread's scratch. */
static float *logits_block(const kedge_product *p, size_t row, size_t rows, size_t word, size_t words,
                           uint32_t *scratch) {
  float *logits = (float *)(void *)(scratch + KEDGE_A_WORDS + KEDGE_B_WORDS);
  const kedge_target t = {logits, NULL, WORDS, 0};
  kedge__gemm_block(p, row, rows, word, words, &t, false, scratch);
  return logits;
}

/* ---- Loss
 * -------------------------------------------------------------------------------------------------------------
 */

/* What a block of words knows of a row: its largest logit, and the sum of exp relative to it. */
typedef struct partial {
  float max, sum;
} partial;

typedef struct loss_scratch {
  float *label_logit;
  partial *partials; /* [blocks of words][rows of a panel] */
  int32_t *chosen;
  uint32_t *threads;
  uint64_t bytes;
} loss_scratch;

static loss_scratch loss_layout(const kedge_call *call, size_t tokens, size_t vocab) {
  float *at = call->scratch;
  size_t rows = panel_rows(tokens), used = 0;
  const size_t pieces[] = {rows, 2 * rows * kedge__blocks(vocab, WORDS), tokens,
                           KEDGE_GEMM_WORDS * call->threads};
  float *places[4];
  for (size_t i = 0; i < 4; i++) {
    places[i] = at ? at + used : NULL;
    used += kedge__pad(pieces[i]);
  }
  return (loss_scratch){places[0], (partial *)(void *)places[1], (int32_t *)(void *)places[2],
                        (uint32_t *)(void *)places[3], used * sizeof(float)};
}

KEDGE_SCRATCH(head_loss) {
  KEDGE_CALL_ARGS(head_loss);
  return loss_layout(call, a->tokens, a->vocab).bytes;
}

static void loss_block(const kedge_call *call, const loss_scratch *s, const int32_t *chosen, size_t row,
                       size_t rows, size_t block) {
  KEDGE_CALL_ARGS(head_loss);
  size_t first = block * WORDS, n = kedge__min(WORDS, a->vocab - first);
  const kedge_product p = logits_of(call, chosen, a->dim);
  const float *z = logits_block(&p, row, rows, first, n, thread_scratch(s->threads));
  for (size_t r = row; r < row + rows; r++, z += WORDS) {
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
  loss_scratch s = loss_layout(call, a->tokens, a->vocab);
  size_t count = labelled(KEDGE_IN_I(2), a->tokens, s.chosen), blocks = kedge__blocks(a->vocab, WORDS);
  memset(KEDGE_OUT_F(0), 0, a->tokens * sizeof(float));
  memset(KEDGE_OUT_F(1), 0, a->tokens * sizeof(float));
  for (size_t first = 0; first < count; first += PANEL) {
    const size_t rows = kedge__min(PANEL, count - first), row_blocks = kedge__blocks(rows, ROWS);
    const int32_t *chosen = s.chosen + first;
    KEDGE_PARALLEL_FOR
    for (size_t i = 0; i < blocks * row_blocks; i++) {
      const size_t row = i % row_blocks * ROWS;
      loss_block(call, &s, chosen, row, kedge__min(ROWS, rows - row), i / row_blocks);
    }
    KEDGE_PARALLEL_FOR
    for (size_t r = 0; r < rows; r++) loss_row(call, &s, (size_t)chosen[r], r);
  }
}

/* ---- Gradient
 * ---------------------------------------------------------------------------------------------------------
 */

typedef struct grad_scratch {
  float *dpanel;   /* dH of a panel [PANEL, D] */
  kedge_x *logits; /* gradients of logits [PANEL, CHUNK], PITCH apart */
  int32_t *chosen;
  uint32_t *threads;
  uint64_t bytes;
} grad_scratch;

static grad_scratch grad_layout(const kedge_call *call, size_t tokens, size_t dim) {
  size_t rows = panel_rows(tokens), used = 0;
  const size_t pieces[] = {rows * dim, rows * PITCH * sizeof(kedge_x) / sizeof(float), tokens,
                           KEDGE_GEMM_WORDS * call->threads};
  float *places[4];
  for (size_t i = 0; i < 4; i++) {
    places[i] = call->scratch ? (float *)call->scratch + used : NULL;
    used += kedge__pad(pieces[i]);
  }
  return (grad_scratch){places[0], (kedge_x *)(void *)places[1], (int32_t *)(void *)places[2],
                        (uint32_t *)(void *)places[3], used * sizeof(float)};
}

KEDGE_SCRATCH(head_loss_grad) {
  KEDGE_CALL_ARGS(head_loss_grad);
  return grad_layout(call, a->tokens, a->dim).bytes;
}

/* A panel of tokens against one chunk of words. */
typedef struct grad_step {
  const int32_t *chosen;
  size_t rows, word, words; /* word: first of the chunk */
  bool first;               /* first panel: dW starts here */
} grad_step;

static void grad_logits(const kedge_call *call, const grad_scratch *s, const grad_step *step, size_t row,
                        size_t first) {
  KEDGE_CALL_ARGS(head_loss_grad);
  const size_t rows = kedge__min(ROWS, step->rows - row), end = step->word + step->words,
               n = kedge__min(WORDS, end - first);
  const kedge_product p = logits_of(call, step->chosen, a->dim);
  float *z = logits_block(&p, row, rows, first, n, thread_scratch(s->threads));
  for (size_t r = row; r < row + rows; r++, z += WORDS) {
    const size_t t = (size_t)step->chosen[r], label = (size_t)KEDGE_IN_I(2)[t];
    const float lse = KEDGE_IN_F(3)[t], dnll = KEDGE_IN_F(4)[t];
    KEDGE_SIMD
    for (size_t v = 0; v < n; v++) z[v] = dnll * kedge__vexp(z[v] - lse);
    if (label >= first && label < first + n) z[label - first] -= dnll;
    kedge__narrow(s->logits + r * PITCH + (first - step->word), z, n);
  }
}

/* A block of dW, from word `first` of the chunk and column `col`, += logit gradients^T times h. */
static void grad_words(const kedge_call *call, const grad_scratch *s, const grad_step *step, size_t first,
                       size_t col) {
  KEDGE_CALL_ARGS(head_loss_grad);
  const size_t dim = a->dim;
  const kedge_product p = {
      {s->logits, PITCH, NULL, 1}, {KEDGE_IN_X(0), dim, step->chosen, 1}, true, false, step->rows};
  const kedge_target t = {KEDGE_OUT_F(1) + (step->word + first) * dim + col, NULL, dim, 0};
  kedge__gemm_block(&p, first, kedge__min(ROWS, step->words - first), col, kedge__min(COLS, dim - col), &t,
                    !step->first, thread_scratch(s->threads));
}

/* A block of dH += the chunk's logit gradients times its words. */
static void grad_hidden(const kedge_call *call, const grad_scratch *s, const grad_step *step, size_t row,
                        size_t col) {
  KEDGE_CALL_ARGS(head_loss_grad);
  const size_t dim = a->dim;
  const kedge_product p = {{s->logits, PITCH, NULL, 1},
                           {KEDGE_IN_X(1) + step->word * dim, dim, NULL, 1},
                           false,
                           false,
                           step->words};
  const kedge_target t = {s->dpanel + row * dim + col, NULL, dim, 0};
  kedge__gemm_block(&p, row, kedge__min(ROWS, step->rows - row), col, kedge__min(COLS, dim - col), &t,
                    step->word > 0, thread_scratch(s->threads));
}

static void grad_panel(const kedge_call *call, const grad_scratch *s, grad_step step) {
  KEDGE_CALL_ARGS(head_loss_grad);
  const size_t row_blocks = kedge__blocks(step.rows, ROWS), columns = kedge__blocks(a->dim, COLS);
  for (step.word = 0; step.word < a->vocab; step.word += CHUNK) {
    step.words = kedge__min(CHUNK, a->vocab - step.word);
    const size_t blocks = kedge__blocks(step.words, WORDS),
                 word_tasks = kedge__blocks(step.words, ROWS) * columns;
    KEDGE_PARALLEL_FOR
    for (size_t i = 0; i < blocks * row_blocks; i++)
      grad_logits(call, s, &step, i % row_blocks * ROWS, step.word + i / row_blocks * WORDS);
    KEDGE_PARALLEL_FOR
    for (size_t i = 0; i < word_tasks + row_blocks * columns; i++)
      if (i < word_tasks)
        grad_words(call, s, &step, i / columns * ROWS, i % columns * COLS);
      else
        grad_hidden(call, s, &step, (i - word_tasks) / columns * ROWS, (i - word_tasks) % columns * COLS);
  }
  KEDGE_PARALLEL_FOR
  for (size_t r = 0; r < step.rows; r++)
    kedge__narrow(KEDGE_OUT_X(0) + (size_t)step.chosen[r] * a->dim, s->dpanel + r * a->dim, a->dim);
}

KEDGE_KERNEL(head_loss_grad) {
  KEDGE_CALL_ARGS(head_loss_grad);
  grad_scratch s = grad_layout(call, a->tokens, a->dim);
  size_t count = labelled(KEDGE_IN_I(2), a->tokens, s.chosen);
  memset(KEDGE_OUT_X(0), 0, (size_t)a->tokens * a->dim * sizeof(kedge_x));
  if (!count) memset(KEDGE_OUT_F(1), 0, (size_t)a->vocab * a->dim * sizeof(float));
  for (size_t first = 0; first < count; first += PANEL)
    grad_panel(call, &s, (grad_step){s.chosen + first, kedge__min(PANEL, count - first), 0, 0, first == 0});
}
