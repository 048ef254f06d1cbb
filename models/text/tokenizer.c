/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a tokenizer, text to ids and back, and what one may ask of it. The parts are listed in
 * tokenizer_internal.h.
 */
#include "models/text/tokenizer_internal.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* ---- Opening
 * ------------------------------------------------------------------------------------------------------------
 */

static bool exists(const char *directory, const char *name) {
  char path[4096];
  struct stat info;
  int length = snprintf(path, sizeof path, "%s/%s", directory, name);
  return length > 0 && (size_t)length < sizeof path && !stat(path, &info) && S_ISREG(info.st_mode);
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

/* A tokenizer.json or a ranks file, told apart by the name, else by the first character. */
static kedge_status open_file(kedge_tokenizer *tokenizer, const char *path, const char *kind) {
  kedge__bytes *text = &tokenizer->files[KEDGE__FILE_TOKENIZER];
  KEDGE_TRY(kedge__read_file(path, text, NULL));
  size_t at = strspn(text->data, "\xEF\xBB\xBF \t\r\n");
  if (text->data[at] != '{' && !ends_with(path, ".json")) {
    kedge_status status = kedge__read_ranks(tokenizer, path, text, kind);
    kedge__bytes_free(text); /* Saving converts it. */
    return status;
  }
  tokenizer->bare = false;
  json_t *root;
  KEDGE_TRY(kedge__parse_json(path, text, &root));
  kedge_status status = kedge__read_tokenizer_json(tokenizer, path, root);
  json_decref(root);
  return status;
}

static const char *guess_kind(const char *class_name) {
  return !strncmp(class_name, "Qwen2Tokenizer", 14) ? "qwen" : "gpt2";
}

/* The only file that ends in .tiktoken, else "". */
static kedge_status find_ranks(const char *directory, char *name, size_t size) {
  DIR *listing = opendir(directory);
  if (!listing) return kedge_fail(KEDGE_ERR_IO, "%s: the directory cannot be read", directory);
  int found = 0;
  *name = 0;
  for (struct dirent *item; (item = readdir(listing));) {
    size_t length = strlen(item->d_name);
    if (length < 9 || length >= size || strcmp(item->d_name + length - 9, ".tiktoken")) continue;
    if (!found++) memcpy(name, item->d_name, length + 1);
  }
  closedir(listing);
  return found < 2 ? KEDGE_OK
                   : kedge_fail(KEDGE_ERR_ARGUMENT, "%s: holds several .tiktoken files; name one", directory);
}

static kedge_status open_directory(kedge_tokenizer *tokenizer, const char *directory, const char *kind) {
  static const char *const pairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
  char name[256] = "tokenizer.json", class_name[64];
  if (!exists(directory, name)) snprintf(name, sizeof name, "tiktoken.model");
  if (!exists(directory, name)) {
    for (int i = 0; i < 2; i++) {
      if (!exists(directory, pairs[i][0]) || !exists(directory, pairs[i][1])) continue;
      KEDGE_TRY(kedge__read_class_name(directory, class_name, sizeof class_name));
      char *vocab = kedge_format("%s/%s", directory, pairs[i][0]),
           *merges = kedge_format("%s/%s", directory, pairs[i][1]);
      kedge_status status = KEDGE_ERR_MEMORY;
      if (vocab && merges)
        status = kedge__read_pair(tokenizer, vocab, merges, kind ? kind : guess_kind(class_name));
      kedge_free(vocab);
      kedge_free(merges);
      return status;
    }
    KEDGE_TRY(find_ranks(directory, name, sizeof name));
    if (!*name)
      return kedge_fail(
          KEDGE_ERR_IO,
          "%s: no tokenizer.json, tiktoken.model, *.tiktoken or vocab.json with merges.txt in it", directory);
  }
  char *path = kedge_format("%s/%s", directory, name);
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = open_file(tokenizer, path, kind);
  kedge_free(path);
  return status;
}

static kedge_status append_number(kedge__bytes *out, uint64_t number) {
  return kedge__bytes_append(out, &number, sizeof number);
}

/* Vocabulary in the order of ids, the sum over the merges (their order in the table says nothing), the
 * pipeline, the added tokens and the template. */
static kedge_status set_hash(kedge_tokenizer *tokenizer) {
  kedge__bytes all = {0};
  kedge_status status = KEDGE_OK;
  const kedge__bpe *bpe = &tokenizer->bpe;
  for (uint32_t id = 0; id < bpe->vocab.size; id++) {
    size_t length = 0;
    const char *text = kedge__vocab_text(&bpe->vocab, id, &length);
    KEDGE_GOTO(kedge__bytes_append(&all, text ? text : "", text ? length + 1 : 1), status, end);
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < bpe->merges.slot_count; i++)
    if (bpe->merges.slots[i].id != UINT32_MAX)
      sum += XXH3_64bits(&bpe->merges.slots[i], sizeof *bpe->merges.slots);
  uint64_t numbers[] = {sum,           bpe->merges.count,  (uint64_t)(int64_t)bpe->unk,
                        bpe->fuse_unk, bpe->byte_fallback, bpe->whole_first};
  KEDGE_GOTO(kedge__bytes_append(&all, numbers, sizeof numbers), status, end);
  KEDGE_GOTO(kedge__bytes_append(&all, tokenizer->pipeline.data, tokenizer->pipeline.length), status, end);
  for (size_t i = 0; i < tokenizer->added.count; i++) {
    const kedge__added_token *t = &tokenizer->added.tokens[i];
    KEDGE_GOTO(kedge__bytes_append(&all, t->content, strlen(t->content) + 1), status, end);
    unsigned flags = t->single_word | t->lstrip << 1 | t->rstrip << 2 | t->normalized << 3 | t->special << 4;
    KEDGE_GOTO(append_number(&all, (uint64_t)t->id << 8 | flags), status, end);
  }
  const kedge__ids *around[] = {&tokenizer->prefix, &tokenizer->suffix};
  for (int i = 0; i < 2; i++) {
    KEDGE_GOTO(append_number(&all, around[i]->length), status, end);
    KEDGE_GOTO(kedge__bytes_append(&all, around[i]->data, around[i]->length * sizeof(int32_t)), status, end);
  }
  XXH128_hash_t hash = XXH3_128bits(all.data, all.length);
  snprintf(tokenizer->hash, sizeof tokenizer->hash, "%016llx%016llx", (unsigned long long)hash.high64,
           (unsigned long long)hash.low64);
end:
  kedge__bytes_free(&all);
  return status;
}

static kedge_status check_ids(const kedge__ids *ids, uint32_t size) {
  for (size_t i = 0; i < ids->length; i++)
    if ((uint32_t)ids->data[i] >= size)
      return kedge_fail(KEDGE_ERR_FORMAT, "post_processor: id %d is beyond the last id %u", ids->data[i],
                        size - 1);
  return KEDGE_OK;
}

static kedge_status open_path(kedge_tokenizer *tokenizer, const char *path, const char *kind) {
  struct stat info;
  if (stat(path, &info)) return kedge_fail(KEDGE_ERR_IO, "%s: no such file or directory", path);
  bool directory = S_ISDIR(info.st_mode);
  tokenizer->bare = !directory && !kind;
  KEDGE_TRY(directory ? open_directory(tokenizer, path, kind) : open_file(tokenizer, path, kind));
  const char *slash = strrchr(path, '/');
  if (!directory && !strcmp(slash ? slash + 1 : path, kedge__file_names[KEDGE__FILE_TOKENIZER])) {
    char *parent = slash == path ? kedge_strdup("/") : kedge_strdup(slash ? path : ".");
    if (!parent) return KEDGE_ERR_MEMORY;
    if (slash && slash != path) parent[slash - path] = 0;
    kedge_status read = kedge__read_companions(tokenizer, parent);
    kedge_free(parent);
    KEDGE_TRY(read);
  } else if (directory) {
    KEDGE_TRY(kedge__read_companions(tokenizer, path));
  }
  KEDGE_TRY(kedge__added_index(tokenizer));
  tokenizer->size = tokenizer->bpe.vocab.size;
  if (tokenizer->added.largest >= (int32_t)tokenizer->size)
    tokenizer->size = (uint32_t)tokenizer->added.largest + 1;
  kedge_status status = check_ids(&tokenizer->prefix, tokenizer->size);
  if (status == KEDGE_OK) status = check_ids(&tokenizer->suffix, tokenizer->size);
  return status == KEDGE_OK ? set_hash(tokenizer) : kedge_fail_in(status, "%s", path);
}

kedge_status kedge_tokenizer_open(const char *path, const char *kind, kedge_tokenizer **tokenizer) {
  *tokenizer = NULL;
  kedge_tokenizer *made = kedge_alloc(1, sizeof *made);
  if (!made) return KEDGE_ERR_MEMORY;
  made->bos = made->eos = made->pad = made->bpe.unk = made->added.largest = -1;
  kedge_status status =
      kind && !kedge__kind_find(kind, 0)
          ? kedge_fail(KEDGE_ERR_ARGUMENT, "tokenizer kind '%.40s' is not one of qwen, gpt2, kimi", kind)
          : open_path(made, path, kind);
  if (status != KEDGE_OK) {
    kedge_tokenizer_free(made);
    return status;
  }
  *tokenizer = made;
  return KEDGE_OK;
}

void kedge_tokenizer_free(kedge_tokenizer *tokenizer) {
  if (!tokenizer) return;
  kedge__bpe_free(&tokenizer->bpe);
  kedge__stages_free(&tokenizer->normalizer);
  kedge__stages_free(&tokenizer->pre_tokenizer);
  kedge__stages_free(&tokenizer->decoder);
  kedge__added_free(&tokenizer->added);
  kedge__ids_free(&tokenizer->prefix);
  kedge__ids_free(&tokenizer->suffix);
  for (int i = 0; i < KEDGE__FILE_COUNT; i++) kedge__bytes_free(&tokenizer->files[i]);
  kedge__bytes_free(&tokenizer->pipeline);
  kedge_free(tokenizer->chat_template);
  kedge_free(tokenizer->description);
  kedge_free(tokenizer);
}

/* ---- Encoding
 * -----------------------------------------------------------------------------------------------------------
 */

/* Ids of a stretch of normalised text without added tokens. */
static kedge_status encode_stretch(const kedge_tokenizer *tokenizer, kedge__work *work, const char *text,
                                   size_t length) {
  kedge__pieces *now = &work->now;
  now->text.length = now->count = 0;
  KEDGE_TRY(kedge__bytes_append(&now->text, text, length));
  KEDGE_TRY(kedge__pieces_push(now, 0, length));
  KEDGE_TRY(kedge__stages_run(&tokenizer->pre_tokenizer, work));
  for (size_t i = 0; i < now->count; i++)
    if (now->spans[i].length)
      KEDGE_TRY(kedge__bpe_encode(&tokenizer->bpe, &work->bpe, now->text.data + now->spans[i].start,
                                  now->spans[i].length, UINT32_MAX, &work->ids));
  return KEDGE_OK;
}

/* Ids of a stretch of raw text without the added tokens of the first pass: normalised, then cut at those of
 * the second. */
static kedge_status encode_raw(const kedge_tokenizer *tokenizer, kedge__work *work, const char *text,
                               size_t length, bool at_start, unsigned flags) {
  bool continues = at_start && flags & KEDGE_ENCODE_CONTINUE;
  if (tokenizer->normalizer.count) {
    work->continues = continues;
    work->now.text.length = work->now.count = 0;
    KEDGE_TRY(kedge__bytes_append(&work->now.text, text, length));
    KEDGE_TRY(kedge__pieces_push(&work->now, 0, length));
    KEDGE_TRY(kedge__stages_run(&tokenizer->normalizer, work));
    work->text.length = 0;
    KEDGE_TRY(kedge__bytes_append(&work->text, work->now.text.data, work->now.text.length));
    text = work->text.data;
    length = work->text.length;
  }
  KEDGE_TRY(kedge__added_scan(tokenizer, 1, flags, text, length, &work->normalized));
  for (size_t i = 0; i < work->normalized.count; i++) {
    kedge__segment segment = work->normalized.data[i];
    work->at_start =
        at_start && segment.start == 0 && !(flags & (KEDGE_ENCODE_LATER | KEDGE_ENCODE_CONTINUE));
    work->continues = continues && segment.start == 0;
    if (segment.id >= 0)
      KEDGE_TRY(kedge__ids_push(&work->ids, segment.id));
    else
      KEDGE_TRY(encode_stretch(tokenizer, work, text + segment.start, segment.length));
  }
  return KEDGE_OK;
}

static kedge_status encode_text(const kedge_tokenizer *tokenizer, kedge__work *work, const char *text,
                                size_t length, unsigned flags) {
  KEDGE_TRY(kedge__added_scan(tokenizer, 0, flags, text, length, &work->raw));
  for (size_t i = 0; i < work->raw.count; i++) {
    kedge__segment segment = work->raw.data[i];
    if (segment.id >= 0)
      KEDGE_TRY(kedge__ids_push(&work->ids, segment.id));
    else
      KEDGE_TRY(encode_raw(tokenizer, work, text + segment.start, segment.length, segment.start == 0, flags));
  }
  return KEDGE_OK;
}

/* The kimi tokenizer encodes 400,000 characters at a time, and cuts a run of more than 25,000 characters that
 * are all white space, or all not, after each 25,000; added tokens are looked for in each part by itself. */
static kedge_status encode_chunks(const kedge_tokenizer *tokenizer, kedge__work *work, const char *text,
                                  size_t length, unsigned flags) {
  enum { CHUNK = 400000, RUN = 25000 };
  size_t start = 0, characters = 0, run = 0;
  bool run_space = false;
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t size = kedge__utf8_decode(text + at, &code);
    bool space = kedge__is_space(code) || (code >= 0x1C && code <= 0x1F);
    bool chunk_ends = characters == CHUNK;
    if (chunk_ends) characters = 0;
    if (chunk_ends || (run && space != run_space)) run = 0;
    if (chunk_ends || run == RUN) {
      KEDGE_TRY(encode_text(tokenizer, work, text + start, at - start, flags));
      start = at;
      run = 0;
    }
    run_space = space;
    run++;
    characters++;
    at += size;
  }
  return encode_text(tokenizer, work, text + start, length - start, flags);
}

