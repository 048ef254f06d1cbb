/* SPDX-License-Identifier: Apache-2.0
 * Community detection through igraph, modularity and labels (communities.h). The file of communities is in
 * communities_file.c. */
#include "models/retention/communities.h"

#include <igraph/igraph.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kedge_detector_name(kedge_detector detector) {
  return detector == KEDGE_LEIDEN ? "leiden" : "louvain";
}

bool kedge_detector_parse(const char *name, kedge_detector *detector) {
  for (kedge_detector d = KEDGE_LOUVAIN; d <= KEDGE_LEIDEN; d++)
    if (!strcmp(name, kedge_detector_name(d))) {
      *detector = d;
      return true;
    }
  return false;
}

static char library[48];

static void name_library(void) {
  int major = 0, minor = 0, patch = 0;
  igraph_version(NULL, &major, &minor, &patch);
  snprintf(library, sizeof library, "igraph %d.%d.%d", major, minor, patch);
}

const char *kedge_detector_library(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, name_library);
  return library;
}

/* ---- Graphs and labels
 * ------------------------------------------------------------------------------------------- */

kedge_status kedge_weighted_graph_check(const kedge_weighted_graph *g) {
  for (uint32_t e = 0; e < g->edges; e++) {
    const uint32_t i = g->ends[2 * (size_t)e], j = g->ends[2 * (size_t)e + 1];
    if (i >= g->nodes || j >= g->nodes || i == j)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "edge %u: expected two different nodes below %u, got %u and %u",
                        e, g->nodes, i, j);
    if (!(g->weights[e] > 0 && isfinite(g->weights[e])))
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "edge %u, from %u to %u: expected a finite weight above 0, got %g", e, i, j,
                        g->weights[e]);
  }
  return KEDGE_OK;
}

kedge_status kedge_communities_modularity(const kedge_weighted_graph *g, double resolution,
                                          const uint32_t *labels, double *modularity) {
  for (uint32_t v = 0; v < g->nodes; v++)
    if (labels[v] >= g->nodes)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "label of node %u: expected a number below %u, got %u", v,
                        g->nodes, labels[v]);
  double *degree = kedge_alloc((size_t)g->nodes + 1, sizeof *degree), inside = 0, total = 0, expected = 0;
  if (!degree) return KEDGE_ERR_MEMORY;
  for (uint32_t e = 0; e < g->edges; e++) {
    const uint32_t a = labels[g->ends[2 * (size_t)e]], b = labels[g->ends[2 * (size_t)e + 1]];
    total += g->weights[e];
    degree[a] += g->weights[e], degree[b] += g->weights[e];
    if (a == b) inside += g->weights[e];
  }
  for (uint32_t c = 0; c < g->nodes; c++) {
    const double share = degree[c] / (2 * total);
    expected += share * share;
  }
  *modularity = g->edges ? inside / total - resolution * expected : NAN;
  kedge_free(degree);
  return KEDGE_OK;
}

/* Labels below `count`: numbered by the first node that has them. `number` [count] is 0 everywhere. */
static void renumber(uint32_t *labels, uint32_t count, uint32_t *number) {
  uint32_t next = 0;
  for (uint32_t v = 0; v < count; v++) {
    uint32_t *n = &number[labels[v]];
    if (!*n) *n = ++next;
    labels[v] = *n - 1;
  }
}

static int compare_words(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Any labels to the number of their first node, below `count`: nodes sorted by (label, node). */
static void shrink(uint32_t *labels, uint32_t count, uint64_t *sorted) {
  for (uint32_t v = 0; v < count; v++) sorted[v] = (uint64_t)labels[v] << 32 | v;
  qsort(sorted, count, sizeof *sorted, compare_words);
  uint32_t first = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!i || sorted[i] >> 32 != sorted[i - 1] >> 32) first = (uint32_t)sorted[i];
    labels[(uint32_t)sorted[i]] = first;
  }
}

