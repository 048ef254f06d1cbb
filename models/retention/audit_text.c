/* SPDX-License-Identifier: Apache-2.0
 * The words of an audit's verdicts and warnings (audit.h). */
#include "models/retention/audit.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- Names
 * -------------------------------------------------------------------------------------------------------- */

typedef struct names {
  const char *key, *title;
  const char *words[4]; /* by answer */
} names;

static const names questions[KEDGE_AUDIT_QUESTIONS] = {
    [KEDGE_AUDIT_Q_SHARPNESS] = {"sharpness",
                                 "sharpness as in the paper",
                                 {"cannot tell", "near uniform", "between", "sharp"}},
    [KEDGE_AUDIT_Q_DIAGNOSTIC] = {"community_diagnostic",
                                  "community diagnostic",
                                  {"cannot tell", "not informative", "undecided", "informative"}},
    [KEDGE_AUDIT_Q_ANCHORING] = {"anchoring",
                                 "anchoring by prior (rpb, kl)",
                                 {"cannot tell", "little to hold: routing is near uniform", "undecided",
                                  "makes sense"}},
    [KEDGE_AUDIT_Q_SHUFFLES] = {"within_shuffles",
                                "within-community shuffle controls",
                                {"cannot tell", "not usable", "undecided", "usable"}},
    [KEDGE_AUDIT_Q_BALANCING] = {"load_balancing",
                                 "load balancing",
                                 {"cannot tell", "little to mend", "undecided", "makes sense"}},
    [KEDGE_AUDIT_Q_LOSS_FREE] = {"selection_bias",
                                 "selection bias",
                                 {"not known: a trace does not tell", "absent: loss_free is not possible",
                                  "undecided", "present: loss_free is possible"}}};

const char *kedge_audit_key(kedge_audit_question question) {
  return questions[question].key;
}

const char *kedge_audit_title(kedge_audit_question question) {
  return questions[question].title;
}

const char *kedge_audit_words(kedge_audit_question question, kedge_audit_answer answer) {
  return questions[question].words[answer];
}

/* ---- Verdicts
 * ----------------------------------------------------------------------------------------------------- */

/* The answer's words, and figures in brackets. */
__attribute__((format(printf, 3, 4))) static void say(kedge_audit *a, kedge_audit_question q,
                                                      const char *format, ...) {
  kedge_audit_verdict *v = &a->verdicts[q];
  va_list arguments;
  int used = snprintf(v->text, sizeof v->text, "%s (", kedge_audit_words(q, v->answer));
  va_start(arguments, format);
  used += vsnprintf(v->text + used, sizeof v->text - (size_t)used, format, arguments);
  va_end(arguments);
  if (used < KEDGE_AUDIT_TEXT - 1) v->text[used] = ')', v->text[used + 1] = 0;
}

/* Why nothing at all can be told of a router; NULL if something can. */
static const char *no_choice(const kedge_audit *a) {
  if (!a->figures.cells) return "no token was routed";
  return a->probe.topk == a->probe.experts ? "every token uses every expert" : NULL;
}

static void word_sharpness(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  say(a, KEDGE_AUDIT_Q_SHARPNESS,
      "L1 of layers averaged first %.4f, chance alone %.4f; the paper's near-uniform base has %.4f, its "
      "sharp one %.4f",
      f->l1_averaged, f->l1_averaged_noise, KEDGE_AUDIT_NEAR_UNIFORM, KEDGE_AUDIT_SHARP);
}

static void word_anchoring(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  char bias[48] = "";
  if (isfinite(f->bias_sd)) snprintf(bias, sizeof bias, "; sd of b %.3f, the paper's 0.616", f->bias_sd);
  say(a, KEDGE_AUDIT_Q_ANCHORING,
      "L1 of layers %.4f, chance alone %.4f; of samples' spans %.4f, chance %.4f; %u of %u layers are more "
      "uneven than chance%s",
      f->l1, f->l1_noise, f->l1_span, f->l1_span_noise, f->uniform_tested - f->uniform, f->uniform_tested,
      bias);
}

