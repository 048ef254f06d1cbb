/* SPDX-License-Identifier: Apache-2.0
 * Domains of `kedge probe` (probe_inputs.h). */
#include "tools/probe_inputs.h"

#include "models/checkpoint/atomic.h"
#include "tools/inputs.h"
#include "tools/ranks.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Names
 * -------------------------------------------------------------------------------------------------------- */

kedge_status probe_take_rho(const char *text, kedge_community_options *o) {
  o->rho_count = 0;
  for (const char *at = text;; at++) {
    char *end;
    double value = strtod(at, &end);
    if (end == at || (*end && *end != ',') || !(value > 0 && value <= 1) || o->rho_count == KEDGE_RHO_MAX ||
        (o->rho_count && value <= o->rho[o->rho_count - 1]))
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "--rho: expected up to %d ascending numbers above 0 and at most 1, such as "
                        "0.05,0.1, came \"%.80s\"",
                        KEDGE_RHO_MAX, text);
    o->rho[o->rho_count++] = value;
    if (!*end) return KEDGE_OK;
    at = end;
  }
}

const char *probe_split(const char *text, char name[PROBE_NAME]) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  size_t length = strspn(text, plain);
  name[0] = 0;
  if (!length || length >= PROBE_NAME || text[length] != '=') return text;
  memcpy(name, text, length);
  name[length] = 0;
  return text + length + 1;
}

static probe_domain *find(probe_inputs *in, const char *name) {
  for (uint32_t i = 0; i < in->count; i++)
    if (!strcmp(in->domains[i].name, name)) return &in->domains[i];
  return NULL;
}

/* The domain of that name, made if need be; NULL, with the failure recorded, for one too many. */
static probe_domain *domain_of(probe_inputs *in, const char *name, bool named) {
  probe_domain *d = find(in, name);
  if (d) return d;
  if (in->count == PROBE_DOMAINS) {
    kedge_fail(KEDGE_ERR_ARGUMENT, "at most %d domains can be probed at once", PROBE_DOMAINS);
    return NULL;
  }
  d = &in->domains[in->count++];
  snprintf(d->name, sizeof d->name, "%s", name);
  d->named = named;
  return d;
}

/* A file's own name without folder and ending. */
static void stem(const char *path, char name[PROBE_NAME]) {
  const char *base = strrchr(path, '/');
  base = base && base[1] ? base + 1 : path;
  size_t length = strcspn(base, "/");
  const char *dot = memchr(base, '.', length);
  if (dot && dot > base) length = (size_t)(dot - base);
  snprintf(name, PROBE_NAME, "%.*s", (int)length, base);
}

/* ---- Traces
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status read_trace(const probe_settings *s, probe_domain *d, const char *path, const char *domain,
                               bool post) {
  kedge_trace_import_options options = s->import;
  options.domain = domain;
  if (post ? d->has_post : d->has_base)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "domain %s: %s is a second %s trace", d->name, path,
                      post ? "post" : "base");
  KEDGE_TRY(kedge_trace_read(path, &options, post ? &d->post : &d->base));
  *(post ? &d->has_post : &d->has_base) = true;
  return KEDGE_OK;
}

/* Every domain of a raw folder under its own name; NAME= picks one, or names the only one. */
static kedge_status take_folder(const probe_settings *s, probe_inputs *in, const kedge_trace_domains *found,
                                const char *path, const char *name, bool post) {
  for (uint32_t i = 0; i < found->count; i++) {
    bool only = *name && found->count == 1;
    if (*name && !only && strcmp(name, found->names[i])) continue;
    probe_domain *d = domain_of(in, only ? name : found->names[i], true);
    if (!d) return KEDGE_ERR_ARGUMENT;
    KEDGE_TRY(read_trace(s, d, path, found->names[i], post));
    if (*name) return KEDGE_OK;
  }
  if (!*name && found->count) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: no domain \"%s\"", path, name);
}

/* One "[NAME=]PATH". `place`: how many unnamed ones of the same side came before. */
static kedge_status take_trace(const probe_settings *s, probe_inputs *in, const char *text, bool post,
                               uint32_t place, const char *fallback) {
  char name[PROBE_NAME], own[PROBE_NAME];
  const char *path = probe_split(text, name);
  kedge_trace_domains found;
  KEDGE_TRY(kedge_trace_domains_read(path, &found));
  kedge_status status = KEDGE_OK;
  if (found.count) {
    status = take_folder(s, in, &found, path, name, post);
    kedge_trace_domains_destroy(&found);
    return status;
  }
  kedge_trace_domains_destroy(&found);
  probe_domain *d = NULL;
  snprintf(own, sizeof own, "%s", *name ? name : fallback ? fallback : "");
  if (!*own) stem(path, own);
  /* A post trace without a name belongs to the base trace at the same place that has none either. */
  for (uint32_t i = 0, unnamed = 0; post && !*name && i < in->count && !d; i++)
    if (!in->domains[i].named && unnamed++ == place) d = &in->domains[i];
  if (!d) d = domain_of(in, own, *name != 0);
  return d ? read_trace(s, d, path, NULL, post) : KEDGE_ERR_ARGUMENT;
}

