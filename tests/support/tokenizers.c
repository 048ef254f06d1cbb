/* SPDX-License-Identifier: Apache-2.0
 * A byte-level tokenizer for tests (tokenizers.h). */
#include "tests/support/tokenizers.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

const char *const test_tokenizer_model_config =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 264, \"hidden_size\": 16, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"intermediate_size\": 24,\n"
    " \"moe_intermediate_size\": 12, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"norm_topk_prob\": "
    "true,\n"
    " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [0], \"max_position_embeddings\": 128,\n"
    " \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false,\n"
    " \"initializer_range\": 0.3, \"hidden_act\": \"silu\", \"bos_token_id\": 256, \"eos_token_id\": 257}\n";

/* The character that stands for a byte: printable ones for themselves, the others U+0100 on, in order. */
static void spelling(unsigned byte, char text[4]) {
  unsigned code = byte, hidden = 0;
  for (unsigned b = 0; b <= byte; b++) {
    bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    code = printable ? b : 256 + hidden;
    hidden += !printable;
  }
  if (code < 128) {
    text[0] = (char)code;
    text[1] = 0;
  } else {
    text[0] = (char)(0xc0 | code >> 6);
    text[1] = (char)(0x80 | (code & 63));
    text[2] = 0;
  }
}

static void dump(json_t *root, const char *folder, const char *name) {
  assert_non_null(root);
  char *text = json_dumps(root, 0);
  test_write_text(test_path(folder, name), text);
  free(text);
  json_decref(root);
}

void test_tokenizer_write(const char *folder) {
  static const char *const special[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
  json_t *vocabulary = json_object(), *added = json_array();
  for (unsigned b = 0; b < 256; b++) {
    char text[4];
    spelling(b, text);
    json_object_set_new(vocabulary, text, json_integer(b));
  }
  for (int i = 0; i < 4; i++)
    json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", 256 + i, "content",
                                           special[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                           "normalized", 0, "special", 1));
  json_t *model = json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:[]}", "type", "BPE", "dropout",
                            "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                            "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges");
  json_t *stage = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets",
                            1, "use_regex", 1);
  dump(json_pack("{s:s,s:n,s:n,s:o,s:n,s:O,s:n,s:o,s:o}", "version", "1.0", "truncation", "padding",
                 "added_tokens", added, "normalizer", "pre_tokenizer", stage, "post_processor", "decoder",
                 stage, "model", model),
       folder, "tokenizer.json");
  dump(json_pack("{s:s,s:s,s:b}", "bos_token", "<s>", "eos_token", "</s>", "add_bos_token", 0), folder,
       "tokenizer_config.json");
}
