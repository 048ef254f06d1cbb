/* SPDX-License-Identifier: Apache-2.0
 * Makes a prior file: one forward pass of the frozen base over a dataset. partial.h keeps what a stopped run
 * has made. */
#include "models/prior/prior_internal.h"

#include "core/comm.h"
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
  kedge_comm *comm; /* of ranks that share the batches; NULL: one */
  kedge_parcel *to, *from;
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
  kedge_free(w->to);
  kedge_free(w->from);
}

static kedge_status work_init(prior_work *w, uint32_t max_tokens) {
  const size_t cells = (size_t)w->batch * 2 * w->L * w->E;
  w->rows = kedge_alloc(cells, sizeof *w->rows);
  w->half = w->options->half ? kedge_alloc(cells, sizeof *w->half) : NULL;
  w->logits = kedge_alloc((size_t)max_tokens * w->E, sizeof *w->logits);
  w->sums = kedge_alloc((size_t)w->batch * 2 * w->E, sizeof *w->sums);
  w->counts = kedge_alloc((size_t)w->batch * 2, sizeof *w->counts);
  w->softmax = kedge_alloc(w->E, sizeof *w->softmax);
  w->to = kedge_alloc(kedge_comm_size(w->comm, KEDGE_RANKS_ALL), sizeof *w->to);
  w->from = kedge_alloc(kedge_comm_size(w->comm, KEDGE_RANKS_ALL), sizeof *w->from);
  return w->to && w->from && w->rows && (w->half || !w->options->half) && w->logits && w->sums && w->counts &&
                 w->softmax
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
  return KEDGE_OK;
}

/* Writes the rows of a batch. Its samples follow one another in the dataset, and so do their rows in the
 * file. */