static kedge_status take_traces(const probe_settings *s, probe_inputs *in, const cli_list *list, bool post) {
  uint32_t unnamed = 0;
  for (size_t i = 0; i < list->count; i++) {
    char name[PROBE_NAME];
    probe_split(list->items[i], name);
    KEDGE_TRY(take_trace(s, in, list->items[i], post, unnamed, NULL));
    unnamed += !*name;
  }
  return KEDGE_OK;
}

/* ---- Models
 * ------------------------------------------------------------------------------------------------------- */

static bool is_model(const char *path) {
  char *config = path ? kedge_path_join(path, "config.json") : NULL;
  struct stat info;
  bool found = config && !stat(config, &info);
  kedge_free(config);
  return found;
}

/* Data files to their domains; those without a name are one, "data". */
static kedge_status take_files(const probe_settings *s, probe_inputs *in) {
  for (size_t i = 0; i < s->data.count; i++) {
    char name[PROBE_NAME];
    const char *path = probe_split(s->data.items[i], name);
    probe_domain *d = domain_of(in, *name ? name : "data", *name != 0);
    if (!d) return KEDGE_ERR_ARGUMENT;
    d->files[d->file_count++] = path;
  }
  return KEDGE_OK;
}

/* --communities has room for the experts of one domain. Known before anything is routed, which takes long. */
static kedge_status check_domains(const probe_settings *s, const probe_inputs *in) {
  if (!s->one_domain || in->count <= 1) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT,
                    "--communities takes one domain, there are %u; files of one name are one: --data "
                    "all=a.jsonl --data all=b.jsonl",
                    in->count);
}

/* Both tokenizers must give the same ids for the data; that their files differ (another library saved one)
 * does not matter. */
static kedge_status check_tokens(const probe_settings *s, const kedge_tokenizer *ours,
                                 const kedge_tokenizer *other, const probe_domain *d) {
  kedge_dataset *theirs;
  if (!strcmp(kedge_tokenizer_hash(ours), kedge_tokenizer_hash(other))) return KEDGE_OK;
  KEDGE_TRY(tracing_data(&s->tracing, other, d->files, d->file_count, false, &theirs));
  bool same = !strcmp(d->data->hash, theirs->hash);
  kedge_dataset_free(theirs);
  if (!same)
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "the tokenizers of %s and %s give this data other ids: the models would not see the same tokens",
        s->base, s->post);
  tracing_note(NULL, "the two tokenizers differ as files and give the same ids for this data");
  return KEDGE_OK;
}

/* Routes every domain's data through a model. */
static kedge_status trace_side(const probe_settings *s, probe_inputs *in, kedge_device *device,
                               kedge_dtype dtype, const kedge_tokenizer *tokenizer, bool post) {
  kedge_dataset *data[PROBE_DOMAINS];
  kedge_trace traces[PROBE_DOMAINS];
  for (uint32_t i = 0; i < in->count; i++) data[i] = in->domains[i].data;
  KEDGE_TRY(tracing_run(&s->tracing, post ? "post" : "base", post ? s->post : s->base, device, dtype,
                        tokenizer, data, in->count, traces));
  for (uint32_t i = 0; i < in->count; i++) {
    probe_domain *d = &in->domains[i];
    if (post)
      d->post = traces[i], d->has_post = true;
    else
      d->base = traces[i], d->has_base = true;
  }
  return KEDGE_OK;
}

/* What is opened to route data. */
typedef struct opened {
  kedge_tokenizer *tokenizer, *other; /* of the base, of the post-trained model */
  kedge_device *device;
  kedge_dtype dtype;
} opened;

static kedge_status open_models(const probe_settings *s, probe_inputs *in, opened *o) {
  const kedge_open_options open = {.threads = (uint32_t)s->tracing.threads};
  const char *models[2] = {s->base, s->post};
  if (!s->data.count) return kedge_fail(KEDGE_ERR_ARGUMENT, "--data is needed, to route through %s", s->base);
  KEDGE_TRY(tracing_dtype(&s->tracing, models, s->post ? 2 : 1, &o->dtype));
  KEDGE_TRY(kedge_tokenizer_open(s->base, NULL, &o->tokenizer));
  if (s->post) {
    KEDGE_TRY(kedge_tokenizer_open(s->post, NULL, &o->other));
    KEDGE_TRY(kedge_probe_check(s->base, s->post));
  }
  KEDGE_TRY(take_files(s, in));
  KEDGE_TRY(check_domains(s, in));
  for (uint32_t i = 0; i < in->count; i++) {
    probe_domain *d = &in->domains[i];
    KEDGE_TRY(tracing_data(&s->tracing, o->tokenizer, d->files, d->file_count, true, &d->data));
    if (o->other) KEDGE_TRY(check_tokens(s, o->tokenizer, o->other, d));
  }
  return ranks_device(s->comm, s->tracing.backend, &open, &o->device);
}

