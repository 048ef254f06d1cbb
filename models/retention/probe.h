/* SPDX-License-Identifier: Apache-2.0
 *
 * A probe: what post-training did to a model's routing, over one or several domains, from routing traces
 * (trace.h); or how one model routes them. Over all tokens, and over questions and answers alone; and the
 * communities of experts. The report as JSON is in probe_json.c and probe_json_communities.c, tables of
 * numbers for other programs in probe_csv.c. `kedge probe` is in tools/probe.c.
 */
#ifndef KEDGE_MODELS_ROUTING_PROBE_H
#define KEDGE_MODELS_ROUTING_PROBE_H

#include "models/retention/community_report.h"
#include "models/retention/retention_use.h"
#include "models/retention/selection.h"

/* Which tokens. */
typedef enum kedge_probe_span {
  KEDGE_PROBE_ALL,
  KEDGE_PROBE_QUESTION,
  KEDGE_PROBE_ANSWER,
  KEDGE_PROBE_SPANS
} kedge_probe_span;

typedef struct kedge_probe_domain {
  char *name;
  kedge_use base[KEDGE_PROBE_SPANS];
  kedge_use post[KEDGE_PROBE_SPANS];       /* zero where there is no post-trained model */
  kedge_retention kept[KEDGE_PROBE_SPANS]; /* the same */
  kedge_coactivation *base_pairs;          /* [layers] all tokens; NULL with more than 4096 experts */
  kedge_coactivation *post_pairs;          /* the same; NULL without a post-trained model */
  bool has_communities;
  kedge_community_report communities; /* of all tokens; zero unless has_communities */
  bool has_selection;
  kedge_selection selection; /* answers under each other's experts; zero unless has_selection */
  char data[33];             /* content hash, "" where not known */
} kedge_probe_domain;

typedef struct kedge_probe {
  bool compares; /* there is a post-trained model */
  uint32_t count;
  kedge_probe_domain *domains; /* [count] */
  uint32_t layers, experts, topk;
  int32_t *layer_numbers;                  /* [layers] */
  kedge_retention kept[KEDGE_PROBE_SPANS]; /* means over domains, of each layer and of the means */
  kedge_community_options how;             /* of the communities, where a domain has them */
  uint32_t samples;                        /* of all domains */
  char base[33], post[33], tokenizer[33];  /* content hashes, "" where not known */
} kedge_probe;

/* ERR_MISMATCH, naming both values, unless two model directories have the same family, layers, MoE layers,
 * experts, experts a token and hidden size, and their tokenizers give the same ids. Reads no weights. */
kedge_status kedge_probe_check(const char *base, const char *post);

/* Adds a domain to a probe, which begins as zeros. `post` routes the same tokens, or is NULL in every domain.
 * ERR_MISMATCH where domains differ in layers, experts, top-k or model, and as kedge_retention_compare;
 * ERR_ARGUMENT for a name that is there already. After a failure the probe is as before. */
kedge_status kedge_probe_add(kedge_probe *probe, const char *name, const kedge_trace *base,
                             const kedge_trace *post);
void kedge_probe_destroy(kedge_probe *probe);

/* Adds communities to domain number `domain`, from the same traces and with the options of all domains.
 * Errors as kedge_community_report_make; after a failure the probe is as before. */
kedge_status kedge_probe_add_communities(kedge_probe *probe, uint32_t domain, const kedge_trace *base,
                                         const kedge_trace *post, const kedge_community_options *options);

/* Gives domain number `domain` what kedge_selection_measure() found of its data, which the probe takes over.
 */
void kedge_probe_set_selection(kedge_probe *probe, uint32_t domain, kedge_selection *selection);

/* How alike the communities of two domains of one model are: means over layers of NMI, AMI and ARI of the
 * partitions with the highest modularity, for rho number `r`. Both domains have communities. */
kedge_status kedge_probe_pair_communities(const kedge_probe_domain *a, const kedge_probe_domain *b, bool post,
                                          uint32_t r, kedge_partition_scores *scores);

/* The number of the rho whose communities stand for a model: 0.10, or the only one; ERR_ARGUMENT if there are
 * several and none is 0.10. */
kedge_status kedge_probe_main_rho(const kedge_probe *probe, uint32_t *r);

/* The base's communities of a domain as the file that shuffles of priors read (communities.h). */
kedge_status kedge_probe_save_communities(const kedge_probe *probe, uint32_t domain, const char *path);

/* The report as one JSON object in new memory, owned by the caller. Numbers are finite; what is undefined (a
 * span without tokens) or not known is null. docs/file-formats.md has every key. `layers`: with the lists of
 * layers. */
kedge_status kedge_probe_json(const kedge_probe *probe, bool layers, char **text);

/* Writes matrices into a folder that is made: utilisation-<domain>-base.csv and -post.csv with the share of
 * each expert, a line a layer; coactivation-<domain>-base-L<layer>.csv with the tokens that chose both
 * experts, a line an expert; communities-<domain>-base.csv with the label of each expert, a line a layer and
 * rho. The first line names the columns. ERR_IO. */
kedge_status kedge_probe_csv(const kedge_probe *probe, const char *folder);

/* ---- Between the files
 * ------------------------------------------------------------------------------------------------ */

/* The communities of a domain as a new JSON object (probe_json_communities.c), of two domains as a list;
 * *failed is set where there was no memory. */
struct json_t;
struct json_t *kedge__probe_communities_json(const kedge_probe *probe, const kedge_probe_domain *domain,
                                             bool layers, bool *failed);
struct json_t *kedge__probe_pair_json(const kedge_probe *probe, const kedge_probe_domain *a,
                                      const kedge_probe_domain *b, bool post, bool *failed);

#endif
