/* SPDX-License-Identifier: Apache-2.0
 * The tables of `kedge probe` (probe_inputs.h). */
#include "tools/probe_inputs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- What was kept
 * ------------------------------------------------------------------------------------------------ */

static void print_kept_row(int width, const char *name, const kedge_retention_layer *r, uint64_t tokens) {
  if (!tokens) {
    printf("%-*s %9d  no token\n", width, name, 0);
    return;
  }
  char gates[16] = "-";
  if (isfinite(r->gates)) snprintf(gates, sizeof gates, "%.4f", r->gates);
  printf("%-*s %9llu %9.4f %9.4f %9s %9.4f %9.4f %9.4f %6.0f %6.0f %8.2f %8.2f\n", width, name,
         (unsigned long long)tokens, r->overlap, r->top1, gates, r->tvd, r->jsd_nats, r->jsd_bits,
         r->dead_base, r->dead_post, r->load_base, r->load_post);
}

/* Of the first column: the longest domain in its brackets. */
static int kept_width(const kedge_probe *p) {
  size_t width = 10;
  for (uint32_t i = 0; i < p->count && p->count > 1; i++)
    if (strlen(p->domains[i].name) + 2 > width) width = strlen(p->domains[i].name) + 2;
  return (int)width;
}

static void print_kept(const kedge_probe *p) {
  const int width = kept_width(p);
  const kedge_retention *all = &p->kept[KEDGE_PROBE_ALL];
  const kedge_retention_layer *m = &all->mean;
  printf("%-*s %9s %9s %9s %9s %9s %9s %9s %13s %17s\n", width, "", "", "", "", "by gate", "", "JSD", "JSD",
         "dead experts", "load max/mean");
  printf("%-*s %9s %9s %9s %9s %9s %9s %9s %6s %6s %8s %8s\n", width, "layer", "tokens", "overlap", "top-1",
         "overlap", "TVD", "nats", "bits", "base", "post", "base", "post");
  for (uint32_t l = 0; l < all->count; l++) {
    char name[16];
    snprintf(name, sizeof name, "%d", all->layers[l].layer);
    print_kept_row(width, name, &all->layers[l], all->layers[l].tokens);
  }
  print_kept_row(width, "mean", m, all->tokens);
  print_kept_row(width, "question", &p->kept[KEDGE_PROBE_QUESTION].mean,
                 p->kept[KEDGE_PROBE_QUESTION].tokens);
  print_kept_row(width, "answer", &p->kept[KEDGE_PROBE_ANSWER].mean, p->kept[KEDGE_PROBE_ANSWER].tokens);
  for (uint32_t i = 0; i < p->count && p->count > 1; i++) {
    const kedge_retention *r = &p->domains[i].kept[KEDGE_PROBE_ALL];
    char name[PROBE_NAME + 2];
    snprintf(name, sizeof name, "[%s]", p->domains[i].name);
    print_kept_row(width, name, &r->mean, r->tokens);
  }
  printf("\nMeans over layers%s; dead experts are summed.\n", p->count > 1 ? " and domains" : "");
  if (!all->ties_known || !m->ties) return;
  printf("%llu choices hung on equal scores, where the lower expert is taken.", (unsigned long long)m->ties);
  if (isfinite(m->tolerant)) printf(" Overlap where either of equals may stand: %.4f.", m->tolerant);
  printf("\n");
}

/* ---- Use of experts
 * ----------------------------------------------------------------------------------------------- */

static void print_use_row(const char *name, const char *side, const kedge_use *u) {
  if (!u->tokens) {
    printf("%-16.16s %-5s %8d  no token\n", name, side, 0);
    return;
  }
  printf("%-16.16s %-5s %8llu %7u %9.4f %9.4f %9.4f %9.4f %9.4f %8.2f %7.0f\n", name, side,
         (unsigned long long)u->tokens, u->samples, u->mean.effective, u->mean.effective_sample,
         u->effective_layer_mean, u->mean.l1, u->l1_layer_mean, u->mean.load, u->mean.dead);
}

