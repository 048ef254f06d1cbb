/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Routing traces of other tools: every form read right, told apart by itself, and refused in one line where
 * it is wrong. Where files come from models is in test_trace.c. */
#include "models/trace/trace_import.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

/* Two tokens, two layers, top-2 of 5: what every form below says. */
static const int32_t ids[8] = {0, 4, 3, 2, 1, 0, 4, 2};

static void is_same(const kedge_trace *t, const int32_t *want, uint32_t tokens) {
  assert_int_equal(t->tokens, tokens);
  assert_true(t->layers == 2 && t->topk == 2 && t->experts == 5);
  assert_memory_equal(t->ids, want, 16 * (size_t)tokens);
}

static kedge_trace reads(const char *name, const kedge_trace_import_options *options) {
  kedge_trace t;
  ok(kedge_trace_read(at(name), options, &t));
  return t;
}

static void refuses(const char *name, const kedge_trace_import_options *options, const char *text) {
  kedge_trace t;
  if (kedge_trace_read(at(name), options, &t) == KEDGE_OK)
    fail_msg("%s was read; expected \"%s\"", name, text);
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
  assert_null(t.ids);
}

static const kedge_trace_import_options five = {.experts = 5};

/* ---- JSON Lines
 * --------------------------------------------------------------------------------------------------- */

static void test_tokens(void **state) {
  (void)state;
  test_write_text(
      at("a.jsonl"),
      "{\"num_experts\": 5, \"layers\": [3, 7]}\n"
      "{\"sample\": \"x\", \"span\": \"question\", \"ids\": [[0, 4], [3, 2]], "
      "\"weights\": [[0.5, 0.25], [1, 0]]}\n\n"
      "{\"sample\": \"y\", \"span\": 1, \"ids\": [[1, 0], [4, 2]], \"weights\": [[1, 2], [3, 4]]}\n");
  kedge_trace t = reads("a.jsonl", NULL);
  is_same(&t, ids, 2);
  assert_true(t.samples[0] == 0 && t.samples[1] == 1 && t.spans[0] == 0 && t.spans[1] == 1);
  assert_true(t.layer_numbers[0] == 3 && t.layer_numbers[1] == 7);
  assert_true(t.weights[1] == 0.25f && t.weights[7] == 4 && !t.logits);
  kedge_trace_destroy(&t);
  /* Consecutive lines of one name are a sample; without names all are one. */
  test_write_text(at("b.jsonl"), "{\"ids\":[[0,4],[3,2]]}\n{\"ids\":[[1,0],[4,2]]}\n");
  t = reads("b.jsonl", &five);
  is_same(&t, ids, 2);
  assert_true(t.samples[1] == 0 && t.spans[0] == -1 && t.layer_numbers[1] == 1);
  kedge_trace_destroy(&t);
  /* Logits tell of ties: token 0 has experts 3 and 4 equal at the cut of layer 0. */
  test_write_text(at("l.jsonl"), "{\"ids\":[[0,3]],\"logits\":[[2,0,0,1,1]]}\n");
  t = reads("l.jsonl", &five);
  assert_true(t.ties[0] == 1 && t.tied[0] == 0x18);
  kedge_trace_destroy(&t);
  /* A model that chose by other scores: nothing is known of ties. */
  test_write_text(at("l.jsonl"), "{\"ids\":[[1,3]],\"logits\":[[2,0,0,1,1]]}\n");
  t = reads("l.jsonl", &five);
  assert_null(t.ties);
  kedge_trace_destroy(&t);
}