static kedge_status take_models(const probe_settings *s, probe_inputs *in) {
  opened o = {0};
  kedge_status status = kedge_comm_agree(s->comm, open_models(s, in, &o));
  if (status == KEDGE_OK) status = trace_side(s, in, o.device, o.dtype, o.tokenizer, false);
  if (status == KEDGE_OK && s->post) status = trace_side(s, in, o.device, o.dtype, o.tokenizer, true);
  kedge_device_close(o.device);
  kedge_tokenizer_free(o.tokenizer);
  kedge_tokenizer_free(o.other);
  return status;
}

/* ---- All
 * ----------------------------------------------------------------------------------------------------------
 */

static kedge_status save_one(const char *folder, const char *domain, const char *side, const kedge_trace *t) {
  char *name =
      domain ? kedge_format("%s-%s.safetensors", domain, side) : kedge_format("%s.safetensors", side);
  char *path = name ? kedge_path_join(folder, name) : NULL;
  kedge_status status = path ? kedge_trace_save(t, path) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  kedge_free(name);
  return status;
}

static kedge_status save(const char *folder, const probe_inputs *in) {
  KEDGE_TRY(kedge_folder_make(folder));
  for (uint32_t i = 0; i < in->count; i++) {
    const probe_domain *d = &in->domains[i];
    const char *name = in->count > 1 ? d->name : NULL;
    KEDGE_TRY(save_one(folder, name, "base", &d->base));
    if (d->has_post) KEDGE_TRY(save_one(folder, name, "post", &d->post));
  }
  return KEDGE_OK;
}

/* Every domain must have a base trace, and either all or none a post one. */
static kedge_status check_sides(probe_inputs *in) {
  for (uint32_t i = 0; i < in->count; i++) in->compares = in->compares || in->domains[i].has_post;
  for (uint32_t i = 0; i < in->count; i++) {
    const probe_domain *d = &in->domains[i];
    if (!d->has_base || (in->compares && !d->has_post))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "domain %s: there is no %s trace of it", d->name,
                        d->has_base ? "post" : "base");
  }
  return KEDGE_OK;
}

/* What is given for both sides, and that it fits together. Traces are read by one process. */
static kedge_status take_all(const probe_settings *s, probe_inputs *in) {
  const bool models = is_model(s->base);
  if (!s->base && !s->traces.count)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--base or --trace is needed; see `kedge probe --help`");
  if (models && (s->traces.count || s->post_traces.count))
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "--base %s is a model: its routing is made from --data, and --trace "
                      "has no place beside it",
                      s->base);
  if (models) {
    KEDGE_TRY(take_models(s, in));
  } else {
    const uint32_t ranks = kedge_comm_size(s->comm, KEDGE_RANKS_ALL);
    if (s->data.count && s->base)
      return kedge_fail(KEDGE_ERR_ARGUMENT,
                        "%s: expected a model folder with config.json, to route --data "
                        "through",
                        s->base);
    if (s->data.count)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "--data needs a model to be routed through: --base");
    if (ranks > 1)
      return kedge_fail(
          KEDGE_ERR_ARGUMENT,
          "%u processes were launched, but traces leave nothing to share: ranks route data through "
          "models",
          ranks);
    if (s->base) KEDGE_TRY(take_trace(s, in, s->base, false, 0, "data"));
    KEDGE_TRY(take_traces(s, in, &s->traces, false));
    if (s->post) KEDGE_TRY(take_trace(s, in, s->post, true, 0, "data"));
    KEDGE_TRY(take_traces(s, in, &s->post_traces, true));
  }
  KEDGE_TRY(check_domains(s, in));
  return check_sides(in);
}

kedge_status probe_inputs_read(const probe_settings *s, probe_inputs *in) {
  *in = (probe_inputs){.domains = kedge_alloc(PROBE_DOMAINS, sizeof *in->domains)};
  kedge_status status = in->domains ? take_all(s, in) : KEDGE_ERR_MEMORY;
  KEDGE_TRY(kedge_comm_agree(s->comm, status));
  if (!s->trace_out) return KEDGE_OK;
  return kedge_comm_agree(s->comm, ranks_leads(s->comm) ? save(s->trace_out, in) : KEDGE_OK);
}

void probe_inputs_destroy(probe_inputs *in) {
  for (uint32_t i = 0; i < in->count; i++) {
    probe_domain *d = &in->domains[i];
    kedge_trace_destroy(&d->base);
    kedge_trace_destroy(&d->post);
    kedge_dataset_free(d->data);
  }
  kedge_free(in->domains);
  *in = (probe_inputs){0};
}
