/* SPDX-License-Identifier: Apache-2.0
 * What follows from several keys: effective values, and contradictions that must not pass in silence
 * (config_internal.h). Checking a checked configuration changes nothing, so that its print loads to the same.
 */
#include "models/routing/router.h"
#include "models/training/config_internal.h"

#include <math.h>
#include <string.h>

/* ---- Learning rate, evaluation, saving
 * ----------------------------------------------------------------------------- */

static kedge_status check_schedule(kedge_config_loader *loader) {
  kedge_config *config = loader->config;
  bool cosine = config->lr_scheduler_type == KEDGE_CONFIG_SCHEDULE_COSINE ||
                config->lr_scheduler_type == KEDGE_CONFIG_SCHEDULE_COSINE_WITH_MIN_LR;
  bool absolute = !isnan(config->min_learning_rate), relative = !isnan(config->min_lr_ratio);
  if (absolute && relative)
    return kedge__config_conflict(loader, "min_lr_ratio",
                                  "min_learning_rate is given too; one of them is enough");
  if (relative) config->min_learning_rate = config->min_lr_ratio * config->learning_rate;
  config->min_lr_ratio = (double)NAN;
  const char *floor_key = relative ? "min_lr_ratio" : "min_learning_rate";
  if (!absolute && !relative) {
    if (config->lr_scheduler_type == KEDGE_CONFIG_SCHEDULE_COSINE_WITH_MIN_LR)
      return kedge__config_conflict(loader, "lr_scheduler_type",
                                    "cosine_with_min_lr needs min_learning_rate or min_lr_ratio");
    config->min_learning_rate = 0;
  }
  if (!cosine && config->min_learning_rate > 0)
    return kedge__config_conflict(loader, floor_key,
                                  "only a cosine has a lowest learning rate, see lr_scheduler_type");
  if (config->min_learning_rate > config->learning_rate)
    return kedge__config_conflict(loader, floor_key, "over learning_rate");
  if (config->warmup_steps >= 1 && config->warmup_steps != floor(config->warmup_steps))
    return kedge__config_conflict(loader, "warmup_steps",
                                  "expected whole updates, or a part of the run below 1");
  if (config->warmup_steps > 0 && config->warmup_ratio > 0) {
    config->warmup_ratio = 0;
    KEDGE_TRY(kedge__config_note(config, "warmup_ratio is not used: warmup_steps is given"));
  }
  bool warms = config->warmup_steps > 0 || config->warmup_ratio > 0;
  if (config->lr_scheduler_type == KEDGE_CONFIG_SCHEDULE_CONSTANT && warms) {
    config->lr_scheduler_type = KEDGE_CONFIG_SCHEDULE_CONSTANT_WITH_WARMUP;
    KEDGE_TRY(
        kedge__config_note(config, "lr_scheduler_type constant with a warm-up is constant_with_warmup"));
  }
  if (config->max_steps <= 0) config->max_steps = -1;
  return KEDGE_OK;
}

static kedge_status check_evaluation(kedge_config_loader *loader) {
  kedge_config *config = loader->config;
  bool data = config->eval_dataset.count > 0 || config->eval_split > 0;
  if (config->eval_dataset.count && config->eval_split > 0)
    return kedge__config_conflict(loader, "eval_split", "eval_dataset is given too; one of them is enough");
  if (config->eval_split >= 1 && config->eval_split != floor(config->eval_split))
    return kedge__config_conflict(loader, "eval_split", "expected a number of samples, or a part below 1");
  bool chosen = kedge__config_given(loader, "eval_strategy");
  if (!chosen && data)
    config->eval_strategy = !isnan(config->eval_steps) || config->evals_per_epoch
                                ? KEDGE_CONFIG_STRATEGY_STEPS
                                : KEDGE_CONFIG_STRATEGY_EPOCH;
  bool evaluates = config->eval_strategy != KEDGE_CONFIG_STRATEGY_NO;
  if (evaluates && !data)
    return kedge__config_conflict(loader, "eval_strategy",
                                  "no evaluation data: eval_dataset or eval_split is needed");
  if (config->evals_per_epoch && kedge__config_given(loader, "eval_steps") && !isnan(config->eval_steps) &&
      kedge__config_given(loader, "evals_per_epoch") && config->eval_steps > 0)
    return kedge__config_conflict(loader, "evals_per_epoch",
                                  "eval_steps is given too; one of them is enough");
  if (config->evals_per_epoch && config->eval_strategy != KEDGE_CONFIG_STRATEGY_STEPS)
    return kedge__config_conflict(loader, "evals_per_epoch",
                                  "works with eval_strategy steps and evaluation data");
  if (config->evals_per_epoch)
    config->eval_steps = 0;
  else if (isnan(config->eval_steps))
    config->eval_steps = config->eval_strategy == KEDGE_CONFIG_STRATEGY_STEPS ? config->logging_steps : 0;
  if (config->eval_strategy == KEDGE_CONFIG_STRATEGY_STEPS && !config->evals_per_epoch &&
      config->eval_steps <= 0)
    return kedge__config_conflict(loader, "eval_steps",
                                  "evaluation by steps needs a number of updates over 0");
  return KEDGE_OK;
}