static void test_samples(void **state) {
  (void)state;
  test_write_text(at("c.jsonl"), "{\"topk_ids\": [[[0,4],[3,2]],[[1,0],[4,2]]], \"prompt_tokens\": 1}\n"
                                 "{\"ids\": [[[-1,-1],[3,2]]], \"spans\": [\"a\"]}\n");
  kedge_trace t = reads("c.jsonl", &five);
  is_same(&t, (int32_t[]){0, 4, 3, 2, 1, 0, 4, 2, -1, -1, 3, 2}, 3);
  assert_true(t.samples[1] == 0 && t.samples[2] == 1);
  assert_true(t.spans[0] == 0 && t.spans[1] == 1 && t.spans[2] == 1);
  kedge_trace_destroy(&t);
  /* What SGLang answers: base64 of int32 [tokens, layers, k]. */
  test_write_text(at("s.jsonl"),
                  "{\"text\": \"x\", \"meta_info\": {\"prompt_tokens\": 1, \"completion_tokens\": 2, "
                  "\"routed_experts\": \"AAAAAAQAAAADAAAAAgAAAAEAAAAAAAAABAAAAAIAAAA=\"}}\n");
  t = reads("s.jsonl", &(kedge_trace_import_options){.experts = 5, .topk = 2, .file_layers = 2});
  is_same(&t, ids, 2);
  assert_true(t.spans[0] == 0 && t.spans[1] == 1);
  kedge_trace_destroy(&t);
  test_write_text(at("t.jsonl"), "{\"routed_experts\": \"AAAAAAQAAAADAAAAAgAAAAEAAAAAAAAABAAAAAIAAAA\", "
                                 "\"shape\": [2, 2, 2]}\n");
  t = reads("t.jsonl", &five);
  is_same(&t, ids, 2);
  kedge_trace_destroy(&t);
  refuses("s.jsonl", &five, "give the layers of the file and the top k");
  refuses("s.jsonl", &(kedge_trace_import_options){.experts = 5, .topk = 3, .file_layers = 1},
          "not whole tokens");
  refuses("t.jsonl", &(kedge_trace_import_options){.experts = 4}, "from 0 to 3");
}

/* Each of the sizes may stand in a first line of its own. */
static void test_head(void **state) {
  (void)state;
  static const char *const heads[] = {"{\"num_experts\":5}", "{\"top_k\":2}", "{\"layers\":[0,1]}"};
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
    char text[160];
    snprintf(text, sizeof text, "%s\n{\"ids\":[[0,4],[3,2]]}\n{\"ids\":[[1,0],[4,2]]}\n", heads[i]);
    test_write_text(at("h.jsonl"), text);
    kedge_trace t = reads("h.jsonl", &five);
    is_same(&t, ids, 2);
    kedge_trace_destroy(&t);
  }
  test_write_text(at("h.jsonl"), "{\"top_k\":3}\n{\"ids\":[[0,4],[3,2]]}\n");
  refuses("h.jsonl", &five, "h.jsonl:2: experts of a row: expected 3 as before, got 2");
}

static void bad_jsonl(const char *text, const char *message) {
  test_write_text(at("bad.jsonl"), text);
  refuses("bad.jsonl", &five, message);
}

