/* SPDX-License-Identifier: Apache-2.0
 *
 * Communities of a weighted graph: Louvain and Leiden through igraph, modularity, and the file of communities
 * that shuffles of priors read (communities.c, communities_file.c). partition.h compares two partitions.
 *
 *   Q = sum_c [ in_c / m - gamma (deg_c / 2m)^2 ],  m the sum of the weights
 *
 * Weights always count. Labels are canonical: communities are numbered by their smallest member, from 0. A
 * graph without an edge is all singletons, and its modularity is not defined: NaN.
 *
 * igraph is used by one thread at a time (a lock sees to it) and its random numbers are seeded for each call,
 * so that a result depends on the graph, the seed and igraph's version alone.
 */
#ifndef KEDGE_MODELS_ROUTING_COMMUNITIES_H
#define KEDGE_MODELS_ROUTING_COMMUNITIES_H

#include "models/retention/coactivation.h"

typedef enum kedge_detector { KEDGE_LOUVAIN, KEDGE_LEIDEN } kedge_detector;
/* "louvain", "leiden"; false for any other name. */
const char *kedge_detector_name(kedge_detector detector);
bool kedge_detector_parse(const char *name, kedge_detector *detector);
/* "igraph 0.10.2": the library that runs, for outputs. Static string. */
const char *kedge_detector_library(void);

/* Finds communities: labels [nodes]. `modularity` may be NULL. Louvain is igraph's multilevel method, Leiden
 * its modularity form (beta 0.01), repeated until the modularity stands still. ERR_ARGUMENT for a bad
 * resolution (it must be above 0 and finite) or a graph that breaks its rules, the edge named; ERR_MEMORY;
 * ERR_NUMERIC with igraph's reason. */
kedge_status kedge_communities_detect(const kedge_weighted_graph *graph, kedge_detector detector,
                                      double resolution, uint64_t seed, uint32_t *labels, double *modularity);

/* ERR_ARGUMENT naming the edge unless ends are two different nodes and the weight is finite and above 0. */
kedge_status kedge_weighted_graph_check(const kedge_weighted_graph *graph);
/* Q of labels [nodes], which may be any numbers below `nodes`; NaN without an edge. ERR_ARGUMENT naming a
 * label that is too large. */
kedge_status kedge_communities_modularity(const kedge_weighted_graph *graph, double resolution,
                                          const uint32_t *labels, double *modularity);

/* Renumbers labels [count], any numbers, by the smallest member. ERR_MEMORY. */
kedge_status kedge_labels_canonical(uint32_t *labels, uint32_t count);
/* Communities of canonical labels, and how many of them have one member. */
void kedge_labels_count(const uint32_t *labels, uint32_t count, uint32_t *communities, uint32_t *singletons);

/* Communities of every MoE layer. */
typedef struct kedge_communities {
  uint32_t layers, experts;
  uint32_t *labels;       /* [layers, experts] canonical */
  int32_t *layer_numbers; /* [layers] in the model; NULL: not known */
} kedge_communities;

/* JSON: {"layers": [[label of expert 0, ...], ...]}, one list a MoE layer, with "layer_numbers" where they
 * are known and, from save, whatever `about` (borrowed, an object; NULL: nothing) tells of the origin. Other
 * keys are allowed and not read. Written atomically: ERR_IO. */
struct json_t;
kedge_status kedge_communities_save(const kedge_communities *communities, const struct json_t *about,
                                    const char *path);
/* Labels may be any whole numbers from 0 to 2^31 - 1 and are made canonical. ERR_IO; ERR_FORMAT naming file,
 * layer and expert: no layers, none or more than 4096 experts, lists of different lengths. The result is the
 * caller's to destroy. */
kedge_status kedge_communities_load(const char *path, kedge_communities *communities);
void kedge_communities_destroy(kedge_communities *communities);

/* ---- Inside this folder: many detections under one hold of igraph
 * ---------------------------------------- */

void kedge__igraph_begin(void);
void kedge__igraph_end(void);
/* kedge_communities_detect between begin and end, for a graph that was checked or thresholded. */
kedge_status kedge__detect(const kedge_weighted_graph *graph, kedge_detector detector, double resolution,
                           uint64_t seed, uint32_t *labels, double *modularity);

#endif
