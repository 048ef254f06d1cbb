/* SPDX-License-Identifier: Apache-2.0
 *
 * A probe: what post-training did to a model's routing, over one or several domains, from routing traces
 * (trace.h); or how one model routes them. Over all tokens, and over questions and answers alone. The report
 * as JSON is in probe_json.c, tables of numbers for other programs in probe_csv.c. `kedge probe` is in
 * tools/probe.c.
 */
#ifndef KEDGE_MODELS_ROUTING_PROBE_H
#define KEDGE_MODELS_ROUTING_PROBE_H

#include "models/routing/retention_use.h"

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
  char data[33];                           /* content hash, "" where not known */
} kedge_probe_domain;

typedef struct kedge_probe {
  bool compares; /* there is a post-trained model */
  uint32_t count;
  kedge_probe_domain *domains; /* [count] */
  uint32_t layers, experts, topk;
  int32_t *layer_numbers;                  /* [layers] */
  kedge_retention kept[KEDGE_PROBE_SPANS]; /* means over domains, of each layer and of the means */
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

/* The report as one JSON object in new memory, owned by the caller. Numbers are finite; what is undefined (a
 * span without tokens) or not known is null. docs/file-formats.md has every key. `layers`: with the lists of
 * layers. */
kedge_status kedge_probe_json(const kedge_probe *probe, bool layers, char **text);

/* Writes utilisation-<domain>-base.csv, and -post.csv, into a folder that is made: a head "layer,0,1,...",
 * then a line a layer with the share of each expert. ERR_IO. */
kedge_status kedge_probe_csv(const kedge_probe *probe, const char *folder);

#endif
