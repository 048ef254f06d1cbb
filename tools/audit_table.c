/* SPDX-License-Identifier: Apache-2.0
 * The tables of `kedge audit` (audit.h). */
#include "tools/audit.h"

#include <math.h>
#include <stdio.h>

/* " 0.1234" in so many places, or a dash. */
static void cell(int width, int digits, double value) {
  if (isfinite(value))
    printf(" %*.*f", width, digits, value);
  else
    printf(" %*s", width, "-");
}

static void layer_name(int32_t layer) {
  if (layer < 0)
    printf("%-6s", "mean");
  else
    printf("%-6d", layer);
}

/* ---- Use of experts
 * ----------------------------------------------------------------------------------------------- */

static void print_use_row(const kedge_use_layer *use, const kedge_audit_layer *at, bool logits) {
  layer_name(use->layer);
  if (!use->tokens) {
    printf(" %8d  no token\n", 0);
    return;
  }
  printf(" %8llu", (unsigned long long)use->tokens);
  cell(7, 4, use->l1), cell(7, 4, at->l1_noise), cell(7, 4, at->uniform_p), cell(7, 4, at->l1_span);
  cell(6, 3, use->effective), cell(7, 3, use->entropy_nats), cell(6, 2, use->load), cell(5, 0, use->dead);
  cell(6, 2, 100 * at->tie_share);
  if (logits) {
    cell(7, 4, at->top1_mass), cell(7, 4, at->gap), cell(6, 2, 100 * at->clipped_low);
    cell(6, 2, 100 * at->clipped_high), cell(6, 3, at->bias_sd);
  }
  printf("\n");
}

static void print_use(const kedge_audit *a, uint32_t i) {
  const kedge_use *u = &a->probe.domains[i].base[KEDGE_PROBE_ALL];
  const kedge_audit_domain *d = &a->domains[i];
  const bool logits = isfinite(d->mean.top1_mass);
  printf("%-6s %8s %23s %7s %6s %7s %6s %5s %6s", "", "", "L1 of use, layer's own", "L1 of", "effec-", "",
         "load", "dead", "ties");
  printf(logits ? " %15s %13s %6s\n" : "\n", "router scores", "prior clipped", "bias");
  printf("%-6s %8s %7s %7s %7s %7s %6s %7s %6s %5s %6s", "layer", "tokens", "L1", "chance", "p", "spans",
         "tive", "entropy", "max", "", "%");
  printf(logits ? " %7s %7s %6s %6s %6s\n" : "\n", "top-1", "gap", "low %", "high %", "sd b");
  for (uint32_t l = 0; l < u->layers; l++) print_use_row(&u->at[l], &d->at[l], logits);
  print_use_row(&u->mean, &d->mean, logits);
  printf("Layers averaged first, as in the paper: L1");
  cell(0, 4, u->l1_layer_mean);
  printf(", chance");
  cell(0, 4, d->l1_averaged_noise);
  printf(", effective fraction");
  cell(0, 3, u->effective_layer_mean);
  printf(".\n");
}

/* ---- Communities
 * --------------------------------------------------------------------------------------------------- */

static void print_community_row(const kedge_community_row *row, double layers) {
  const kedge_community_side *s = &row->base;
  layer_name(row->layer);
  printf(" %5g %7.1f", row->rho, s->edges / layers);
  cell(7, 4, s->q.median), cell(8, 4, s->null_q.margin), cell(7, 4, s->null_q.rank_p);
  cell(7, 4, s->seed_nmi.median), cell(7, 4, s->split_nmi.median), cell(7, 4, s->floor.median);
  cell(7, 4, s->within.median);
  printf(" %6.1f %6.1f\n", s->communities / layers, s->isolated / layers);
}

static void print_communities(const kedge_probe *p, const kedge_probe_domain *d) {
  const kedge_community_report *c = &d->communities;
  if (!d->has_communities) return;
  printf("\n%-6s %5s %7s %7s %8s %7s %15s %7s %7s %6s %6s\n", "", "", "", "", "margin", "", "NMI of two",
         "permu-", "shuffle", "commu-", "iso-");
  printf("%-6s %5s %7s %7s %8s %7s %7s %7s %7s %7s %6s %6s\n", "layer", "rho", "edges", "Q", "of Q", "p",
         "seeds", "halves", "ted", "within", "nities", "lated");
  const uint32_t judged = kedge__audit_rho(p);
  for (uint32_t l = 0; l < c->layers; l++)
    print_community_row(&c->rows[(size_t)l * c->rho_count + judged], 1);
  for (uint32_t r = 0; r < c->rho_count; r++) print_community_row(&c->means[r], c->layers);
  printf("%s (%s), %u seeds, %u null graphs.\n", kedge_detector_name(p->how.detector),
         kedge_detector_library(), p->how.seeds, p->how.nulls);
}

/* ---- Spans and domains
 * --------------------------------------------------------------------------------------------- */

static void print_pair(const char *a, const char *b, const kedge_use *x, const kedge_use *y) {
  kedge_use_pair m;
  if (kedge_use_compare(x, y, &m) != KEDGE_OK) return;
  printf("%-24.24s %-24.24s", a, b);
  cell(7, 4, m.tvd), cell(8, 4, m.l1), cell(8, 4, m.l1_layer_mean), cell(8, 4, m.cosine);
  cell(8, 4, m.cosine_layer_mean), cell(8, 4, m.cosine_all);
  printf("\n");
}

static void print_pairs(const kedge_probe *p) {
  bool head = false;
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_use *u = p->domains[i].base;
    const bool spans = u[KEDGE_PROBE_QUESTION].tokens && u[KEDGE_PROBE_ANSWER].tokens;
    if (!head && (spans || p->count > 1))
      printf("\n%-49s %7s %17s %26s\n%-49s %7s %8s %8s %8s %8s %8s\n", "", "", "L1 divergence", "cosine",
             "use of experts apart", "TVD", "layers", "averaged", "layers", "averaged", "[L*E]");
    head = true;
    char name[80];
    snprintf(name, sizeof name, "%.14s questions", p->domains[i].name);
    if (spans) print_pair(name, "answers", &u[KEDGE_PROBE_QUESTION], &u[KEDGE_PROBE_ANSWER]);
    for (uint32_t j = i + 1; j < p->count; j++)
      print_pair(p->domains[i].name, p->domains[j].name, &u[KEDGE_PROBE_ALL],
                 &p->domains[j].base[KEDGE_PROBE_ALL]);
  }
}

/* ---- All
 * ---------------------------------------------------------------------------------------------------------
 */

void audit_print(const kedge_audit *a, const char *model) {
  const kedge_probe *p = &a->probe;
  unsigned long long tokens = 0;
  for (uint32_t i = 0; i < p->count; i++) tokens += p->domains[i].base[KEDGE_PROBE_ALL].tokens;
  if (model) printf("model %s\n", model);
  printf("%llu tokens of %u samples, %u MoE layers, top %u of %u experts\n", tokens, p->samples, p->layers,
         p->topk, p->experts);
  for (uint32_t i = 0; i < p->count; i++) {
    printf("\n%s\n", p->domains[i].name);
    print_use(a, i);
    print_communities(p, &p->domains[i]);
  }
  print_pairs(p);
  printf("\n");
  for (int q = 0; q < KEDGE_AUDIT_QUESTIONS; q++)
    printf("%s: %s\n", kedge_audit_title((kedge_audit_question)q), a->verdicts[q].text);
  for (uint32_t i = 0; i < a->warning_count; i++) printf("warning: %s\n", a->warnings[i]);
}