static kedge_status push_all(kedge__ids *out, const kedge__ids *ids) {
  for (size_t i = 0; i < ids->length; i++) KEDGE_TRY(kedge__ids_push(out, ids->data[i]));
  return KEDGE_OK;
}

static kedge_status encode(const kedge_tokenizer *tokenizer, kedge__work *work, const char *text,
                           size_t length, unsigned flags) {
  size_t valid = kedge__utf8_valid(text, length);
  if (valid != length) return kedge_fail(KEDGE_ERR_FORMAT, "the text is not valid UTF-8 at byte %zu", valid);
  if (flags & KEDGE_ENCODE_TEMPLATE) KEDGE_TRY(push_all(&work->ids, &tokenizer->prefix));
  if (tokenizer->kind && tokenizer->kind->chunked)
    KEDGE_TRY(encode_chunks(tokenizer, work, text, length, flags));
  else
    KEDGE_TRY(encode_text(tokenizer, work, text, length, flags));
  return flags & KEDGE_ENCODE_TEMPLATE ? push_all(&work->ids, &tokenizer->suffix) : KEDGE_OK;
}

kedge_status kedge_tokenizer_encode(const kedge_tokenizer *tokenizer, const char *text, size_t length,
                                    unsigned flags, int32_t **ids, size_t *count) {
  kedge__work work = {0};
  *ids = NULL;
  *count = 0;
  kedge_status status = encode(tokenizer, &work, text, length, flags);
  if (status == KEDGE_OK && !work.ids.data && !(work.ids.data = kedge_alloc(1, sizeof(int32_t))))
    status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    *ids = work.ids.data;
    *count = work.ids.length;
    work.ids = (kedge__ids){0};
  }
  kedge__work_free(&work);
  return status;
}