kedge_status kedge_labels_canonical(uint32_t *labels, uint32_t count) {
  uint32_t largest = 0;
  for (uint32_t v = 0; v < count; v++)
    if (labels[v] > largest) largest = labels[v];
  uint64_t *space = kedge_alloc((size_t)count + 1, sizeof *space);
  if (!space) return KEDGE_ERR_MEMORY;
  if (largest >= count) {
    shrink(labels, count, space);
    memset(space, 0, count * sizeof *space);
  }
  renumber(labels, count, (uint32_t *)space);
  kedge_free(space);
  return KEDGE_OK;
}

void kedge_labels_count(const uint32_t *labels, uint32_t count, uint32_t *communities, uint32_t *singletons) {
  *communities = *singletons = 0;
  /* A community's smallest member is where its label first appears: canonical labels rise by one there. */
  for (uint32_t v = 0; v < count; v++) {
    if (labels[v] < *communities) continue;
    (*communities)++;
    bool alone = true;
    for (uint32_t w = v + 1; w < count && alone; w++) alone = labels[w] != labels[v];
    *singletons += alone;
  }
}

/* ---- igraph
 * ------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t igraph_lock = PTHREAD_MUTEX_INITIALIZER;
static igraph_error_handler_t *error_before;
static igraph_warning_handler_t *warning_before;
static char igraph_reason[160];

/* igraph's own handler aborts the program. */
static void on_error(const char *reason, const char *file, int line, igraph_error_t error) {
  (void)file, (void)line, (void)error;
  snprintf(igraph_reason, sizeof igraph_reason, "%s", reason);
  IGRAPH_FINALLY_FREE();
}

static void on_warning(const char *reason, const char *file, int line) {
  (void)reason, (void)file, (void)line;
}

void kedge__igraph_begin(void) {
  pthread_mutex_lock(&igraph_lock);
  error_before = igraph_set_error_handler(on_error);
  warning_before = igraph_set_warning_handler(on_warning);
  *igraph_reason = 0;
}

void kedge__igraph_end(void) {
  igraph_set_error_handler(error_before);
  igraph_set_warning_handler(warning_before);
  pthread_mutex_unlock(&igraph_lock);
}

static kedge_status failed(igraph_error_t error) {
  if (error == IGRAPH_ENOMEM) return kedge_fail(KEDGE_ERR_MEMORY, "igraph: out of memory");
  return kedge_fail(KEDGE_ERR_NUMERIC, "igraph: %s: %s", igraph_strerror(error), igraph_reason);
}

#define IGRAPH_TRY(call, status, exit_label)                                                                 \
  do {                                                                                                       \
    const igraph_error_t igraph_try_ = (call);                                                               \
    if (igraph_try_ != IGRAPH_SUCCESS) {                                                                     \
      (status) = failed(igraph_try_);                                                                        \
      goto exit_label;                                                                                       \
    }                                                                                                        \
  } while (0)

/* A graph as igraph holds it. Each part is initialised even where a later one fails: `parts` tells how many
 * are. */
typedef struct graph_copy {
  igraph_t graph;
  igraph_vector_t weights, strengths;
  igraph_vector_int_t ends, membership;
  uint32_t parts;
} graph_copy;

static void copy_destroy(graph_copy *c) {
  if (c->parts > 4) igraph_destroy(&c->graph);
  if (c->parts > 3) igraph_vector_int_destroy(&c->membership);
  if (c->parts > 2) igraph_vector_int_destroy(&c->ends);
  if (c->parts > 1) igraph_vector_destroy(&c->strengths);
  if (c->parts > 0) igraph_vector_destroy(&c->weights);
}

