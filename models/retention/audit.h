/* SPDX-License-Identifier: Apache-2.0
 *
 * An audit of a base router from its routing traces (trace.h): whether communities of experts say anything
 * about it, which interventions have something to act on, and what to beware of. audit.c measures,
 * audit_judge.c makes verdicts of the figures, audit_text.c words them, audit_json.c writes the report;
 * probe.h compares two models.
 *
 *   noise     = E/(N K) E|Binomial(N, K/E) - N K/E|         L1 of N tokens that choose K experts at random
 *   X^2       = (E - 1)/E sum_e (n_e - N K/E)^2 / (N K/E (1 - K/E))  against chi-squared with E - 1 degrees
 *   excess    = L1 - noise
 *   pairs     = (N/2) K (K - 1) / (E (E - 1))               tokens of a half that choose a pair, if at random
 *   b         = the bias of prior.h, of the mean softmax of a sample's span, with eps 0.05 and clip 5
 */
#ifndef KEDGE_MODELS_ROUTING_AUDIT_H
#define KEDGE_MODELS_ROUTING_AUDIT_H

#include "models/retention/probe.h"

/* Thresholds of the verdicts; docs/mathematics.md says where each comes from. */
#define KEDGE_AUDIT_NEAR_UNIFORM 0.1399 /* L1 sharpness of the paper's near-uniform base, */
#define KEDGE_AUDIT_SHARP        0.5445 /* of its sharp one, */
#define KEDGE_AUDIT_THIRD        0.2748 /* a third, */
#define KEDGE_AUDIT_TWO_THIRDS   0.4096 /* and two thirds of the way from the one to the other */
#define KEDGE_AUDIT_P            0.05   /* of every test */
#define KEDGE_AUDIT_MARGIN       0.066  /* of Q over the null: half the least one of the paper's sharp base */
#define KEDGE_AUDIT_RESOLVED     0.25   /* NMI of halves over the floor: half of what real routing has */
#define KEDGE_AUDIT_UNRESOLVED   0.10
#define KEDGE_AUDIT_STABLE       0.80 /* NMI of communities found again after a shuffle within them */
#define KEDGE_AUDIT_UNSTABLE     0.60
#define KEDGE_AUDIT_COUNT        5.0   /* least count that chance must expect where counts are tested */
#define KEDGE_AUDIT_TIES         0.001 /* share of choices that hung on equal scores */
#define KEDGE_AUDIT_ISOLATED     0.25  /* share of experts without a kept edge */
#define KEDGE_AUDIT_CLIPPED_HIGH                                                                             \
  0.05 /* share of a prior's cells at the upper limit; the paper has 0.01-0.02 */

/* What a layer does beside kedge_use_layer and kedge_community_row, which the probe holds. NaN: undefined or
 * not known. */
typedef struct kedge_audit_layer {
  int32_t layer;        /* its number in the model; -1: unweighted mean over the layers where it is defined */
  double l1_noise;      /* what chance alone gives */
  double uniform_p;     /* of X^2; NaN where chance expects counts below 5 */
  double l1_span;       /* mean of the L1 of a sample's span, over (sample, span), */
  double l1_span_noise; /* and what chance gives those */
  double tie_share;     /* tokens whose choice hung on the rule of ties */
  double most_chosen;   /* share of the tokens that use the most used expert */
  /* From router logits. */
  double top1_mass;                 /* mean of a token's largest softmax probability */
  double gap;                       /* mean of its k-th largest logit - the next one; NaN where k is all */
  double clipped_low, clipped_high; /* share of a prior's cells at a limit of the clip */
  double bias_sd;                   /* sd of b in a (sample, span), mean */
} kedge_audit_layer;

typedef struct kedge_audit_domain {
  kedge_audit_layer *at; /* [layers] */
  kedge_audit_layer mean;
  double l1_averaged_noise; /* of the L1 of the distribution averaged over layers */
} kedge_audit_domain;

/* Over all cells: a domain's layer with tokens. Means are of the cells where a value is defined, NaN where
 * there is none. */
