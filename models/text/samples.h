/* SPDX-License-Identifier: Apache-2.0
 *
 * A dataset: tokenized samples with their question/answer spans in flat arrays. Built from data files
 * (samples_read.c) or from ids (samples.c); batches are made of it in models/training/batches.h.
 */
#ifndef KEDGE_MODELS_TEXT_SAMPLES_H
#define KEDGE_MODELS_TEXT_SAMPLES_H

#include "models/text/jsonl.h"
#include "models/text/template.h"
#include "models/text/tokenizer.h"

/* What was counted while reading. */
typedef struct kedge_dataset_stats {
  uint64_t records;    /* samples found, kept or excluded; their stable ids are 0..records-1 */
  uint64_t excluded;   /* of these, samples left out because no token of theirs is supervised */
  uint64_t truncated;  /* samples cut at max_length, excluded ones included */
  uint64_t skipped;    /* bad lines passed over */
  uint64_t supervised; /* tokens that are targets of the loss, in kept samples */
  uint64_t answer;     /* tokens of answer spans, in kept samples */
  uint64_t longest;    /* tokens of the longest kept sample */
} kedge_dataset_stats;

/* Immutable once made. Sample i is tokens [offsets[i], offsets[i+1]) of the token arrays. */
typedef struct kedge_dataset {
  uint32_t count;       /* samples kept */
  uint64_t *offsets;    /* [count+1] */
  int32_t *ids;         /* [tokens] */
  int8_t *spans;        /* [tokens] KEDGE_SPAN_Q or KEDGE_SPAN_A */
  uint8_t *trained;     /* [tokens] 1 where the token is a target of the loss; never the first of a sample */
  uint64_t *sample_ids; /* [count] place among all samples of the source, excluded ones counted */
  uint64_t *lines;      /* [count] line of the record in its file */
  uint32_t *files;      /* [count] index into file_names */
  char **file_names;
  uint32_t file_count;
  kedge_dataset_stats stats;
  char hash[33]; /* hex digits over ids, spans and order of the samples: what a prior of this dataset depends
                    on */
} kedge_dataset;

typedef struct kedge_dataset_options {
  const kedge_tokenizer *tokenizer;
  uint32_t max_length;  /* tokens; what is over is cut off at the right. 0: no limit */
  bool loss_on_all;     /* every token is a target (completion_only_loss: false); spans stay as they are */
  bool messages_on_all; /* of conversations every turn is a target (assistant_only_loss: false) */
  bool skip_bad_lines;  /* count bad lines and go on */
  int32_t
      eos; /* closes text and completions, -1: the tokenizer's (generation_config.json may name another) */
  const char *prompt_template; /* text with "{prompt}"; NULL: the bare prompt */
  const char *chat_template;   /* name for kedge_chat_template_choose() */
  kedge_notice notice;         /* notes and warnings; may be NULL */
  /* Called every few thousand samples; false stops with ERR_INTERRUPTED. May be NULL. total is 0 where
   * unknown. */
  bool (*progress)(void *context, const char *file, uint64_t bytes, uint64_t total, uint64_t samples);
  void *context; /* of notice and progress */
} kedge_dataset_options;

/* Reads and tokenizes files, in order. formats[i] names the fields of file i: "text", "prompt_completion",
 * "messages", "alpaca", "sharegpt", "query_response", "question_answer"; NULL or "auto" (as `formats` itself
 * may be): from the fields of its first readable record. A sample without a supervised token is left out with
 * a warning. Errors: those of kedge_jsonl; ERR_FORMAT "file:line: ..." for fields that are missing or of a
 * wrong type; ERR_FORMAT if no sample is left; ERR_ARGUMENT for bad options; ERR_UNSUPPORTED for turns
 * without a chat template. Owned by the caller. */
kedge_status kedge_dataset_read(const char *const *paths, const char *const *formats, size_t count,
                                const kedge_dataset_options *options, kedge_dataset **dataset);
/* The same for one file in memory; `name` stands for it in messages. */
kedge_status kedge_dataset_read_memory(const char *name, const void *bytes, size_t length, const char *format,
                                       const kedge_dataset_options *options, kedge_dataset **dataset);
void kedge_dataset_free(kedge_dataset *dataset);

/* Ids of a prompt exactly as they open a training sample: BOS if the tokenizer adds it, then the prompt in
 * its template. Uses tokenizer and prompt_template of the options. *ids is new memory, owned by the caller.
 */
kedge_status kedge_dataset_encode_prompt(const kedge_dataset_options *options, const char *prompt,
                                         size_t length, int32_t **ids, size_t *count);
/* The same for anything rendered, such as chat turns and the header of the answer to generate (template.h).
 */
kedge_status kedge_dataset_encode(const kedge_dataset_options *options, const kedge_rendering *rendering,
                                  int32_t **ids, size_t *count);

/* Building from ids. add() cuts at max_length; a sample without a supervised token is counted and left out:
 * *kept tells. A first token is never a target (nothing predicts it). finish() computes the hash and hands
 * over the dataset; ERR_FORMAT if it is empty. The builder is the caller's and is freed separately. */
typedef struct kedge_dataset_builder kedge_dataset_builder;
kedge_status kedge_dataset_builder_new(uint32_t max_length, kedge_dataset_builder **builder);
void kedge_dataset_builder_free(kedge_dataset_builder *builder);
/* Opens a source file: later samples come from it. */
kedge_status kedge_dataset_builder_file(kedge_dataset_builder *builder, const char *name);
/* ids, spans, trained [count]; `line` is the sample's line in the source file. */
kedge_status kedge_dataset_builder_add(kedge_dataset_builder *builder, const int32_t *ids,
                                       const int8_t *spans, const uint8_t *trained, size_t count,
                                       uint64_t line, bool *kept);
kedge_status kedge_dataset_builder_finish(kedge_dataset_builder *builder, kedge_dataset **dataset);

/* ERR_MISMATCH with sample and line unless every id is below `vocabulary`, the rows of a model's embedding.
 */
kedge_status kedge_dataset_check_ids(const kedge_dataset *dataset, uint32_t vocabulary);

/* Cuts a dataset in two without a common sample: `held_out` is a part (below 1; at least one sample, rounded
 * up) or a number of samples. `shuffle` picks them by `seed`, else the last ones are taken. Both parts keep
 * the source order and the stable ids. ERR_ARGUMENT if a part would be empty. Both owned by the caller. */
kedge_status kedge_dataset_split(const kedge_dataset *dataset, double held_out, bool shuffle, uint64_t seed,
                                 kedge_dataset **train, kedge_dataset **eval);

#endif