static void test_bad_jsonl(void **state) {
  (void)state;
  bad_jsonl("{\"ids\":[[0,1]]}\n{\"ids\":[[0,1,2]]}\n",
            "bad.jsonl:2: experts of a row: expected 2 as before, got 3");
  bad_jsonl("{\"ids\":[[0,1]]}\n{\"ids\":[[0,1],[2,3]]}\n", "bad.jsonl:2: layers of a token");
  bad_jsonl("{\"ids\":[[0,5]]}\n", "bad.jsonl:1: ids: expected experts from 0 to 4");
  bad_jsonl("{\"ids\":[[0,1e300]]}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":[[0,0.5]]}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":[[1,1]]}\n", "token 0, layer 0: expected 2 distinct experts");
  bad_jsonl("{\"ids\":[[1,-1]]}\n", "token 0, layer 0");
  bad_jsonl("{\"ids\":[[0,1,2,3,4,0]]}\n", "k at most 5");
  bad_jsonl("{\"ids\":[]}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":[1,2]}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":[[]]}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":[[[1,2]],[3]]}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":{}}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"text\":\"no trace\"}\n", "bad.jsonl:1: ids");
  bad_jsonl("{\"ids\":[[0,1]],\"weights\":[[0,\"x\"]]}\n", "bad.jsonl:1: weights");
  bad_jsonl("{\"ids\":[[0,1]],\"weights\":[[0,1e300]]}\n", "bad.jsonl:1: weights");
  bad_jsonl("{\"ids\":[[0,1]],\"weights\":[[0,-1]]}\n", "0 or more, got -1");
  bad_jsonl("{\"ids\":[[0,1]],\"weights\":[[0]]}\n", "bad.jsonl:1: weights");
  bad_jsonl("{\"ids\":[[0,1]],\"logits\":[[0,1]]}\n", "bad.jsonl:1: logits");
  bad_jsonl("{\"ids\":[[0,1]],\"weights\":[[0,1]]}\n{\"ids\":[[0,1]]}\n", "bad.jsonl:2: weights");
  bad_jsonl("{\"ids\":[[0,1]],\"span\":\"middle\"}\n", "bad.jsonl:1: span");
  bad_jsonl("{\"ids\":[[[0,1]]],\"spans\":[0,1]}\n", "bad.jsonl:1: spans");
  bad_jsonl("{\"routed_experts\":\"AAA\"}\n", "base64 of int32");
  bad_jsonl("{\"routed_experts\":\"A*AA\"}\n", "base64 of int32");
  bad_jsonl("{\"routed_experts\":\"AAAAAA==\",\"shape\":[2,1,1]}\n", "not whole tokens");
  bad_jsonl("{\"num_experts\":6,\"ids\":[[0,1]]}\n", "num_experts: expected 5 as before, got 6");
  bad_jsonl("{\"ids\":[[0,1]]", "bad.jsonl:1");
  bad_jsonl("{\"num_experts\": 5}\n", "expected a token, got none");
  test_write_text(at("bad.jsonl"), "{\"ids\":[[0,1]]}\n");
  refuses("bad.jsonl", NULL, "num_experts");
}

/* ---- NumPy
 * -------------------------------------------------------------------------------------------------------- */

/* An array file: header text as it is, padded as numpy does, then the data. */
static void write_npy(const char *name, int version, const char *dict, const void *data, size_t bytes) {
  unsigned char file[1024] = "\x93NUMPY";
  size_t start = version == 1 ? 10 : 12, length = (start + strlen(dict) + 1 + 63) / 64 * 64 - start;
  file[6] = (unsigned char)version;
  file[8] = (unsigned char)length, file[9] = (unsigned char)(length >> 8);
  memset(file + start, ' ', length);
  memcpy(file + start, dict, strlen(dict));
  file[start + length - 1] = '\n';
  if (bytes) memcpy(file + start + length, data, bytes);
  test_write(at(name), file, start + length + bytes);
}

static void one_dtype(const char *descr, size_t size, int version) {
  unsigned char data[64] = {0};
  char dict[128];
  for (size_t i = 0; i < 8; i++) data[i * size] = (unsigned char)ids[i];
  snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (2, 2, 2), }", descr);
  write_npy("x.npy", version, dict, data, 8 * size);
  kedge_trace t = reads("x.npy", &five);
  is_same(&t, ids, 2);
  kedge_trace_destroy(&t);
  write_npy("x.npy", version, dict, data, 8 * size - 1);
  refuses("x.npy", &five, "does not fit the file");
  data[3 * size] = 5;
  write_npy("x.npy", version, dict, data, 8 * size);
  refuses("x.npy", &five, "number 3: expected -1 to 4, got 5");
  if (descr[1] == 'i') {
    memset(data, 255, 8 * size);
    write_npy("x.npy", version, dict, data, 8 * size);
    t = reads("x.npy", &five);
    assert_false(kedge_trace_is_routed(&t, 1, 1));
    kedge_trace_destroy(&t);
  }
}