static kedge_status check_saving(kedge_config_loader *loader) {
  kedge_config *config = loader->config;
  if (config->saves_per_epoch) {
    if (kedge__config_given(loader, "save_steps") && config->save_steps > 0)
      return kedge__config_conflict(loader, "saves_per_epoch",
                                    "save_steps is given too; one of them is enough");
    if (config->save_strategy != KEDGE_CONFIG_STRATEGY_STEPS)
      return kedge__config_conflict(loader, "saves_per_epoch", "works with save_strategy steps");
    config->save_steps = 0;
  }
  if (config->data_seed == INT64_MIN) config->data_seed = config->seed;
  if (config->assistant_only_loss == KEDGE_CONFIG_CHOICE_TRUE &&
      config->completion_only_loss == KEDGE_CONFIG_CHOICE_FALSE)
    return kedge__config_conflict(
        loader, "assistant_only_loss",
        "the loss cannot be on all tokens too: completion_only_loss or train_on_inputs says so");
  return KEDGE_OK;
}

/* global_batch_size = micro-batch x ranks x accumulation: fills the one of the first and last that was left
 * out. */
static kedge_status check_batch(kedge_config_loader *loader) {
  const int64_t whole = loader->global_batch, wanted = whole / loader->ranks;
  int64_t *micro = &loader->config->per_device_train_batch_size,
          *steps = &loader->config->gradient_accumulation_steps;
  if (whole <= 0) return KEDGE_OK;
  if (whole % loader->ranks) {
    char text[96];
    snprintf(text, sizeof text, "%lld samples cannot be shared by %lld ranks", (long long)whole,
             (long long)loader->ranks);
    return kedge__config_conflict(loader, "global_batch_size", text);
  }
  bool has_micro = kedge__config_given(loader, "per_device_train_batch_size");
  bool has_steps = kedge__config_given(loader, "gradient_accumulation_steps");
  if (has_steps && !has_micro && wanted % *steps == 0 && wanted / *steps <= 65536)
    *micro = wanted / *steps;
  else if (!has_steps && wanted % *micro == 0 && wanted / *micro <= 1048576)
    *steps = wanted / *micro;
  if (*micro * *steps == wanted) return KEDGE_OK;
  char text[160], ranks[48] = "";
  if (loader->ranks > 1) snprintf(ranks, sizeof ranks, " for each of %lld ranks", (long long)loader->ranks);
  snprintf(text, sizeof text,
           has_steps ? "%lld%s is not per_device_train_batch_size %lld x gradient_accumulation_steps %lld"
                     : "%lld%s is no multiple of per_device_train_batch_size %lld",
           (long long)wanted, ranks, (long long)*micro, (long long)*steps);
  return kedge__config_conflict(loader, "global_batch_size", text);
}

/* ---- Router
 * ---------------------------------------------------------------------------------------------------------
 */