static void print_use(const kedge_probe *p) {
  static const char *const names[KEDGE_PROBE_SPANS] = {"", "  question", "  answer"};
  printf("\n%-16s %-5s %8s %7s %29s %19s %8s %7s\n", "", "", "", "", "effective expert fraction",
         "L1 sharpness", "load", "dead");
  printf("%-16s %-5s %8s %7s %9s %9s %9s %9s %9s %8s %7s\n", "use of experts", "", "tokens", "samples",
         "layers", "samples", "averaged", "layers", "averaged", "max/mean", "experts");
  for (uint32_t i = 0; i < p->count; i++)
    for (int s = 0; s < KEDGE_PROBE_SPANS; s++) {
      const kedge_probe_domain *d = &p->domains[i];
      if (s && !d->base[s].tokens) continue;
      print_use_row(s ? names[s] : d->name, "base", &d->base[s]);
      if (p->compares) print_use_row(s ? names[s] : d->name, "post", &d->post[s]);
    }
  printf("\nlayers: mean of the layers' own; samples: mean over samples and layers; averaged: of the "
         "distribution\naveraged over layers first, in which expert e of all layers is one.\n");
}

/* The layers of one model alone. */
static void print_layers(const kedge_probe_domain *d) {
  const kedge_use *u = &d->base[KEDGE_PROBE_ALL];
  printf("%s\n%-6s %9s %9s %19s %9s %9s %7s\n", d->name, "", "", "entropy", "effective fraction", "L1",
         "load", "dead");
  printf("%-6s %9s %9s %9s %9s %9s %9s %7s\n", "layer", "tokens", "nats", "layer", "samples", "sharpness",
         "max/mean", "experts");
  for (uint32_t l = 0; l < u->layers; l++) {
    const kedge_use_layer *at = &u->at[l];
    if (at->tokens)
      printf("%-6d %9llu %9.4f %9.4f %9.4f %9.4f %9.2f %7.0f\n", at->layer, (unsigned long long)at->tokens,
             at->entropy_nats, at->effective, at->effective_sample, at->l1, at->load, at->dead);
    else
      printf("%-6d %9d  no token\n", at->layer, 0);
  }
  if (u->ties_known && u->mean.ties)
    printf("%llu choices hung on equal scores, where the lower expert is taken.\n",
           (unsigned long long)u->mean.ties);
}

/* ---- Domains against each other
 * ----------------------------------------------------------------------------------- */

static void print_pair(const char *a, const char *b, const char *side, const kedge_use *x,
                       const kedge_use *y) {
  kedge_use_pair m;
  if (kedge_use_compare(x, y, &m) != KEDGE_OK) return;
  char name[2 * PROBE_NAME + 4];
  snprintf(name, sizeof name, "%s, %s", a, b);
  printf("%-24.24s %-5s %8.4f %8.4f %8.4f %9.4f %9.4f %8.4f %9.4f %9.4f\n", name, side, m.tvd, m.jsd_nats,
         m.jsd_bits, m.l1, m.l1_layer_mean, m.cosine, m.cosine_layer_mean, m.cosine_all);
}

static void print_pairs(const kedge_probe *p) {
  if (p->count < 2) return;
  printf("\n%-24s %-5s %8s %8s %8s %19s %28s\n", "", "", "", "JSD", "JSD", "L1 divergence", "cosine");
  printf("%-24s %-5s %8s %8s %8s %9s %9s %8s %9s %9s\n", "domains", "", "TVD", "nats", "bits", "layers",
         "averaged", "layers", "averaged", "[L*E]");
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t j = i + 1; j < p->count; j++) {
      const kedge_probe_domain *a = &p->domains[i], *b = &p->domains[j];
      print_pair(a->name, b->name, "base", &a->base[KEDGE_PROBE_ALL], &b->base[KEDGE_PROBE_ALL]);
      if (p->compares)
        print_pair(a->name, b->name, "post", &a->post[KEDGE_PROBE_ALL], &b->post[KEDGE_PROBE_ALL]);
    }
}