static void test_npy(void **state) {
  (void)state;
  static const char *const types[] = {"|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8"};
  for (size_t i = 0; i < 8; i++)
    for (int version = 1; version <= 3; version++) one_dtype(types[i], (size_t)(types[i][2] - '0'), version);
  const float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const int64_t samples[2] = {0, 7};
  const int8_t spans[2] = {0, 1}, flat[8] = {0, 4, 3, 2, 1, 0, 4, 2};
  const char *dict = "{'descr': '|i1', 'fortran_order': False, 'shape': (2, 2, 2), }";
  write_npy("ids.npy", 1, dict, flat, 8);
  write_npy("w.npy", 2, "{\"shape\": (2, 2, 2,), \"descr\": \"<f4\", \"fortran_order\": False}", weights, 32);
  write_npy("sample.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", samples, 16);
  write_npy("span.npy", 1, "{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", spans, 2);
  const int32_t numbers[2] = {4, 9};
  kedge_trace t = reads("ids.npy", &(kedge_trace_import_options){.experts = 5,
                                                                 .layers = numbers,
                                                                 .layer_count = 2,
                                                                 .weights = at("w.npy"),
                                                                 .samples = at("sample.npy"),
                                                                 .spans = at("span.npy")});
  is_same(&t, ids, 2);
  assert_true(t.weights[7] == 8 && t.samples[1] == 7 && t.spans[1] == 1 && t.layer_numbers[1] == 9);
  kedge_trace_destroy(&t);
  refuses("ids.npy", &(kedge_trace_import_options){.experts = 5, .weights = at("sample.npy")}, "layers, k)");
  refuses("ids.npy", &(kedge_trace_import_options){.experts = 5, .samples = at("w.npy")},
          "expected the shape (2,)");
  refuses("ids.npy", &(kedge_trace_import_options){.experts = 5, .topk = 3}, "has 2 experts a token, not 3");
  refuses("ids.npy", NULL, "number of experts (--experts)");
}

static void bad_npy(const char *dict, const char *message) {
  const unsigned char data[8] = {0, 4, 3, 2, 1, 0, 4, 2};
  write_npy("bad.npy", 1, dict, data, 8);
  refuses("bad.npy", &five, message);
}

static void test_bad_npy(void **state) {
  (void)state;
#define ORDER "'fortran_order': False"
  bad_npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2, 2)}", "Fortran order");
  bad_npy("{'descr': '>i4', " ORDER ", 'shape': (1, 1, 2)}", "little-endian");
  bad_npy("{'descr': '|O', " ORDER ", 'shape': (2, 2, 2)}", "got '|O'");
  bad_npy("{'descr': [('a', '<i4')], " ORDER ", 'shape': (2,)}", "plain type");
  bad_npy("{'descr': '<f4', " ORDER ", 'shape': (1, 1, 2)}", "expected integers");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (8,)}", "(tokens, layers, k)");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (4, 2)}", "(tokens, layers, k)");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': ()}", "does not fit");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (1, 1, 1, 8)}", "one to three numbers");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (2, 2, 99999999999999999999)}", "too large");
  bad_npy("{'descr': '<u8', " ORDER ", 'shape': (2147483647, 2147483647, 2147483647)}", "does not fit");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (2147483648, 2147483648, 4)}", "does not fit");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (-2, -2, 2)}", "shape");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (2 2 2)}", "shape");
  bad_npy("{'descr': '|u1', " ORDER "}", "expected the keys");
  bad_npy("{'descr': '|u1', 'descr': '|u1', " ORDER ", 'shape': (2, 2, 2)}", "each once");
  bad_npy("{'x': 1}", "expected the keys");
  bad_npy("{'descr': '|u1'", "comma between keys");
  bad_npy("{", "keys and values");
  bad_npy("", "expected a dict");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (2, 2, 2)} x", "behind the dict");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (0, 2, 2)}", "does not fit");
  bad_npy("{'descr': '|u1', " ORDER ", 'shape': (1, 1, 8)}", "1 to 5 experts a token");
  test_write(at("bad.npy"), "\x93NUMPY\x01\x00\xff\xff{", 11);
  refuses("bad.npy", &five, "longer than the file");
  test_write(at("bad.npy"), "\x93NUMPY\x04\x00\x01\x00{}", 12);
  refuses("bad.npy", &five, "version 1, 2 or 3");
  test_write(at("bad.npy"), "\x93NUMPY", 6);
  refuses("bad.npy", &five, "something else");
}