static kedge_status copy_init(graph_copy *c, const kedge_weighted_graph *g) {
  kedge_status status = KEDGE_OK;
  c->parts = 0;
  IGRAPH_TRY(igraph_vector_init(&c->weights, (igraph_integer_t)g->edges), status, done);
  c->parts++;
  IGRAPH_TRY(igraph_vector_init(&c->strengths, (igraph_integer_t)g->nodes), status, done);
  c->parts++;
  IGRAPH_TRY(igraph_vector_int_init(&c->ends, 2 * (igraph_integer_t)g->edges), status, done);
  c->parts++;
  IGRAPH_TRY(igraph_vector_int_init(&c->membership, (igraph_integer_t)g->nodes), status, done);
  c->parts++;
  for (uint32_t e = 0; e < g->edges; e++) {
    const uint32_t i = g->ends[2 * (size_t)e], j = g->ends[2 * (size_t)e + 1];
    VECTOR(c->ends)[2 * (size_t)e] = i, VECTOR(c->ends)[2 * (size_t)e + 1] = j;
    VECTOR(c->weights)[e] = g->weights[e];
    VECTOR(c->strengths)[i] += g->weights[e], VECTOR(c->strengths)[j] += g->weights[e];
  }
  IGRAPH_TRY(igraph_create(&c->graph, &c->ends, (igraph_integer_t)g->nodes, IGRAPH_UNDIRECTED), status, done);
  c->parts++;
done:
  if (status != KEDGE_OK) copy_destroy(c);
  return status;
}

static void take_labels(const graph_copy *c, uint32_t nodes, uint32_t *labels) {
  for (uint32_t v = 0; v < nodes; v++) labels[v] = (uint32_t)VECTOR(c->membership)[v];
}

/* Leiden's step is repeated from its own outcome: a further one may still find a better partition. The bound
 * is far above what graphs of experts need. */
static kedge_status run_leiden(graph_copy *c, double resolution) {
  enum { STEPS = 100 };
  kedge_status status = KEDGE_OK;
  double total = 0, best = -INFINITY;
  for (igraph_integer_t e = 0; e < igraph_vector_size(&c->weights); e++) total += VECTOR(c->weights)[e];
  for (int step = 0; step < STEPS; step++) {
    igraph_real_t quality = 0;
    IGRAPH_TRY(igraph_community_leiden(&c->graph, &c->weights, &c->strengths, resolution / (2 * total), 0.01,
                                       step > 0, 1, &c->membership, NULL, &quality),
               status, done);
    if (!(quality > best + 1e-12)) break;
    best = quality;
  }
done:
  return status;
}

static kedge_status run_detector(const kedge_weighted_graph *g, kedge_detector detector, double resolution,
                                 uint32_t *labels) {
  graph_copy c;
  KEDGE_TRY(copy_init(&c, g));
  kedge_status status = KEDGE_OK;
  if (detector == KEDGE_LEIDEN) {
    KEDGE_GOTO(run_leiden(&c, resolution), status, done);
  } else {
    IGRAPH_TRY(igraph_community_multilevel(&c.graph, &c.weights, resolution, &c.membership, NULL, NULL),
               status, done);
  }
  take_labels(&c, g->nodes, labels);
done:
  copy_destroy(&c);
  return status;
}

kedge_status kedge__detect(const kedge_weighted_graph *g, kedge_detector detector, double resolution,
                           uint64_t seed, uint32_t *labels, double *modularity) {
  if (modularity) *modularity = NAN;
  if (!g->edges) {
    for (uint32_t v = 0; v < g->nodes; v++) labels[v] = v;
    return KEDGE_OK;
  }
  /* igraph's own generator is seeded, not replaced: how it takes another one differs between its versions. */
  const igraph_error_t error = igraph_rng_seed(igraph_rng_default(), (igraph_uint_t)seed);
  if (error != IGRAPH_SUCCESS) return failed(error);
  KEDGE_TRY(run_detector(g, detector, resolution, labels));
  KEDGE_TRY(kedge_labels_canonical(labels, g->nodes));
  return modularity ? kedge_communities_modularity(g, resolution, labels, modularity) : KEDGE_OK;
}

kedge_status kedge_communities_detect(const kedge_weighted_graph *g, kedge_detector detector,
                                      double resolution, uint64_t seed, uint32_t *labels,
                                      double *modularity) {
  if (!(resolution > 0 && isfinite(resolution)))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "resolution: expected a finite number above 0, got %g", resolution);
  KEDGE_TRY(kedge_weighted_graph_check(g));
  kedge__igraph_begin();
  const kedge_status status = kedge__detect(g, detector, resolution, seed, labels, modularity);
  kedge__igraph_end();
  return status;
}
