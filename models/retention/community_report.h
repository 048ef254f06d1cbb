/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything about communities of one routing trace, or of a post-trained model's against its base's
 * (community_report.c, community_layer.c): for each layer and rho the graph, its communities by several
 * detector seeds, the null model, and how far the figures can be trusted. What is compared:
 *
 *   observed NMI   base against post with the same detector seed, over the seeds
 *   seed_nmi       the same graph with two seeds: noise of the detector
 *   split_nmi      two halves of one model's tokens: the ceiling that a perfect retention can reach here
 *   floor          the same two partitions with permuted experts: what NMI gives for nothing
 *   null_nmi       null graphs of post against base
 *   within, global the same graph with its experts permuted, inside each community or all of them, and its
 *                  communities found again: what the detector makes of a shuffle that keeps all or nothing
 *
 * Layers are worked on by child processes; results depend neither on their number nor on the order of
 * samples, and a layer's figures not on which other layers there are.
 */
#ifndef KEDGE_MODELS_ROUTING_COMMUNITY_REPORT_H
#define KEDGE_MODELS_ROUTING_COMMUNITY_REPORT_H

#include "models/retention/communities.h"
#include "models/retention/null_model.h"
#include "models/retention/partition.h"

enum { KEDGE_RHO_MAX = 16 };

typedef struct kedge_community_options {
  uint32_t rho_count;
  double rho[KEDGE_RHO_MAX]; /* each in (0, 1] */
  kedge_detector detector;
  double resolution;     /* gamma */
  uint32_t seeds;        /* detector seeds: seed, seed + 1, ... */
  uint32_t nulls;        /* draws of the null model; 0: none */
  uint32_t shuffles;     /* permutations of the graph for within and global; 0: none */
  uint32_t permutations; /* for the floor; 0: none */
  kedge_split split;
  uint64_t seed;
  uint32_t workers; /* child processes; 0: one a core; 1: none, all in this process */
  /* Called as layers are done and some times a second; false stops with ERR_INTERRUPTED. May be NULL. */
  bool (*progress)(void *context, uint32_t layers_done, uint32_t layers);
  void *context;
} kedge_community_options;

/* rho 0.05, 0.10, 0.15, 0.20; Louvain, resolution 1; 8 seeds from 0; 100 nulls, 100 permutations, 10
 * shuffles; tokens split; one worker a core. */
kedge_community_options kedge_community_defaults(void);

/* Values of several seeds or draws, NaN ones left out; all NaN where none is left. The values' order is
 * lost. */
typedef struct kedge_summary {
  uint64_t count;
  double median, mean, sd, low, high; /* sd with count - 1; 0 for one value */
} kedge_summary;
kedge_summary kedge_summary_of(double *values, uint32_t count);

/* One model's graph of one layer at one rho. */
typedef struct kedge_community_side {
  uint64_t tokens, pair_total, nonzero_pairs;
  uint64_t least_count;             /* the smallest count of a kept edge */
  uint32_t edges;                   /* kept */
  uint32_t isolated;                /* experts without a kept edge: each is a community of its own */
  uint32_t communities, singletons; /* of the labels below, isolated ones included */
  kedge_summary q;                  /* modularity over the seeds */
  kedge_summary seed_nmi;           /* over the pairs of seeds */
  kedge_summary split_nmi;          /* over the seeds */
  kedge_summary floor;              /* its own labels against themselves permuted, over the permutations */
  kedge_summary within, global;     /* over the shuffles */
  kedge_null_result null_q;         /* against the median modularity */
} kedge_community_side;

typedef struct kedge_community_row {
  int32_t layer;   /* its number in the model; -1: mean over layers */
  uint32_t active; /* experts with a kept edge in both graphs; the others are dropped from *_active */
  double rho;
  kedge_community_side base, post;
  /* Post against base; all NaN without a post. */
  double dq;                /* median Q of post - median Q of base */
  kedge_summary nmi;        /* over the seeds, all experts */
  kedge_summary nmi_active; /* the same over experts with a kept edge in both graphs */
  kedge_summary ami, ari;   /* all experts */
  kedge_summary ami_active, ari_active;
  kedge_summary floor;        /* over the permutations */
  kedge_null_result null_nmi; /* null graphs of post against base; margin of the median NMI */
} kedge_community_row;

typedef struct kedge_community_report {
  uint32_t layers, rho_count, experts;
  bool has_post;
  kedge_community_row *rows; /* [layers, rho_count] */
  /* [rho_count] unweighted means over the layers where a value is defined: of medians, means, margins and
   * the rest each; whole numbers are sums. `count` and `draws` are then the number of such layers. */
  kedge_community_row *means;
  uint32_t
      *base_labels; /* [layers, rho_count, experts] of the seed with the highest Q, the first of equals */
  uint32_t *post_labels; /* NULL without a post */
} kedge_community_report;

/* `post` may be NULL; `options` NULL means the defaults. `span` as in kedge_coactivation_count. Errors:
 * ERR_ARGUMENT naming the option; ERR_MISMATCH unless both traces have the same layers, layer numbers,
 * experts and k; ERR_UNSUPPORTED (over 4096 experts); ERR_INTERRUPTED; ERR_MEMORY; ERR_IO when a child
 * process died. The report is the caller's to destroy. */
kedge_status kedge_community_report_make(const kedge_trace *base, const kedge_trace *post, int span,
                                         const kedge_community_options *options,
                                         kedge_community_report *report);
void kedge_community_report_destroy(kedge_community_report *report);

/* ---- Inside this folder: one layer (community_layer.c)
 * --------------------------------------------------- */

typedef struct kedge__community_job {
  const kedge_trace *base, *post;
  int span;
  const kedge_community_options *options;
} kedge__community_job;
/* rows [rho_count]; labels [rho_count, experts] each, post's may be NULL. Between kedge__igraph_begin and
 * end. */
kedge_status kedge__community_layer(const kedge__community_job *job, uint32_t layer,
                                    kedge_community_row *rows, uint32_t *base_labels, uint32_t *post_labels);

#endif