/* ---- Raw folders
 * -------------------------------------------------------------------------------------------------- */

static void write_folder(const char *index) {
  test_remove(at("raw"));
  test_make_folder(at("raw"));
  test_write_text(at("raw/index.json"), index);
  test_write(at("raw/a_L01_ids.u8"), "\x00\x04\x01\x00", 4);
  test_write(at("raw/a_L02_ids.u16"), "\x03\x00\x02\x00\x04\x00\x02\x00", 8);
}

#define INDEX(domain) "{\"top_k\": 2, \"experts\": 5, \"layers\": [1, 2], \"domains\": {" domain "}}"

static void test_raw(void **state) {
  (void)state;
  write_folder(INDEX("\"a\": {\"tokens\": 2, \"lengths\": [1, 1]}"));
  kedge_trace t = reads("raw", NULL);
  is_same(&t, ids, 2);
  assert_true(t.samples[1] == 1 && t.layer_numbers[0] == 1 && !t.weights && t.spans[0] == -1);
  kedge_trace_destroy(&t);
  test_write(at("raw/a_L01_w1e4.u16"), "\x10\x27\x01\x00\x00\x00\x00\x00", 8);
  refuses("raw", NULL, "weights of domain a");
  test_write(at("raw/a_L02_w1e4.u16"), "\x10\x27\x01\x00\x00\x00\x88\x13", 8);
  t = reads("raw", &(kedge_trace_import_options){.domain = "a", .layers = (int32_t[]){2}, .layer_count = 1});
  assert_true(t.layers == 1 && t.layer_numbers[0] == 2 && t.ids[0] == 3 && t.weights[3] == 0.5f);
  kedge_trace_destroy(&t);
  refuses("raw", &(kedge_trace_import_options){.domain = "b"}, "no domain \"b\"");
  refuses("raw", &(kedge_trace_import_options){.experts = 6}, "has 5 experts, not 6");
  refuses("raw", &(kedge_trace_import_options){.layers = (int32_t[]){3}, .layer_count = 1}, "layer 3 is not");
  test_write(at("raw/a_L01_ids.u8"), "\x00\x04\x01", 3);
  refuses("raw", NULL, "expected 4 bytes, 2 tokens of 2 numbers of 1 bytes");
  test_remove(at("raw/a_L01_ids.u8"));
  refuses("raw", NULL, "neither it nor .u16 is there");
  write_folder(INDEX("\"a\": {\"tokens\": 2, \"lengths\": [1, 2]}"));
  refuses("raw", NULL, "add up to its 2 tokens");
  write_folder(INDEX("\"a\": {\"tokens\": 2}, \"b\": {\"tokens\": 2}"));
  refuses("raw", NULL, "has 2 domains");
  write_folder(INDEX("\"../a\": {\"tokens\": 2}"));
  refuses("raw", NULL, "cannot begin the name of a file");
  write_folder(INDEX("\"a\": {\"tokens\": 2000000000}"));
  refuses("raw", NULL, "expected 4000000000 bytes");
  write_folder("{\"top_k\": 6, \"experts\": 5, \"layers\": [1], \"domains\": {\"a\": {\"tokens\": 2}}}");
  refuses("raw", NULL, "top_k: expected 1 to 5");
  static const char *const layers[] = {"[-1]", "[4294967297]", "[\"1\"]", "[1.5]", "[65536]"};
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    char index[160];
    snprintf(index, sizeof index,
             "{\"top_k\": 2, \"experts\": 5, \"layers\": %s, \"domains\": {\"a\": {\"tokens\": 2}}}",
             layers[i]);
    write_folder(index);
    refuses("raw", NULL, "index.json: layers[0]: expected a number from 0 to 65535");
  }
  write_folder("[]");
  refuses("raw", NULL, "index.json: domains: expected an object");
  test_remove(at("raw/index.json"));
  refuses("raw", NULL, "without index.json");
}