/* ---- Selection
 * --------------------------------------------------------------------------------------------------- */

static void print_selection_cells(const kedge_selection *s, const kedge_selection_numbers *n) {
  printf("  %7.4f %6.4f", n->nll / (double)s->tokens, (double)n->right / (double)s->samples);
}

static void print_selection(const kedge_probe *p) {
  bool any = false;
  int width = 10;
  for (uint32_t i = 0; i < p->count; i++) {
    any |= p->domains[i].has_selection;
    if ((int)strlen(p->domains[i].name) > width) width = (int)strlen(p->domains[i].name);
  }
  if (!any) return;
  printf("\n%-*s  %14s  %14s  %14s  %14s", width, "answers under", "", "", "post on", "base on");
  for (uint32_t r = 0; r < p->topk; r++) printf("  post on base's");
  printf("\n%-*s  %14s  %14s  %14s  %14s", width, "given experts", "base", "post", "base's", "post's");
  for (uint32_t r = 0; r < p->topk; r++) printf("  %12s%2u", "rank", r + 1);
  printf("\n%-*s", width, "");
  for (uint32_t r = 0; r < 4 + p->topk; r++) printf("  %7s %6s", "nll", "acc");
  printf("\n");
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_selection *s = &p->domains[i].selection;
    if (!p->domains[i].has_selection) continue;
    printf("%-*s", width, p->domains[i].name);
    if (!s->tokens) printf("  no answer");
    const kedge_selection_numbers *const numbers[] = {&s->base, &s->post, &s->forced, &s->converse};
    for (int n = 0; s->tokens && n < 4; n++) print_selection_cells(s, numbers[n]);
    for (uint32_t r = 0; s->tokens && r < s->topk; r++) print_selection_cells(s, &s->ranks[r]);
    printf("\n");
  }
  printf("\nnll: nats a token of the answers; acc: answers each of whose tokens is the most likely one. Gate "
         "weights are\nthe running model's own on the experts it is given.\n");
}

/* ---- Communities
 * --------------------------------------------------------------------------------------------------- */

static void print_side(const char *name, const char *side, const kedge_community_row *m,
                       const kedge_community_side *s, double layers) {
  printf("%-16.16s %-5s %5.3g %7.1f %7.1f %7.1f %7.4f %8.4f %8.4f %8.4f %8.4f %8.4f\n", name, side, m->rho,
         s->edges / layers, s->communities / layers, s->isolated / layers, s->q.median, s->null_q.margin,
         s->null_q.rank_p, s->seed_nmi.median, s->split_nmi.median, s->floor.median);
}

static void print_found(const kedge_probe *p) {
  printf("\nCommunities of co-activated experts: %s (%s, modularity, resolution %g), %u seeds from %llu, %u "
         "null "
         "graphs\n",
         kedge_detector_name(p->how.detector), kedge_detector_library(), p->how.resolution, p->how.seeds,
         (unsigned long long)p->how.seed, p->how.nulls);
  printf("%-16s %-5s %5s %7s %7s %7s %7s %17s %8s %8s %8s\n", "", "", "", "", "commu-", "iso-", "",
         "over null", "NMI of", "NMI of", "permuted");
  printf("%-16s %-5s %5s %7s %7s %7s %7s %8s %8s %8s %8s %8s\n", "means of layers", "", "rho", "edges",
         "nities", "lated", "Q", "Q", "p", "seeds", "halves", "labels");
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_probe_domain *d = &p->domains[i];
    for (uint32_t r = 0; d->has_communities && r < d->communities.rho_count; r++) {
      const kedge_community_row *m = &d->communities.means[r];
      print_side(d->name, "base", m, &m->base, d->communities.layers);
      if (p->compares) print_side(d->name, "post", m, &m->post, d->communities.layers);
    }
  }
  printf(
      "\nQ: modularity; p: share of null graphs with a Q at least as high. NMI of seeds: of one graph, the "
      "noise\nof the detector; of halves: of two halves of the tokens, what sampling leaves (the ceiling); "
      "of "
      "permuted\nlabels: what is there for nothing (the floor).\n");
}

