/* SPDX-License-Identifier: Apache-2.0
 * Scores of two partitions of the same nodes (partition.h). */
#include "models/retention/partition.h"

#include "models/retention/communities.h"

#include <math.h>
#include <string.h>

/* The table of two canonical partitions, its empty cells left out. */
typedef struct contingency {
  uint32_t nodes, rows, columns, cells;
  uint32_t *row_size, *column_size; /* [rows], [columns] */
  uint32_t *cell, *cell_row, *cell_column;
} contingency;

static uint32_t sizes_of(const uint32_t *labels, uint32_t count, uint32_t *size) {
  uint32_t groups = 0;
  for (uint32_t v = 0; v < count; v++) {
    size[labels[v]]++;
    if (labels[v] >= groups) groups = labels[v] + 1;
  }
  return groups;
}

/* Fills the cells row by row. `space` [3 nodes]: where a row's nodes start, the nodes sorted by row, and the
 * cell of a column in the row at hand (plus one). */
static void fill_cells(contingency *t, const uint32_t *a, const uint32_t *b, uint32_t *space) {
  uint32_t *next = space, *sorted = space + t->nodes, *found = sorted + t->nodes, start = 0;
  for (uint32_t r = 0; r < t->rows; r++) {
    next[r] = start;
    start += t->row_size[r];
  }
  for (uint32_t v = 0; v < t->nodes; v++) sorted[next[a[v]]++] = v;
  for (uint32_t i = 0; i < t->nodes; i++) {
    const uint32_t row = a[sorted[i]], column = b[sorted[i]];
    /* A cell of an earlier row does not count: rows follow one another. */
    if (!found[column] || t->cell_row[found[column] - 1] != row) {
      t->cell_row[t->cells] = row, t->cell_column[t->cells] = column;
      found[column] = ++t->cells;
    }
    t->cell[found[column] - 1]++;
  }
}

/* `memory` holds all of the table and is freed by the caller. a, b: labels [count]. */
static kedge_status contingency_make(contingency *t, uint32_t **memory, const uint32_t *a, const uint32_t *b,
                                     uint32_t count, const uint8_t *use) {
  const size_t n = (size_t)count + 1;
  *t = (contingency){0};
  uint32_t *all = *memory = kedge_alloc(10 * n, sizeof *all);
  if (!all) return KEDGE_ERR_MEMORY;
  uint32_t *own_a = all, *own_b = all + n;
  t->row_size = all + 2 * n, t->column_size = all + 3 * n;
  t->cell = all + 4 * n, t->cell_row = all + 5 * n, t->cell_column = all + 6 * n;
  for (uint32_t v = 0; v < count; v++) {
    if (use && !use[v]) continue;
    own_a[t->nodes] = a[v], own_b[t->nodes] = b[v];
    t->nodes++;
  }
  KEDGE_TRY(kedge_labels_canonical(own_a, t->nodes));
  KEDGE_TRY(kedge_labels_canonical(own_b, t->nodes));
  t->rows = sizes_of(own_a, t->nodes, t->row_size);
  t->columns = sizes_of(own_b, t->nodes, t->column_size);
  fill_cells(t, own_a, own_b, all + 7 * n);
  return KEDGE_OK;
}

static double entropy(const uint32_t *size, uint32_t groups, double n) {
  double sum = 0;
  for (uint32_t g = 0; g < groups; g++) sum -= (double)size[g] / n * log((double)size[g] / n);
  return fmax(sum, 0);
}

static double mutual_information(const contingency *t) {
  const double n = t->nodes;
  double sum = 0;
  for (uint32_t i = 0; i < t->cells; i++) {
    const double both = t->cell[i];
    sum += both / n *
           log(n * both / ((double)t->row_size[t->cell_row[i]] * (double)t->column_size[t->cell_column[i]]));
  }
  return fmax(sum, 0);
}

/* Equal up to the names of the blocks: each block of one is a block of the other. */
static bool is_equal(const contingency *t) {
  return t->cells == t->rows && t->cells == t->columns;
}

static double nmi_of(const contingency *t) {
  if (!t->nodes) return NAN;
  if (is_equal(t)) return 1;
  if (t->rows == 1 || t->columns == 1) return 0;
  const double n = t->nodes;
  const double mean = (entropy(t->row_size, t->rows, n) + entropy(t->column_size, t->columns, n)) / 2;
  return fmin(mutual_information(t) / mean, 1);
}

/* ---- Adjusted for chance
 * ----------------------------------------------------------------------------------------- */

/* How many groups have each size: of[0..sizes) with counts. Few sizes are different, so that the sum below
 * stays small for any number of groups. */
static uint32_t distinct_sizes(const uint32_t *size, uint32_t groups, uint32_t nodes, uint32_t *tally,
                               uint32_t *of, double *count) {
  uint32_t sizes = 0;
  memset(tally, 0, ((size_t)nodes + 1) * sizeof *tally);
  for (uint32_t g = 0; g < groups; g++) tally[size[g]]++;
  for (uint32_t s = 1; s <= nodes; s++)
    if (tally[s]) of[sizes] = s, count[sizes++] = tally[s];
  return sizes;
}

