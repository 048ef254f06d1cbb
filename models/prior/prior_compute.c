/* SPDX-License-Identifier: Apache-2.0
 * Makes a prior file: one forward pass of the frozen base over a dataset. partial.h keeps what a stopped run
 * has made. */
#include "models/prior/prior_internal.h"

#include "core/device.h"
#include "models/checkpoint/convert.h"
#include "models/decoder/finite.h"
#include "models/prior/partial.h"
#include "models/training/batches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Seconds between two places where a killed run can go on: a sync may take some hundredths. Samples of counts
 * written at once. */
enum { MARK_SECONDS = 2, PIECE = 4096 };

typedef struct prior_work {
  const kedge_model *model;
  const kedge_dataset *dataset;
  const kedge_prior_options *options;
  uint32_t batch, L, E;
  kedge__prior_header header;
  kedge__partial *file;
  uint64_t places[KEDGE__PRIOR_TENSORS]; /* offset of each tensor in the file */
  float *rows;                           /* [samples of a pass, 2, L, E] */
  uint16_t *half;                        /* the same as f16, or NULL */
  float *logits;                         /* [T,E] of one layer */
  double *sums;                          /* [samples of a pass * 2, E] */
  int32_t *counts;                       /* [samples of a pass * 2] */
  double *softmax;                       /* [E] */
} prior_work;

static void work_destroy(prior_work *w) {
  kedge__partial_close(w->file);
  kedge_free(w->rows);
  kedge_free(w->half);
  kedge_free(w->logits);
  kedge_free(w->sums);
  kedge_free(w->counts);
  kedge_free(w->softmax);
}

static kedge_status work_init(prior_work *w, uint32_t max_tokens) {
  const size_t cells = (size_t)w->batch * 2 * w->L * w->E;
  w->rows = kedge_alloc(cells, sizeof *w->rows);
  w->half = w->options->half ? kedge_alloc(cells, sizeof *w->half) : NULL;
  w->logits = kedge_alloc((size_t)max_tokens * w->E, sizeof *w->logits);
  w->sums = kedge_alloc((size_t)w->batch * 2 * w->E, sizeof *w->sums);
  w->counts = kedge_alloc((size_t)w->batch * 2, sizeof *w->counts);
  w->softmax = kedge_alloc(w->E, sizeof *w->softmax);
  return w->rows && (w->half || !w->options->half) && w->logits && w->sums && w->counts && w->softmax
             ? KEDGE_OK
             : KEDGE_ERR_MEMORY;
}

/* ---- The file
 * ------------------------------------------------------------------------------------------------ */

/* What stands in the file besides the rows. */
static kedge_status write_tables(prior_work *w) {
  const kedge_dataset *d = w->dataset;
  int64_t *ids = kedge_alloc(PIECE, sizeof *ids);
  int32_t(*counts)[2] = kedge_alloc(PIECE, sizeof *counts);
  kedge_status status = ids && counts ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t begin = 0; status == KEDGE_OK && begin < d->count; begin += PIECE) {
    const uint32_t count = d->count - begin < PIECE ? d->count - begin : (uint32_t)PIECE;
    memset(counts, 0, PIECE * sizeof *counts);
    for (uint32_t i = 0; i < count; i++) {
      ids[i] = (int64_t)d->sample_ids[begin + i];
      for (uint64_t t = d->offsets[begin + i]; t < d->offsets[begin + i + 1]; t++)
        counts[i][d->spans[t] != 0]++;
    }
    KEDGE_GOTO(kedge__partial_write(w->file, w->places[KEDGE__PRIOR_IDS] + 8ull * begin, ids, 8ull * count),
               status, done);
    status =
        kedge__partial_write(w->file, w->places[KEDGE__PRIOR_COUNTS] + 8ull * begin, counts, 8ull * count);
  }
  for (uint32_t l = 0; status == KEDGE_OK && l < w->L; l++) {
    const int32_t layer = (int32_t)kedge_params_moe_layer(&w->model->params, l);
    status = kedge__partial_write(w->file, w->places[KEDGE__PRIOR_LAYERS] + 4ull * l, &layer, sizeof layer);
  }
done:
  kedge_free(ids);
  kedge_free(counts);
  return status;
}