/* Why communities cannot tell; NULL if they can. */
static const char *no_communities(const kedge_audit *a, char text[KEDGE_AUDIT_TEXT]) {
  const kedge_audit_figures *f = &a->figures;
  if (a->probe.topk < 2) return "one expert a token: none are chosen together";
  if (isnan(f->rho)) return "communities were not looked for";
  if (!(f->degree >= 1))
    snprintf(text, KEDGE_AUDIT_TEXT,
             "at rho %g the graph of %u experts keeps less than an edge an expert; a larger --rho keeps more",
             f->rho, a->probe.experts);
  else if (!isfinite(f->split_nmi - f->floor) || !f->tested)
    snprintf(text, KEDGE_AUDIT_TEXT, "%" PRIu64 " tokens: a graph without an edge, or no null", f->tokens);
  else
    return NULL;
  return text;
}

static void word_diagnostic(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  char text[KEDGE_AUDIT_TEXT];
  const char *why = no_communities(a, text);
  if (!why && 1.0 / (f->nulls + 1.0) > KEDGE_AUDIT_P) why = "fewer than 19 null graphs cannot reach p 0.05";
  if (why)
    say(a, KEDGE_AUDIT_Q_DIAGNOSTIC, "%s", why);
  else
    say(a, KEDGE_AUDIT_Q_DIAGNOSTIC,
        "%u of %u layers beat the null at p <= %.2f, Q margin %+.3f, split-half NMI %.2f against floor "
        "%.2f%s",
        f->beating, f->tested, KEDGE_AUDIT_P, f->q_margin, f->split_nmi, f->floor,
        a->verdicts[KEDGE_AUDIT_Q_DIAGNOSTIC].answer == KEDGE_AUDIT_CANNOT_TELL ? "; too few tokens" : "");
}

static void word_shuffles(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  char text[KEDGE_AUDIT_TEXT];
  const char *why = no_communities(a, text);
  if (!why && !isfinite(f->within_nmi)) why = "no shuffle was tried";
  if (why) {
    say(a, KEDGE_AUDIT_Q_SHUFFLES, "%s", why);
    return;
  }
  const bool unstable =
      f->within_nmi < KEDGE_AUDIT_UNSTABLE || f->split_nmi - f->floor <= KEDGE_AUDIT_UNRESOLVED;
  const char *reason = "";
  if (a->verdicts[KEDGE_AUDIT_Q_SHUFFLES].answer == KEDGE_AUDIT_NO)
    reason =
        unstable ? "communities are unstable: " : "communities are what the use of experts alone gives: ";
  if (a->verdicts[KEDGE_AUDIT_Q_SHUFFLES].answer == KEDGE_AUDIT_CANNOT_TELL) reason = "too few tokens: ";
  say(a, KEDGE_AUDIT_Q_SHUFFLES,
      "%sfound again after a shuffle within them with NMI %.2f; two halves %.2f, floor %.2f; %.1f "
      "communities "
      "of %u experts",
      reason, f->within_nmi, f->split_nmi, f->floor, f->communities, a->probe.experts);
}

static void word_balancing(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  const bool few = a->verdicts[KEDGE_AUDIT_Q_BALANCING].answer == KEDGE_AUDIT_CANNOT_TELL;
  say(a, KEDGE_AUDIT_Q_BALANCING,
      "%" PRIu64 " dead experts in %" PRIu64 " of %u layers; load max/mean %.2f, at most %.2f in layer %d%s",
      f->dead, f->dead_cells, f->cells, f->load, f->load_most, f->load_layer, few ? "; too few tokens" : "");
}

static void word_verdicts(kedge_audit *a) {
  static void (*const words[])(kedge_audit *) = {word_sharpness, word_diagnostic, word_anchoring,
                                                 word_shuffles, word_balancing};
  const char *why = no_choice(a);
  for (int q = 0; q < KEDGE_AUDIT_Q_LOSS_FREE; q++)
    if (why)
      say(a, (kedge_audit_question)q, "%s", why);
    else
      words[q](a);
  kedge_audit_verdict *bias = &a->verdicts[KEDGE_AUDIT_Q_LOSS_FREE];
  snprintf(bias->text, sizeof bias->text, "%s", kedge_audit_words(KEDGE_AUDIT_Q_LOSS_FREE, bias->answer));
}