static kedge_status write_rows(prior_work *w, uint64_t first, uint64_t samples) {
  const uint64_t row = 2ull * w->L * w->E, cells = samples * row;
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

/* Batch `index` into the rows of this rank; nothing past the end. */
static kedge_status run_batch(prior_work *w, kedge_batches *batches, kedge_passes *passes, uint64_t index) {
  kedge_update update;
  kedge_micro_batch mb;
  if (index >= kedge_batches_updates(batches)) return KEDGE_OK;
  KEDGE_TRY(kedge_batches_seek(batches, index));
  KEDGE_TRY(kedge_batches_next(batches, &update));
  KEDGE_TRY(kedge_batches_micro(batches, 0, &mb));
  return run_micro(w, passes, &mb);
}

/* The rows of a round's batches, one a rank, into the file of rank 0, in the order of the batches. */
static kedge_status keep_round(prior_work *w, uint64_t first, kedge__partial_place *place) {
  const uint32_t ranks = kedge_comm_size(w->comm, KEDGE_RANKS_ALL),
                 own = kedge_comm_rank(w->comm, KEDGE_RANKS_ALL);
  const kedge_dataset *d = w->dataset;
  kedge_status status = KEDGE_OK;
  for (uint32_t rank = 0; rank < ranks && place->done < d->count; rank++) {
    const uint64_t start = (first + rank) * w->batch, left = d->count - start,
                   samples = left < w->batch ? left : w->batch, bytes = samples * 8ull * w->L * w->E;
    if (rank) {
      memset(w->to, 0, ranks * sizeof *w->to);
      memset(w->from, 0, ranks * sizeof *w->from);
      if (own == rank) w->to[0] = (kedge_parcel){w->rows, bytes};
      if (own == 0) w->from[rank] = (kedge_parcel){w->rows, bytes};
      KEDGE_TRY(kedge__comm_exchange(w->comm, KEDGE_RANKS_ALL, w->to, w->from));
    }
    if (own == 0 && status == KEDGE_OK) status = write_rows(w, start, samples);
    place->done += samples;
    place->extra += d->offsets[start + samples] - d->offsets[start];
  }
  return status;
}

/* Tells how far it is, and notes it in the file from time to time; *stop: somebody wants to end. */
static kedge_status mark_round(prior_work *w, kedge__partial_place place, uint64_t *marked, double *marked_at,
                               bool *stop) {
  const kedge_prior_options *o = w->options;
  *stop = o->progress && !o->progress(o->context, place.done, w->dataset->count, place.extra);
  KEDGE_TRY(kedge_comm_any(w->comm, stop));
  if (!w->file) return KEDGE_OK;
  if (!*stop && !(o->keep_every ? place.done - *marked >= o->keep_every : now() - *marked_at >= MARK_SECONDS))
    return KEDGE_OK;
  KEDGE_TRY(kedge__partial_mark(w->file, place));
  *marked = place.done;
  *marked_at = now();
  return KEDGE_OK;
}

/* Rounds of one batch a rank: every batch has the bits that it has with one rank. */
static kedge_status run_all(prior_work *w, kedge_batches *batches, kedge_workspace *workspace,
                            kedge__partial_place place, const char *path) {
  const uint32_t ranks = kedge_comm_size(w->comm, KEDGE_RANKS_ALL),
                 own = kedge_comm_rank(w->comm, KEDGE_RANKS_ALL);
  kedge_passes passes;
  const kedge_decoder_spec spec = {.taps = true};
  kedge_status status = KEDGE_OK;
  uint64_t marked = place.done;
  double marked_at = now();
  kedge_passes_init(&passes, w->model, &spec, workspace, NULL, NULL);
  for (uint64_t first = (place.done + w->batch - 1) / w->batch; place.done < w->dataset->count;
       first += ranks) {
    bool stop;
    KEDGE_GOTO(kedge_comm_agree(w->comm, run_batch(w, batches, &passes, first + own)), status, done);
    KEDGE_GOTO(kedge_comm_agree(w->comm, keep_round(w, first, &place)), status, done);
    KEDGE_GOTO(kedge_comm_agree(w->comm, mark_round(w, place, &marked, &marked_at, &stop)), status, done);
    if (!stop) continue;
    status = kedge_comm_agree(
        w->comm,
        kedge_fail(KEDGE_ERR_INTERRUPTED,
                   "prior: stopped after %llu of %u samples, which %s.partial keeps: the same command "
                   "goes on from there",
                   (unsigned long long)place.done, w->dataset->count, path));
    goto done;
  }
done:
  kedge_passes_destroy(&passes);
  return status;
}

/* The file is rank 0's. */
static kedge_status start_file(prior_work *w, const char *path, kedge__partial_place *place) {
  const bool leads = kedge_comm_rank(w->comm, KEDGE_RANKS_ALL) == 0;
  *place = (kedge__partial_place){0};
  KEDGE_TRY(kedge_comm_agree(w->comm, leads ? open_file(w, path, place) : KEDGE_OK));
  return kedge_comm_broadcast(w->comm, 0, place, sizeof *place);
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
                  .comm = kedge_device_comm(model->device),
                  .batch = o->batch_size ? o->batch_size : 8,
                  .L = model->params.moe_layers,
                  .E = model->config.num_experts};
  kedge__partial_place place;
  kedge_status status;
  status = kedge_dataset_check_ids(dataset, model->config.vocab_size);
  if (status == KEDGE_OK) status = kedge_batches_new_eval(dataset, w.batch, &batches);
  if (status == KEDGE_OK) status = kedge_workspace_new(model->device, &workspace);
  if (status == KEDGE_OK) status = work_init(&w, kedge_batches_max_size(batches));
  KEDGE_GOTO(kedge_comm_agree(w.comm, status), status, done);
  kedge__prior_header_init(&w.header, dataset->count, w.L, w.E, o->half, identity,
                           model->config.num_experts_per_tok, NULL);
  KEDGE_GOTO(start_file(&w, path, &place), status, done);
  KEDGE_GOTO(run_all(&w, batches, workspace, place, path), status, done);
  if (w.file) status = kedge__partial_finish(w.file);
  w.file = NULL;
  status = kedge_comm_agree(w.comm, status);
done:
  work_destroy(&w);
  kedge_workspace_free(workspace);
  kedge_batches_free(batches);
  return status;
}