/* Mean of x/n log(n x / (a b)) where x, the common part of two groups of sizes a and b among n nodes, is
 * hypergeometric. fact[k] = log k!. */
static double expected_cell(uint32_t a, uint32_t b, uint32_t n, const double *fact) {
  double sum = 0;
  const double fixed = fact[a] + fact[b] + fact[n - a] + fact[n - b] - fact[n];
  for (uint32_t x = a + b > n ? a + b - n : 1; x <= (a < b ? a : b); x++) {
    const double p = exp(fixed - fact[x] - fact[a - x] - fact[b - x] - fact[n + x - a - b]);
    sum += p * (double)x / (double)n * log((double)n * (double)x / ((double)a * (double)b));
  }
  return sum;
}

static kedge_status expected_information(const contingency *t, double *expected) {
  const size_t n = (size_t)t->nodes + 1;
  double *fact = kedge_alloc(3 * n, sizeof *fact);
  uint32_t *sizes = kedge_alloc(3 * n, sizeof *sizes);
  kedge_status status = fact && sizes ? KEDGE_OK : KEDGE_ERR_MEMORY;
  *expected = 0;
  if (status == KEDGE_OK) {
    double *row_count = fact + n, *column_count = fact + 2 * n;
    uint32_t *row_sizes = sizes + n, *column_sizes = sizes + 2 * n;
    for (uint32_t k = 2; k <= t->nodes; k++) fact[k] = fact[k - 1] + log((double)k);
    const uint32_t rows = distinct_sizes(t->row_size, t->rows, t->nodes, sizes, row_sizes, row_count);
    const uint32_t columns =
        distinct_sizes(t->column_size, t->columns, t->nodes, sizes, column_sizes, column_count);
    for (uint32_t r = 0; r < rows; r++)
      for (uint32_t c = 0; c < columns; c++)
        *expected +=
            row_count[r] * column_count[c] * expected_cell(row_sizes[r], column_sizes[c], t->nodes, fact);
  }
  kedge_free(fact);
  kedge_free(sizes);
  return status;
}

static kedge_status ami_of(const contingency *t, double *ami) {
  *ami = t->nodes ? 1 : NAN;
  if (!t->nodes || is_equal(t)) return KEDGE_OK;
  *ami = 0;
  /* One block, or a block for each node: every partition of these sizes gives the same information. */
  if (t->rows == 1 || t->columns == 1 || t->rows == t->nodes || t->columns == t->nodes) return KEDGE_OK;
  double expected;
  KEDGE_TRY(expected_information(t, &expected));
  const double n = t->nodes, above = mutual_information(t) - expected;
  const double mean = (entropy(t->row_size, t->rows, n) + entropy(t->column_size, t->columns, n)) / 2;
  *ami = fmin(above / (mean - expected), 1);
  return KEDGE_OK;
}

static double pairs_of(double count) {
  return count * (count - 1) / 2;
}

static double ari_of(const contingency *t) {
  if (!t->nodes) return NAN;
  if (is_equal(t)) return 1;
  double both = 0, rows = 0, columns = 0;
  for (uint32_t i = 0; i < t->cells; i++) both += pairs_of(t->cell[i]);
  for (uint32_t r = 0; r < t->rows; r++) rows += pairs_of(t->row_size[r]);
  for (uint32_t c = 0; c < t->columns; c++) columns += pairs_of(t->column_size[c]);
  const double all = pairs_of(t->nodes);
  /* Whole numbers until the end, multiplied out: 2 (both all - rows columns) / ((rows + columns) all - 2 rows
   * columns). The partitions differ, so that the divisor is not 0. */
  return 2 * (both * all - rows * columns) / ((rows + columns) * all - 2 * rows * columns);
}

/* ---- In use
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status check_sizes(uint32_t a, uint32_t b) {
  if (a == b) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH,
                    "partitions: expected the same nodes, got one of %u nodes and one of %u", a, b);
}

kedge_status kedge_partition_compare(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count,
                                     const uint8_t *use, kedge_partition_scores *scores) {
  KEDGE_TRY(check_sizes(a_count, b_count));
  contingency t;
  uint32_t *memory;
  kedge_status status = contingency_make(&t, &memory, a, b, a_count, use);
  if (status == KEDGE_OK) {
    *scores = (kedge_partition_scores){.nodes = t.nodes, .nmi = nmi_of(&t), .ari = ari_of(&t)};
    status = ami_of(&t, &scores->ami);
  }
  kedge_free(memory);
  return status;
}

kedge_status kedge_partition_nmi(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count,
                                 double *nmi) {
  KEDGE_TRY(check_sizes(a_count, b_count));
  contingency t;
  uint32_t *memory;
  kedge_status status = contingency_make(&t, &memory, a, b, a_count, NULL);
  if (status == KEDGE_OK) *nmi = nmi_of(&t);
  kedge_free(memory);
  return status;
}