static void print_kept_communities(const kedge_probe *p) {
  printf("\n%-16s %5s %7s %15s %7s\n", "", "", "NMI", "over seeds", "active");
  printf("%-16s %5s %7s %7s %7s %7s %7s %7s %7s %7s %8s %8s\n", "communities kept", "rho", "median", "low",
         "high", "NMI", "AMI", "ARI", "ceiling", "floor", "null NMI", "dQ");
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_probe_domain *d = &p->domains[i];
    for (uint32_t r = 0; d->has_communities && r < d->communities.rho_count; r++) {
      const kedge_community_row *m = &d->communities.means[r];
      printf("%-16.16s %5.3g %7.4f %7.4f %7.4f %7.4f %7.4f %7.4f %7.4f %7.4f %8.4f %+8.4f\n", d->name, m->rho,
             m->nmi.median, m->nmi.low, m->nmi.high, m->nmi_active.median, m->ami.median, m->ari.median,
             m->base.split_nmi.median, m->floor.median, m->null_nmi.mean, m->dq);
    }
  }
  printf("\nactive: over experts with an edge in both graphs. ceiling: NMI of two halves of the base's own "
         "tokens.\nfloor: NMI of the two partitions with permuted labels. null NMI: of null graphs of post "
         "against "
         "base.\ndQ: median modularity of post less that of base.\n");
}

static void print_pair_communities(const kedge_probe *p) {
  bool head = false;
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t j = i + 1; j < p->count; j++)
      for (uint32_t r = 0; r < p->how.rho_count; r++)
        for (int post = 0; post <= p->compares; post++) {
          const kedge_probe_domain *a = &p->domains[i], *b = &p->domains[j];
          kedge_partition_scores s;
          char name[2 * PROBE_NAME + 4];
          if (!a->has_communities || !b->has_communities) continue;
          if (kedge_probe_pair_communities(a, b, post, r, &s) != KEDGE_OK) return;
          if (!head) printf("\n%-24s %-5s %5s %7s %7s %7s\n", "domains", "", "rho", "NMI", "AMI", "ARI");
          head = true;
          snprintf(name, sizeof name, "%s, %s", a->name, b->name);
          printf("%-24.24s %-5s %5.3g %7.4f %7.4f %7.4f\n", name, post ? "post" : "base", p->how.rho[r],
                 s.nmi, s.ami, s.ari);
        }
}

void probe_print(const probe_settings *s, const kedge_probe *p) {
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < p->count; i++)
    tokens +=
        p->compares ? p->domains[i].kept[KEDGE_PROBE_ALL].tokens : p->domains[i].base[KEDGE_PROBE_ALL].tokens;
  if (s->base) printf("base %s\n", s->base);
  if (s->post) printf("post %s\n", s->post);
  printf("%llu tokens of %u samples, %u MoE layers, top %u of %u experts\n\n", (unsigned long long)tokens,
         p->samples, p->layers, p->topk, p->experts);
  if (p->compares) print_kept(p);
  for (uint32_t i = 0; i < p->count && !p->compares; i++) {
    if (i) printf("\n");
    print_layers(&p->domains[i]);
  }
  print_use(p);
  print_selection(p);
  print_pairs(p);
  if (!p->count || !p->domains[0].has_communities) return;
  print_found(p);
  if (p->compares) print_kept_communities(p);
  print_pair_communities(p);
}