/* ---- Warnings
 * ----------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void warn(kedge_audit *a, const char *format, ...) {
  va_list arguments;
  if (a->warning_count == KEDGE_AUDIT_WARNINGS) return;
  va_start(arguments, format);
  vsnprintf(a->warnings[a->warning_count++], KEDGE_AUDIT_TEXT, format, arguments);
  va_end(arguments);
}

static void warn_tokens(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  const double E = a->probe.experts, K = a->probe.topk;
  uint32_t skipped = 0;
  for (uint32_t i = 0; i < a->probe.count; i++) skipped += a->probe.domains[i].base[KEDGE_PROBE_ALL].skipped;
  if (skipped) warn(a, "%u layers have no routed token and count nowhere", skipped);
  if (f->cells && K > 1 && f->pairs < KEDGE_AUDIT_COUNT)
    warn(a,
         "few tokens: %" PRIu64 ", of which half choose a pair of experts %.2g times if at random; %.0f or "
         "more are wanted for communities",
         f->tokens, f->pairs, ceil(2 * KEDGE_AUDIT_COUNT * E * (E - 1) / (K * (K - 1))));
}

static void warn_use(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  if (f->tie_share >= KEDGE_AUDIT_TIES)
    warn(a,
         "ties: %" PRIu64 " choices (%.2g %%) hung on equal scores: plain overlap with another run is "
         "uncertain by as much; read the tie-tolerant one",
         f->ties, 100 * f->tie_share);
  if (f->dead)
    warn(a, "dead experts: %" PRIu64 " in %" PRIu64 " of %u layers were chosen by none of these tokens",
         f->dead, f->dead_cells, f->cells);
  if (f->most_chosen >= 0.5 && f->load_most >= 2)
    warn(a, "load: layer %d sends %.0f %% of the tokens through one expert", f->load_layer,
         100 * f->most_chosen);
  if (3 * f->uniform > f->uniform_tested)
    warn(a, "near-uniform routing: %u of %u layers use experts as evenly as chance does", f->uniform,
         f->uniform_tested);
  if (a->verdicts[KEDGE_AUDIT_Q_SHARPNESS].answer == KEDGE_AUDIT_NO &&
      f->l1 - f->l1_noise >= KEDGE_AUDIT_THIRD)
    warn(a,
         "the layer-averaged L1 hides %.2f of the layers' own: it adds experts of different layers that have "
         "nothing but their number in common",
         f->l1 - f->l1_averaged);
}

static void warn_others(kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  if (a->verdicts[KEDGE_AUDIT_Q_SHARPNESS].answer == KEDGE_AUDIT_NO &&
      a->verdicts[KEDGE_AUDIT_Q_DIAGNOSTIC].answer == KEDGE_AUDIT_YES)
    warn(a, "the paper's NMI told its runs on a near-uniform base not apart: 0.49 to 0.50 for all; read NMI "
            "against ceiling and floor");
  if (f->isolated >= KEDGE_AUDIT_ISOLATED)
    warn(a,
         "%.0f %% of the experts have no kept edge at rho %g: each is a community of its own in any "
         "partition, which lifts NMI; read it over active experts",
         100 * f->isolated, f->rho);
  if (f->tested && f->seeds < 2) warn(a, "one detector seed: its noise is not known");
  if (f->clipped_high > KEDGE_AUDIT_CLIPPED_HIGH)
    warn(a, "the clip would hold %.1f %% of the prior's cells at its upper limit; the paper has 1 to 2 %%",
         100 * f->clipped_high);
}

void kedge__audit_word(kedge_audit *a) {
  a->warning_count = 0;
  word_verdicts(a);
  if (no_choice(a)) return;
  warn_tokens(a), warn_use(a), warn_others(a);
}