/* The values of `intervention` are the rows of routers.def. */
#define KEDGE_SAME(config, row)                                                                              \
  _Static_assert((int)KEDGE_CONFIG_ROUTER_##config == (int)KEDGE_ROUTER_##row, #row)
KEDGE_SAME(NONE, none);
KEDGE_SAME(LBL, lbl);
KEDGE_SAME(Z_LOSS, z_loss);
KEDGE_SAME(FREEZE, freeze);
KEDGE_SAME(RPB, rpb);
KEDGE_SAME(RPB_HARD, rpb_hard);
KEDGE_SAME(REPLAY, replay);
KEDGE_SAME(ROUTER_L2, router_l2);
KEDGE_SAME(KL, kl);
KEDGE_SAME(KL_TOKEN, kl_token);
KEDGE_SAME(LOGIT_L2, logit_l2);
KEDGE_SAME(LOSS_FREE, loss_free);

/* 0: the intervention has no coefficient. */
static double coef_of(int intervention) {
  return kedge_router_coefficient((kedge_router_id)intervention);
}

static bool is_kind(int intervention, kedge_router_kind kind) {
  return kedge_router_get_kind((kedge_router_id)intervention) == kind;
}

bool kedge__router_uses(int intervention, const char *key) {
  return !strcmp(key, "intervention") || !strcmp(key, "layers") ||
         kedge__config_in_list(kedge_router_keys((kedge_router_id)intervention), key);
}

/* Keys outside `router` and the intervention they are for. */
static const struct {
  const char *key;
  int intervention;
} served[] = {{"freeze_moe_router", KEDGE_CONFIG_ROUTER_FREEZE},
              {"router_aux_loss_coef", KEDGE_CONFIG_ROUTER_LBL},
              {"router_z_loss_coef", KEDGE_CONFIG_ROUTER_Z_LOSS},
              {"router_lb_scope", KEDGE_CONFIG_ROUTER_LBL},
              {"lb_convention", KEDGE_CONFIG_ROUTER_LBL},
              {"lb_layers", KEDGE_CONFIG_ROUTER_LBL},
              {"lb_counts", KEDGE_CONFIG_ROUTER_LBL}};

const char *kedge__config_serves(const char *key) {
  for (size_t i = 0; i < sizeof served / sizeof *served; i++)
    if (!strcmp(served[i].key, key))
      return kedge_config_value_name("router.intervention", served[i].intervention);
  return NULL;
}

static kedge_config_router *find_router(kedge_config *config, int intervention) {
  for (size_t i = 0; i < config->router.count; i++)
    if (config->router.items[i].intervention == intervention) return &config->router.items[i];
  return NULL;
}

/* Keys of an entry that names no intervention would have no effect. Naming "none" switches an entry off. */
static kedge_status check_named(kedge_config_loader *loader, size_t index) {
  const uint32_t given = loader->router_given[index];
  for (size_t i = 0; i < kedge__router_key_count; i++)
    if (given >> i & 1 && !strcmp(kedge__router_keys[i].name, "intervention")) return KEDGE_OK;
  for (size_t i = 0; i < kedge__router_key_count; i++) {
    char text[160];
    if (!(given >> i & 1)) continue;
    snprintf(text, sizeof text, "%s is given and no intervention that would use it",
             kedge__router_keys[i].name);
    return kedge__config_conflict(loader, "router", text);
  }
  return KEDGE_OK;
}

/* What only a shuffle reads is taken out, with a note, where there is none. */
static kedge_status drop_shuffle(kedge_config *config, kedge_config_router *router, const char *name) {
  if (!kedge__router_uses(router->intervention, "shuffle")) return KEDGE_OK;
  if (router->communities && router->shuffle != KEDGE_CONFIG_SHUFFLE_WITHIN) {
    kedge_free(router->communities);
    router->communities = NULL;
    KEDGE_TRY(kedge__config_note(config, "router: %s does not use communities, which are for shuffle within",
                                 name));
  }
  if (!router->shuffle_seed || router->shuffle != KEDGE_CONFIG_SHUFFLE_NONE) return KEDGE_OK;
  router->shuffle_seed = 0;
  return kedge__config_note(config, "router: %s does not use shuffle_seed without shuffle", name);
}

/* Effective coefficients, and a note for every key that was given and that its intervention does not read. */
static kedge_status resolve_router(kedge_config_loader *loader, size_t index) {
  kedge_config_router *router = &loader->config->router.items[index];
  const char *name = kedge_config_value_name("router.intervention", router->intervention);
  KEDGE_TRY(check_named(loader, index));
  for (size_t i = 0; i < kedge__router_key_count; i++) {
    const char *key = kedge__router_keys[i].name;
    bool given = loader->router_given[index] >> i & 1;
    if (given && router->intervention != KEDGE_CONFIG_ROUTER_NONE &&
        !kedge__router_uses(router->intervention, key))
      KEDGE_TRY(kedge__config_note(loader->config, "router: %s does not use %s", name, key));
  }
  KEDGE_TRY(drop_shuffle(loader->config, router, name));
  if (isnan(router->coef) || !(coef_of(router->intervention) > 0))
    router->coef = coef_of(router->intervention);
  return KEDGE_OK;
}

static bool coef_given(const kedge_config_loader *loader, size_t index) {
  for (size_t i = 0; i < kedge__router_key_count; i++)
    if (!strcmp(kedge__router_keys[i].name, "coef")) return loader->router_given[index] >> i & 1;
  return false;
}

/* A coefficient key of other tools and the intervention of the same loss must agree; either alone sets the
 * other. */
static kedge_status join_coefficient(kedge_config_loader *loader, const char *key, double *coef,
                                     int intervention) {
  kedge_config_router *router = find_router(loader->config, intervention);
  loader->key = key;
  loader->line = 0;
  bool given = kedge__config_given(loader, key);
  if (router && given && !coef_given(loader, (size_t)(router - loader->config->router.items)))
    router->coef = *coef;
  if (router && given && *coef != router->coef) {
    char text[160];
    snprintf(text, sizeof text, "%g contradicts the router entry %s with coef %g", *coef,
             kedge_config_value_name("router.intervention", intervention), router->coef);
    return kedge__config_conflict(loader, key, text);
  }
  if (router) {
    *coef = router->coef;
    return KEDGE_OK;
  }
  if (!(*coef > 0)) return KEDGE_OK;
  KEDGE_TRY(kedge__config_router_add(loader));
  router = &loader->config->router.items[loader->config->router.count - 1];
  router->intervention = intervention;
  router->coef = *coef;
  return KEDGE_OK;
}

static kedge_status join_freeze(kedge_config_loader *loader) {
  kedge_config *config = loader->config;
  bool listed = find_router(config, KEDGE_CONFIG_ROUTER_FREEZE) != NULL;
  loader->key = "freeze_moe_router";
  loader->line = 0;
  if (listed && !config->freeze_moe_router && kedge__config_given(loader, "freeze_moe_router"))
    return kedge__config_conflict(loader, "freeze_moe_router", "false contradicts the router entry freeze");
  if (config->freeze_moe_router && !listed) {
    KEDGE_TRY(kedge__config_router_add(loader));
    kedge_config_router *router = &config->router.items[config->router.count - 1];
    router->intervention = KEDGE_CONFIG_ROUTER_FREEZE;
    router->coef = 0;
  }
  config->freeze_moe_router = config->freeze_moe_router || listed;
  return KEDGE_OK;
}

/* What may stand together (MATH: one that chooses the experts, any added losses, freeze without added
 * losses). */
static kedge_status check_pairs(kedge_config_loader *loader) {
  kedge_config_routers *routers = &loader->config->router;
  const kedge_config_router *freeze = find_router(loader->config, KEDGE_CONFIG_ROUTER_FREEZE);
  for (size_t i = 0; i < routers->count; i++) {
    int one = routers->items[i].intervention;
    const char *name = kedge_config_value_name("router.intervention", one);
    char text[200];
    for (size_t j = 0; j < i; j++) {
      int other = routers->items[j].intervention;
      if (one != other && !(is_kind(one, KEDGE_ROUTER_SELECTION) && is_kind(other, KEDGE_ROUTER_SELECTION)))
        continue;
      snprintf(text, sizeof text, "%s and %s together: %s",
               kedge_config_value_name("router.intervention", other), name,
               one == other ? "the same twice" : "only one can choose the experts");
      return kedge__config_conflict(loader, "router", text);
    }
    if (freeze && (is_kind(one, KEDGE_ROUTER_LOSS) || one == KEDGE_CONFIG_ROUTER_LOSS_FREE)) {
      snprintf(text, sizeof text, "freeze and %s together: %s", name,
               is_kind(one, KEDGE_ROUTER_LOSS) ? "the gradient of the added loss would go nowhere"
                                               : "a frozen router's bias does not move");
      return kedge__config_conflict(loader, "router", text);
    }
  }
  return KEDGE_OK;
}

/* In transformers output_router_logits adds the loss with the model's own coefficient, which Kedge leaves
 * alone: a file that asks for the loss must say how much of it. */
static kedge_status check_router_logits(kedge_config_loader *loader) {
  static const char *const names[] = {"output_router_logits", "model_config.output_router_logits",
                                      "model_init_kwargs.output_router_logits"};
  if (!loader->router_logits || kedge__config_given(loader, "router_aux_loss_coef") ||
      find_router(loader->config, KEDGE_CONFIG_ROUTER_LBL))
    return KEDGE_OK;
  size_t at = 0;
  while (at < 2 && !kedge__config_given(loader, names[at])) at++;
  return kedge__config_conflict(loader, names[at],
                                "true needs router_aux_loss_coef too; 0 = without the loss");
}

/* Settings of the balance loss go back to their defaults, with a note, in a run without that loss. */
static kedge_status drop_balance(kedge_config *config) {
  const struct {
    const char *key;
    int *value, plain;
  } settings[] = {{"router_lb_scope", &config->router_lb_scope, KEDGE_CONFIG_LB_MICRO},
                  {"lb_convention", &config->lb_convention, KEDGE_CONFIG_LB_SWITCH},
                  {"lb_layers", &config->lb_layers, KEDGE_CONFIG_LB_SUM},
                  {"lb_counts", &config->lb_counts, KEDGE_CONFIG_LB_SCORES}};
  if (find_router(config, KEDGE_CONFIG_ROUTER_LBL)) return KEDGE_OK;
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    if (*settings[i].value == settings[i].plain) continue;
    *settings[i].value = settings[i].plain;
    KEDGE_TRY(kedge__config_note(config, "%s is not used: there is no load-balancing loss", settings[i].key));
  }
  return KEDGE_OK;
}