/* ---- Decoding
 * -----------------------------------------------------------------------------------------------------------
 */

static kedge_status decode(const kedge_tokenizer *tokenizer, kedge__work *work, const int32_t *ids,
                           size_t count, bool skip_special) {
  kedge__pieces *now = &work->now;
  KEDGE_TRY(kedge__bytes_append(&now->text, "", 0));
  for (size_t i = 0; i < count; i++) {
    const char *content = kedge_tokenizer_content(tokenizer, ids[i]);
    if (!content)
      return kedge_fail(KEDGE_ERR_ARGUMENT, "id %d (at %zu) is not in the tokenizer's vocabulary", ids[i], i);
    const kedge__added_token *added = kedge__added_by_id(&tokenizer->added, ids[i]);
    /* The reference library remembers such a token as its normaliser left it. */
    if (added && added->normalized) content = added->match;
    if (skip_special && added && added->special) continue;
    size_t start = now->text.length;
    /* Without a decoder the reference library puts spaces between tokens. */
    if (!tokenizer->decoder.count && now->count) KEDGE_TRY(kedge__bytes_text(&now->text, " "));
    KEDGE_TRY(kedge__bytes_text(&now->text, content));
    KEDGE_TRY(kedge__pieces_push(now, start, now->text.length - start));
  }
  return kedge__stages_run(&tokenizer->decoder, work);
}