/* Where each tensor lies; the bytes of the whole file. */
static uint64_t place_tensors(prior_work *w, uint64_t header_bytes) {
  uint64_t at = header_bytes, bytes = 0;
  for (uint32_t i = 0; i < KEDGE__PRIOR_TENSORS; i++) {
    w->places[i] = at;
    kedge_st_spec_bytes(&w->header.specs[i], &bytes); /* the header was made, so that it has a size */
    at += bytes;
  }
  return at;
}

static void tell_resumed(const prior_work *w, uint64_t done) {
  char line[96];
  if (!w->options->note) return;
  snprintf(line, sizeof line, "resuming at sample %llu of %u", (unsigned long long)done, w->dataset->count);
  w->options->note(w->options->context, line);
}

static kedge_status open_file(prior_work *w, const char *path, kedge__partial_place *place) {
  void *header = NULL;
  char settings[128];
  bool fresh, whole;
  uint64_t header_bytes;
  KEDGE_TRY(kedge_st_header_make(path, w->header.specs, KEDGE__PRIOR_TENSORS, w->header.pairs,
                                 w->header.pair_count, &header, &header_bytes));
  snprintf(settings, sizeof settings, "batch size %u, %s on %.40s", w->batch,
           kedge_dtype_name(w->model->dtype), w->model->device->backend->name);
  const kedge__partial_spec spec = {.path = path,
                                    .header = header,
                                    .header_bytes = header_bytes,
                                    .bytes = place_tensors(w, header_bytes),
                                    .settings = settings,
                                    .restart = w->options->restart};
  kedge_status status = kedge__partial_open(&spec, place, &fresh, &whole, &w->file);
  kedge_free(header);
  KEDGE_TRY(status);
  if (whole) place->done = w->dataset->count;
  if (place->done > w->dataset->count || (place->done < w->dataset->count && place->done % w->batch))
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s.partial: its journal tells of %llu of %u samples: --restart begins anew", path,
                      (unsigned long long)place->done, w->dataset->count);
  if (!fresh) {
    tell_resumed(w, place->done);
    return KEDGE_OK;
  }
  KEDGE_TRY(write_tables(w));
  return kedge__partial_mark(w->file, *place);
}

/* ---- The pass
 * ------------------------------------------------------------------------------------------------ */

/* softmax of z [E] in double. False if it is not finite. */
static bool softmax(const float *z, uint32_t experts, double *p) {
  double most = -INFINITY, sum = 0;
  for (uint32_t e = 0; e < experts; e++) most = fmax(most, (double)z[e]);
  for (uint32_t e = 0; e < experts; e++) sum += p[e] = exp((double)z[e] - most);
  for (uint32_t e = 0; e < experts; e++) p[e] /= sum;
  return isfinite(sum) && isfinite(most);
}

/* One layer's router logits of a pass, into the rows of its samples. */
static kedge_status add_layer(prior_work *w, const kedge_micro_batch *mb, uint32_t layer) {
  memset(w->sums, 0, (size_t)mb->samples * 2 * w->E * sizeof *w->sums);
  for (uint32_t t = 0; t < mb->tokens; t++) {
    if (!softmax(w->logits + (size_t)t * w->E, w->E, w->softmax))
      return kedge_not_finite(w->model, "layer %u: the router logits are not finite",
                              kedge_params_moe_layer(&w->model->params, layer));
    double *sum = w->sums + (size_t)mb->spans_T[t] * w->E;
    for (uint32_t e = 0; e < w->E; e++) sum[e] += w->softmax[e];
  }
  for (uint32_t row = 0; row < 2 * mb->samples; row++) {
    float *out = w->rows + ((size_t)row * w->L + layer) * w->E;
    for (uint32_t e = 0; e < w->E; e++)
      out[e] = w->counts[row] ? (float)(w->sums[(size_t)row * w->E + e] / w->counts[row]) : 0;
  }
  return KEDGE_OK;
}