typedef struct kedge_audit_figures {
  uint32_t cells;
  uint64_t tokens; /* least of a cell */
  double l1_averaged,
      l1_averaged_noise; /* of the layer-averaged distribution, the paper's: mean of domains */
  double l1, l1_noise, l1_span, l1_span_noise;
  double excess;                    /* the larger of l1 - l1_noise and l1_span - l1_span_noise */
  uint32_t uniform_tested, uniform; /* cells with uniform_p; with one above KEDGE_AUDIT_P */
  double rho;                       /* whose communities are judged; NaN: none were looked for */
  uint32_t nulls, seeds;
  double pairs, degree;     /* least expected count of a pair in a half; kept edges an expert could have */
  uint32_t tested, beating; /* cells with a rank p; with one of at most KEDGE_AUDIT_P */
  double q, q_margin, seed_nmi, split_nmi, floor, within_nmi;
  double communities, isolated; /* mean number; mean share of the experts */
  uint64_t dead, dead_cells;    /* experts; cells with one */
  double load, load_most;       /* max over mean: mean, most */
  int32_t load_layer;           /* the layer of the most */
  double most_chosen;           /* most */
  uint64_t ties;
  bool ties_known;
  double tie_share, top1_mass, gap, clipped_low, clipped_high, bias_sd;
} kedge_audit_figures;

typedef enum kedge_audit_answer {
  KEDGE_AUDIT_CANNOT_TELL,
  KEDGE_AUDIT_NO,
  KEDGE_AUDIT_UNDECIDED,
  KEDGE_AUDIT_YES
} kedge_audit_answer;

typedef enum kedge_audit_question {
  KEDGE_AUDIT_Q_SHARPNESS,  /* the paper's scope condition */
  KEDGE_AUDIT_Q_DIAGNOSTIC, /* communities tell something */
  KEDGE_AUDIT_Q_ANCHORING,  /* rpb, kl and their like have something to hold */
  KEDGE_AUDIT_Q_SHUFFLES,   /* within-community shuffles are a control */
  KEDGE_AUDIT_Q_BALANCING,  /* lbl, loss_free have something to mend */
  KEDGE_AUDIT_Q_LOSS_FREE,  /* the router has a selection bias to move */
  KEDGE_AUDIT_QUESTIONS
} kedge_audit_question;

enum { KEDGE_AUDIT_TEXT = 320, KEDGE_AUDIT_WARNINGS = 12 };

typedef struct kedge_audit_verdict {
  kedge_audit_answer answer;
  char text[KEDGE_AUDIT_TEXT]; /* the answer in words, with its figures in brackets */
} kedge_audit_verdict;

/* All zero before the first domain. */
typedef struct kedge_audit {
  kedge_probe probe;           /* use of experts and communities, the base's side alone */
  kedge_audit_domain *domains; /* [probe.count] */
  kedge_audit_figures figures;
  kedge_audit_verdict verdicts[KEDGE_AUDIT_QUESTIONS];
  uint32_t warning_count;
  char warnings[KEDGE_AUDIT_WARNINGS][KEDGE_AUDIT_TEXT];
} kedge_audit;

/* Whether the router has a selection bias, where that is known. */
typedef enum kedge_audit_bias {
  KEDGE_AUDIT_BIAS_UNKNOWN,
  KEDGE_AUDIT_BIAS_ABSENT,
  KEDGE_AUDIT_BIAS_PRESENT
} kedge_audit_bias;

/* Adds a domain: measures a trace of the model. Errors as kedge_probe_add. After a failure the audit can only
 * be destroyed. */
kedge_status kedge_audit_add(kedge_audit *audit, const char *name, const kedge_trace *trace);
/* Looks for the communities of domain number `domain`, in the same trace and with the options of all domains;
 * for none among more than 4096 experts. Errors as kedge_community_report_make. */
kedge_status kedge_audit_add_communities(kedge_audit *audit, uint32_t domain, const kedge_trace *trace,
                                         const kedge_community_options *options);
/* Fills figures, verdicts and warnings from all domains. Of several rho, 0.10 is judged, or the first. */
void kedge_audit_judge(kedge_audit *audit, kedge_audit_bias bias);
void kedge_audit_destroy(kedge_audit *audit);

/* "community_diagnostic" and "community diagnostic". Static strings. */
const char *kedge_audit_key(kedge_audit_question question);
const char *kedge_audit_title(kedge_audit_question question);
/* The answer in a few words: "informative". Static string. */
const char *kedge_audit_words(kedge_audit_question question, kedge_audit_answer answer);

/* The report of a judged audit as one JSON object in new memory, owned by the caller: docs/file-formats.md.
 * Numbers are finite, what is undefined or not known is null. ERR_MEMORY. */
kedge_status kedge_audit_json(const kedge_audit *audit, char **text);

/* ---- Between the files
 * ------------------------------------------------------------------------------------------------ */

/* The number of the rho that is judged. */
uint32_t kedge__audit_rho(const kedge_probe *probe);
/* Words the verdicts and the warnings of answers and figures (audit_text.c). */
void kedge__audit_word(kedge_audit *audit);

#endif
