#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kedge's generation beside llama.cpp's on this CPU: 64 tokens after a prompt of 16, of the model of `kedge bench`.

For developers. Needs numpy, cffi and the package llama-cpp-py-sync, which brings llama.cpp's library; without it a line
says so. The model is written as a GGUF file of the architecture qwen3moe with random weights. llama.cpp decodes given
tokens, as its own benchmark does; Kedge also chooses each token. Rounds of the two alternate, each side in a process of
its own.

    tests/peers/llama.py --kedge build/kedge --dtype bf16 --threads 2 --rounds 5
"""
import argparse
import importlib.util
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import time

import bench

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, EXPERTS, TOP, WIDTH, VOCABULARY = 256, 4, 4, 2, 64, 16, 4, 128, 4096
PROMPT, NEW = 16, 64
TYPES = {"f32": 0, "bf16": 30}  # of ggml


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, value):
    """A key of a GGUF file with its type: text, whole number or real."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    return text(key) + struct.pack("<If", 6, value)


def tensors():
    """Name, shape with the fastest dimension last, and whether it is f32 whatever the dtype."""
    yield "token_embd.weight", (VOCABULARY, HIDDEN), False
    yield "output_norm.weight", (HIDDEN,), True
    for layer in range(LAYERS):
        for name, shape, f32 in (
                ("attn_norm", (HIDDEN,), True), ("attn_q", (HEADS * HEAD, HIDDEN), False),
                ("attn_k", (KV_HEADS * HEAD, HIDDEN), False), ("attn_v", (KV_HEADS * HEAD, HIDDEN), False),
                ("attn_q_norm", (HEAD,), True), ("attn_k_norm", (HEAD,), True),
                ("attn_output", (HIDDEN, HEADS * HEAD), False), ("ffn_norm", (HIDDEN,), True),
                ("ffn_gate_inp", (EXPERTS, HIDDEN), True), ("ffn_gate_exps", (EXPERTS, WIDTH, HIDDEN), False),
                ("ffn_up_exps", (EXPERTS, WIDTH, HIDDEN), False), ("ffn_down_exps", (EXPERTS, HIDDEN, WIDTH), False)):
            yield f"blk.{layer}.{name}.weight", shape, f32


def write_model(path, dtype):
    import numpy

    keys = {"general.architecture": "qwen3moe", "qwen3moe.context_length": 4096, "qwen3moe.embedding_length": HIDDEN,
            "qwen3moe.block_count": LAYERS, "qwen3moe.feed_forward_length": 512,
            "qwen3moe.attention.head_count": HEADS, "qwen3moe.attention.head_count_kv": KV_HEADS,
            "qwen3moe.attention.key_length": HEAD, "qwen3moe.attention.value_length": HEAD,
            "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6, "qwen3moe.rope.freq_base": 10000.0,
            "qwen3moe.expert_count": EXPERTS, "qwen3moe.expert_used_count": TOP,
            "qwen3moe.expert_feed_forward_length": WIDTH, "qwen3moe.vocab_size": VOCABULARY,
            "tokenizer.ggml.model": "none"}
    random, infos, data, count = numpy.random.default_rng(1), b"", b"", 0
    for name, shape, f32 in tensors():
        kind = "f32" if f32 else dtype
        values = random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.05)
        if len(shape) == 1:
            values = numpy.ones(shape, dtype=numpy.float32)
        if kind == "bf16":
            values = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", TYPES[kind], len(data))
        data += values.tobytes() + bytes(-values.nbytes % 32)
        count += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(keys)) + b"".join(entry(k, v) for k, v in keys.items()) + infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)


def child(path, threads, seconds):
    """In a process of its own: prints tokens a second by the clock, by processor time, and what was loaded."""
    from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

    ffi, lib = get_ffi(), get_lib()
    lib.llama_backend_init()
    model_options = lib.llama_model_default_params()
    model_options.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(path.encode(), model_options)
    if model == ffi.NULL:
        sys.exit("llama.cpp cannot load the model")
    options = lib.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = 256, 64, 64
    options.n_threads = options.n_threads_batch = threads
    context = lib.llama_init_from_model(model, options)

    def decode(tokens):
        buffer = ffi.new("int32_t[]", tokens)
        if lib.llama_decode(context, lib.llama_batch_get_one(buffer, len(tokens))):
            sys.exit("llama.cpp cannot decode")

    def run():
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        decode([17 * i + 3 for i in range(PROMPT)])
        before, spent = time.monotonic(), time.process_time()
        for i in range(NEW):
            decode([(i * 37 + 11) % VOCABULARY])
        return time.monotonic() - before, time.process_time() - spent

    run()
    rounds, start = [], time.monotonic()
    while len(rounds) < 3 or time.monotonic() - start < seconds:
        rounds.append(run())
    clock, spent = (sorted(r[i] for r in rounds)[len(rounds) // 2] for i in (0, 1))
    print(NEW / clock, NEW / spent)
    print(ffi.string(lib.llama_print_system_info()).decode())


def compare(options):
    """Rounds of both, one after the other; None where llama.cpp is not there."""
    if importlib.util.find_spec("llama_cpp_py_sync") is None:
        print("generation beside llama.cpp: not run, the package llama-cpp-py-sync is not installed")
        return None
    kedge, ours, theirs, start = bench.Kedge(options), [], [], bench.cpu_times()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "laptop.gguf")
        write_model(path, options.dtype)
        command = [*shlex.split(options.llama_python), os.path.abspath(__file__), "--child", path, "--threads", str(options.threads)]
        for _ in range(options.rounds):
            line = kedge.bench("generate")[0]
            ours.append(NEW / line["cpu_seconds" if options.cpu else "seconds"])
            out = subprocess.run(command + ["--seconds", str(options.seconds)], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, check=True).stdout.splitlines()
            theirs.append(float(out[0].split()[1 if options.cpu else 0]))
    if options.verbose:
        print(out[1])
    return bench.report("generation, llama.cpp", ours, theirs, "tokens/s", bench.load_since(start))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kedge", default="build/kedge", help="the program")
    parser.add_argument("--dtype", default="bf16", choices=TYPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each side in a round")
    parser.add_argument("--cpu", action="store_true", help="processor time in place of the clock's")
    parser.add_argument("--verbose", action="store_true", help="what llama.cpp says of this machine")
    parser.add_argument("--llama-python", default=sys.executable, metavar="COMMAND",
                        help="runs llama.cpp's side: where its library wants a newer C library than this system's, "
                        "that one's loader before an interpreter")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.threads, options.seconds)
    else:
        compare(options)


if __name__ == "__main__":
    main()