/* ---- The commands
 * ------------------------------------------------------------------------------------------------- */

static void test_layers(void **state) {
  (void)state;
  int32_t *numbers;
  uint32_t count;
  ok(kedge_trace_layers_parse("0,3,5-7", &numbers, &count));
  assert_true(count == 5 && numbers[0] == 0 && numbers[1] == 3 && numbers[4] == 7);
  kedge_free(numbers);
  static const char *const bad[] = {"", "3-1", "1,1", "2,1", "-1", "1-", "1,", "a", "1-2-3", "70000", "1 2"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(kedge_trace_layers_parse(bad[i], &numbers, &count), KEDGE_ERR_ARGUMENT);
}

static void test_commands(void **state) {
  (void)state;
  kedge_trace t;
  write_folder(INDEX("\"a\": {\"tokens\": 2}"));
  /* A dense first layer, which repeats ids, is left out by number. */
  test_write_text(at("dense.jsonl"), "{\"ids\":[[0,0],[0,4],[3,2]]}\n{\"ids\":[[0,0],[1,0],[4,2]]}\n");
  test_kedge_expect("trace import dense.jsonl --experts 5 --out d.st", 2,
                    "token 0, layer 0: expected 2 distinct");
  test_kedge_expect("trace import dense.jsonl --experts 5 --layers 1-2 --out d.st", 0, "");
  ok(kedge_trace_load(at("d.st"), &t));
  is_same(&t, ids, 2);
  assert_true(t.layer_numbers[0] == 1 && t.layer_numbers[1] == 2);
  kedge_trace_destroy(&t);
  test_kedge_expect("trace import raw --format raw --out r.st", 0, "");
  json_t *report = test_kedge_json("probe --trace raw --post-trace a=d.st --json -");
  json_t *layer = json_array_get(json_object_get(report, "layers"), 1);
  assert_true(json_number_value(json_object_get(report, "topk_overlap_mean")) == 1);
  assert_true(json_integer_value(json_object_get(layer, "layer")) == 2);
  json_decref(report);
  test_kedge_expect("probe --base r.st --post d.st", 0, "");
  test_kedge_expect("trace import raw --format raw --out raw/index.json", 2, "would replace");
  test_kedge_expect("trace import dense.jsonl --experts 5 --layers 1-2 --out dense.jsonl", 2,
                    "would replace");
  test_kedge_expect("trace import nowhere --out x.st", 2, "nowhere");
  test_kedge_expect("trace import dense.jsonl --format text --out x.st", 2, "came \"text\"");
  test_kedge_expect("trace import dense.jsonl --experts 5 --domain a --out x.st", 2, "only a folder");
  test_kedge_expect("trace import --out x.st", 2, "PATH");
  test_write_text(at("k3.jsonl"), "{\"num_experts\":5,\"ids\":[[0,1,2],[0,1,2]]}\n");
  test_kedge_expect("probe --trace a=d.st --trace b=k3.jsonl", 2,
                    "top 3 of 5 experts; the other domains have");
  test_kedge_expect("probe --base d.st --post k3.jsonl", 2, "");
  test_write_text(at("junk"), "junk");
  test_kedge_expect("probe --trace junk", 2, "expected a routing trace");
  test_kedge_expect("probe --trace d.st --post-trace x=r.st", 2, "there is no");
  test_kedge_expect("probe", 2, "--base or --trace is needed");
  test_kedge_expect("probe --trace d.st --data a.jsonl", 2, "--data needs a model");
  assert_false(test_exists(at("x.st")));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tokens),    cmocka_unit_test(test_head),   cmocka_unit_test(test_samples),
      cmocka_unit_test(test_bad_jsonl), cmocka_unit_test(test_npy),    cmocka_unit_test(test_bad_npy),
      cmocka_unit_test(test_raw),       cmocka_unit_test(test_layers), cmocka_unit_test(test_commands),
  };
  return cmocka_run_group_tests_name("trace import", tests, NULL, NULL);
}