static kedge_status check_router(kedge_config_loader *loader) {
  kedge_config *config = loader->config;
  for (size_t i = 0; i < config->router.count; i++) KEDGE_TRY(resolve_router(loader, i));
  for (size_t i = config->router.count; i-- > 0;)
    if (config->router.items[i].intervention == KEDGE_CONFIG_ROUTER_NONE)
      kedge__config_router_remove(loader, i);
  KEDGE_TRY(check_router_logits(loader));
  KEDGE_TRY(join_coefficient(loader, "router_aux_loss_coef", &config->router_aux_loss_coef,
                             KEDGE_CONFIG_ROUTER_LBL));
  KEDGE_TRY(join_coefficient(loader, "router_z_loss_coef", &config->router_z_loss_coef,
                             KEDGE_CONFIG_ROUTER_Z_LOSS));
  KEDGE_TRY(join_freeze(loader));
  for (size_t i = config->router.count; i-- > 0;) {
    const kedge_config_router *router = &config->router.items[i];
    if (!(coef_of(router->intervention) > 0) || router->coef > 0) continue;
    KEDGE_TRY(kedge__config_note(config, "router: %s has coef 0 and is left out",
                                 kedge_config_value_name("router.intervention", router->intervention)));
    kedge__config_router_remove(loader, i);
  }
  KEDGE_TRY(drop_balance(config));
  return check_pairs(loader);
}

kedge_status kedge__config_check(kedge_config_loader *loader) {
  KEDGE_TRY(check_batch(loader));
  KEDGE_TRY(check_schedule(loader));
  KEDGE_TRY(check_evaluation(loader));
  KEDGE_TRY(check_saving(loader));
  return check_router(loader);
}