kedge_status kedge_tokenizer_decode(const kedge_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                    bool skip_special, char **text, size_t *length) {
  kedge__work work = {0};
  *text = NULL;
  *length = 0;
  kedge_status status = decode(tokenizer, &work, ids, count, skip_special);
  /* An empty result of a stage has no memory yet. */
  if (status == KEDGE_OK) status = kedge__bytes_append(&work.now.text, "", 0);
  if (status == KEDGE_OK) {
    *text = work.now.text.data;
    *length = work.now.text.length;
    work.now.text = (kedge__bytes){0};
  }
  kedge__work_free(&work);
  return status;
}

/* ---- Questions
 * ----------------------------------------------------------------------------------------------------------
 */

uint32_t kedge_tokenizer_size(const kedge_tokenizer *tokenizer) {
  return tokenizer->size;
}

int32_t kedge_tokenizer_id(const kedge_tokenizer *tokenizer, const char *content) {
  int32_t index = kedge__vocab_find(&tokenizer->added.contents, content, strlen(content));
  if (index >= 0) return tokenizer->added.tokens[index].id;
  return kedge__vocab_find(&tokenizer->bpe.vocab, content, strlen(content));
}

const char *kedge_tokenizer_content(const kedge_tokenizer *tokenizer, int32_t id) {
  if (id < 0) return NULL;
  const char *text = kedge__vocab_text(&tokenizer->bpe.vocab, (uint32_t)id, NULL);
  if (text) return text;
  const kedge__added_token *added = kedge__added_by_id(&tokenizer->added, id);
  return added ? added->content : NULL;
}

int32_t kedge_tokenizer_bos(const kedge_tokenizer *tokenizer) {
  return tokenizer->bos;
}
int32_t kedge_tokenizer_eos(const kedge_tokenizer *tokenizer) {
  return tokenizer->eos;
}
int32_t kedge_tokenizer_pad(const kedge_tokenizer *tokenizer) {
  return tokenizer->pad;
}

bool kedge_tokenizer_adds_bos(const kedge_tokenizer *tokenizer) {
  for (size_t i = 0; i < tokenizer->prefix.length; i++)
    if (tokenizer->bos >= 0 ? tokenizer->prefix.data[i] == tokenizer->bos : i == 0) return true;
  return false;
}

bool kedge_tokenizer_is_special(const kedge_tokenizer *tokenizer, int32_t id) {
  const kedge__added_token *added = kedge__added_by_id(&tokenizer->added, id);
  return added && added->special;
}

const char *kedge_tokenizer_chat_template(const kedge_tokenizer *tokenizer) {
  return tokenizer->chat_template;
}
const char *kedge_tokenizer_description(const kedge_tokenizer *tokenizer) {
  return tokenizer->description;
}
const char *kedge_tokenizer_hash(const kedge_tokenizer *tokenizer) {
  return tokenizer->hash;
}