static kedge_status run_micro(prior_work *w, kedge_passes *passes, const kedge_micro_batch *mb) {
  kedge_pass *pass;
  KEDGE_TRY(kedge_passes_get(passes, mb->size, 0, &pass));
  const kedge_tokens tokens = {.ids = mb->ids_T, .positions = mb->positions_T, .segments = mb->segments_T};
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  memset(w->counts, 0, (size_t)mb->samples * 2 * sizeof *w->counts);
  for (uint32_t t = 0; t < mb->tokens; t++) w->counts[mb->spans_T[t]]++;
  for (uint32_t l = 0; l < w->L; l++) {
    KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.router_TE[l], w->logits, 4ull * mb->size * w->E));
    KEDGE_TRY(add_layer(w, mb, l));
  }
  /* Its samples follow one another in the dataset, and so do their rows in the file. */
  const uint64_t row = 2ull * w->L * w->E, cells = mb->samples * row, first = mb->samples_S[0];
  if (!w->half)
    return kedge__partial_write(w->file, w->places[KEDGE__PRIOR_ROWS] + 4 * first * row, w->rows, 4 * cells);
  KEDGE_TRY(kedge_convert_floats(w->half, KEDGE_ST_F16, w->rows, KEDGE_ST_F32, cells));
  return kedge__partial_write(w->file, w->places[KEDGE__PRIOR_ROWS] + 2 * first * row, w->half, 2 * cells);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static kedge_status run_all(prior_work *w, kedge_batches *batches, kedge_workspace *workspace,
                            kedge__partial_place place, const char *path) {
  const kedge_prior_options *o = w->options;
  const uint32_t N = w->dataset->count;
  kedge_passes passes;
  kedge_decoder_spec spec = {.taps = true};
  kedge_status status;
  uint64_t marked = place.done;
  double marked_at = now();
  kedge_passes_init(&passes, w->model, &spec, workspace, NULL, NULL);
  KEDGE_GOTO(kedge_batches_seek(batches, (place.done + w->batch - 1) / w->batch), status, done);
  for (;;) {
    kedge_update update;
    kedge_micro_batch mb;
    KEDGE_GOTO(kedge_batches_next(batches, &update), status, done);
    if (!update.micro_batches) break;
    KEDGE_GOTO(kedge_batches_micro(batches, 0, &mb), status, done);
    KEDGE_GOTO(run_micro(w, &passes, &mb), status, done);
    place.done += mb.samples;
    place.extra += mb.tokens;
    const bool stop = o->progress && !o->progress(o->context, place.done, N, place.extra);
    if (stop || (o->keep_every ? place.done - marked >= o->keep_every : now() - marked_at >= MARK_SECONDS)) {
      KEDGE_GOTO(kedge__partial_mark(w->file, place), status, done);
      marked = place.done;
      marked_at = now();
    }
    if (stop) {
      status = kedge_fail(KEDGE_ERR_INTERRUPTED,
                          "prior: stopped after %llu of %u samples, which %s.partial keeps: the same command "
                          "goes on from there",
                          (unsigned long long)place.done, N, path);
      goto done;
    }
  }
done:
  kedge_passes_destroy(&passes);
  return status;
}

kedge_status kedge_prior_compute(const kedge_model *model, const kedge_dataset *dataset,
                                 const kedge_prior_identity *identity, const kedge_prior_options *options,
                                 const char *path) {
  static const kedge_prior_options defaults;
  const kedge_prior_options *o = options ? options : &defaults;
  kedge_batches *batches = NULL;
  kedge_workspace *workspace = NULL;
  prior_work w = {.model = model,
                  .dataset = dataset,
                  .options = o,
                  .batch = o->batch_size ? o->batch_size : 8,
                  .L = model->params.moe_layers,
                  .E = model->config.num_experts};
  kedge__partial_place place;
  kedge_status status;
  KEDGE_GOTO(kedge_dataset_check_ids(dataset, model->config.vocab_size), status, done);
  KEDGE_GOTO(kedge_batches_new_eval(dataset, w.batch, &batches), status, done);
  KEDGE_GOTO(kedge_workspace_new(model->device, &workspace), status, done);
  KEDGE_GOTO(work_init(&w, kedge_batches_max_size(batches)), status, done);
  kedge__prior_header_init(&w.header, dataset->count, w.L, w.E, o->half, identity,
                           model->config.num_experts_per_tok, NULL);
  KEDGE_GOTO(open_file(&w, path, &place), status, done);
  KEDGE_GOTO(run_all(&w, batches, workspace, place, path), status, done);
  status = kedge__partial_finish(w.file);
  w.file = NULL;
done:
  work_destroy(&w);
  kedge_workspace_free(workspace);
  kedge_batches_free(batches);
  return status;
}
