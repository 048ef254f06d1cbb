/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader of one safetensors file, memory-mapped. Siblings: writer.h writes one, checkpoint.h joins the shards
 * of a model, convert.h changes float types.
 *
 * A file is: u64 little-endian length N of the header; N bytes of JSON, one object {name: {dtype, shape,
 * data_offsets}}; the data, row-major and little-endian, without holes. Everything is checked before anything
 * is believed: after a successful open every `data`..`data + bytes` lies inside the mapping. A file that
 * another program shortens while it is open breaks that (SIGBUS), as with any mapped file. */
#ifndef KEDGE_MODELS_CHECKPOINT_SAFETENSORS_H
#define KEDGE_MODELS_CHECKPOINT_SAFETENSORS_H

#include "core/kedge.h"

typedef enum kedge_st_dtype {
  KEDGE_ST_BOOL,
  KEDGE_ST_U8,
  KEDGE_ST_I8,
  KEDGE_ST_F8_E5M2,
  KEDGE_ST_F8_E4M3,
  KEDGE_ST_U16,
  KEDGE_ST_I16,
  KEDGE_ST_F16,
  KEDGE_ST_BF16,
  KEDGE_ST_U32,
  KEDGE_ST_I32,
  KEDGE_ST_F32,
  KEDGE_ST_U64,
  KEDGE_ST_I64,
  KEDGE_ST_F64,
  KEDGE_ST_DTYPE_COUNT
} kedge_st_dtype;

enum { KEDGE_ST_MAX_RANK = 8 };
#define KEDGE_ST_MAX_HEADER 100000000u /* bytes of JSON, the format's own limit */

const char *kedge_st_dtype_name(kedge_st_dtype dtype); /* "BF16"; "?" for a value outside the enum */
uint32_t kedge_st_dtype_size(kedge_st_dtype dtype);    /* bytes an element; 0 for a value outside the enum */
/* The dtype of a token such as "BF16"; false if there is none of that name. */
bool kedge_st_dtype_parse(const char *token, kedge_st_dtype *dtype);

/* `shape[0..rank)` in elements; rank 0 is a scalar of one element. `data` is not aligned beyond what the file
 * happens to give: read it by memcpy or through convert.h. Zero-size tensors have a valid pointer and bytes =
 * 0. */
typedef struct kedge_st_tensor {
  const char *name;
  const uint8_t *data;
  uint64_t bytes;
  uint64_t shape[KEDGE_ST_MAX_RANK];
  uint32_t rank;
  kedge_st_dtype dtype;
} kedge_st_tensor;

typedef struct kedge_st_file kedge_st_file;

/* Maps and checks `path`. Errors: ERR_IO (cannot read), ERR_FORMAT (names file, tensor and what is wrong),
 * ERR_UNSUPPORTED (a dtype or rank outside the above), ERR_MEMORY. Owned by the caller, freed by
 * kedge_st_close. */
kedge_status kedge_st_open(const char *path, kedge_st_file **file);
void kedge_st_close(kedge_st_file *file);

const char *kedge_st_path(const kedge_st_file *file);
uint32_t kedge_st_count(const kedge_st_file *file);
/* Tensors in the order of their data in the file; index < count. */
const kedge_st_tensor *kedge_st_at(const kedge_st_file *file, uint32_t index);
/* Tensors in the order of their names (byte order); index < count. */
const kedge_st_tensor *kedge_st_by_name(const kedge_st_file *file, uint32_t index);
/* The tensor of that name, or NULL. O(log count). */
const kedge_st_tensor *kedge_st_find(const kedge_st_file *file, const char *name);
/* `__metadata__`: value of a key, or NULL; number of pairs (0 for an absent, empty or null map); pair
 * `index`. */
const char *kedge_st_metadata(const kedge_st_file *file, const char *key);
uint32_t kedge_st_metadata_count(const kedge_st_file *file);
void kedge_st_metadata_at(const kedge_st_file *file, uint32_t index, const char **key, const char **value);
/* The file's first bytes exactly as they are: length word and header. `bytes` = 8 + N. */
const uint8_t *kedge_st_header(const kedge_st_file *file, uint64_t *bytes);
uint64_t kedge_st_size(const kedge_st_file *file); /* of the whole file, bytes */

/* "[2,3]" into `text`, for messages. */
void kedge_st_shape_text(const kedge_st_tensor *tensor, char *text, size_t size);

/* Hints to the kernel about a tensor's pages: needed soon; not needed again (clean pages may leave memory).
 */
void kedge_st_prefetch(const kedge_st_tensor *tensor);
void kedge_st_drop(const kedge_st_tensor *tensor);

#endif
