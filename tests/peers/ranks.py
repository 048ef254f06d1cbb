#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks of one thread beside one rank of two threads: the same training, updates a second.

For developers; needs mpirun. Rounds of the two alternate, so that what else the machine does hits both. A round trains
the model of `kedge bench step` for few and for more updates; the difference is the time of updates alone, without
start and saving. Printed are medians of each, the median of the rounds' ratios, and the cores that others kept busy
(/proc/stat). At least 0.90 is asked for.

    tests/peers/ranks.py --kedge build/kedge --rounds 7
    tests/peers/ranks.py --kedge build/kedge --ranks 2 --expert-parallel 2 --rows 8 --length 256
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MODEL = {
    "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 128, "intermediate_size": 512, "vocab_size": 4096, "tie_word_embeddings": True,
    "norm_topk_prob": True, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "initializer_range": 0.05, "hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [],
    "bos_token_id": 0, "eos_token_id": 0, "attention_bias": False, "torch_dtype": "float32",
}
LAUNCH = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def busy():
    """Seconds that all processors were busy, and those of this process's children."""
    with open("/proc/stat") as file:
        fields = [int(x) for x in file.readline().split()[1:8]]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), children.ru_utime + children.ru_stime


def prepare(o, folder):
    with open(f"{folder}/config.json", "w") as file:
        json.dump(MODEL, file)
    with open(f"{folder}/train.jsonl", "w") as file:
        for i in range(4 * o.rows):
            text = " ".join(f"{(i * 31 + j * 17) % 90 + 10} and {(i + j) % 9}" for j in range(o.length))
            print(json.dumps({"prompt": f"{i}:", "completion": text}), file=file)
    tokenizer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/tokenizer/tiny")
    run([o.kedge, "init", "--config", "config.json", "--tokenizer", tokenizer, "--out", "base", "--seed", "1"], folder)


def run(command, folder):
    environment = dict(os.environ, OMP_WAIT_POLICY="passive", OMPI_MCA_orte_tmpdir_base=folder)
    start = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout.decode(errors='replace')}")
    return time.monotonic() - start


def train(o, folder, ranks, threads, updates):
    command = [o.kedge, "train", "model_name_or_path=base", "dataset=[train.jsonl]", "output_dir=out",
               "overwrite_output_dir=true", f"max_length={o.length}", f"max_steps={updates}", "save_strategy=no",
               f"per_device_train_batch_size={o.rows // ranks}", f"gradient_accumulation_steps={o.accumulation}",
               f"threads={threads}", f"dtype={o.dtype}", "logging_steps=1000000",
               "router_probe_steps=0", f"expert_parallel={o.expert_parallel if ranks > 1 else 1}"]
    shutil.rmtree(f"{folder}/out", ignore_errors=True)
    return run((LAUNCH + ["-n", str(ranks)] if ranks > 1 else []) + command, folder)


def update_seconds(o, folder, ranks, threads):
    few = train(o, folder, ranks, threads, o.few)
    return (train(o, folder, ranks, threads, o.few + o.updates) - few) / o.updates


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kedge", required=True)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--expert-parallel", type=int, default=1)
    p.add_argument("--rows", type=int, default=8, help="of a micro-batch, over all ranks")
    p.add_argument("--length", type=int, default=256, help="tokens of a row")
    p.add_argument("--accumulation", type=int, default=1)
    p.add_argument("--dtype", default="f32")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--few", type=int, default=3, help="updates that are not timed")
    p.add_argument("--updates", type=int, default=20)
    o = p.parse_args()
    o.kedge = os.path.abspath(o.kedge)
    folder = tempfile.mkdtemp(prefix="kedge-ranks-")
    rows = []
    try:
        prepare(o, folder)
        for number in range(o.rounds):
            start, began = busy(), time.monotonic()
            sides = [lambda: update_seconds(o, folder, 1, o.ranks), lambda: update_seconds(o, folder, o.ranks, 1)]
            order = [0, 1] if number % 2 == 0 else [1, 0]
            seconds = [0.0, 0.0]
            for side in order:
                seconds[side] = sides[side]()
            end = busy()
            others = ((end[0] - start[0]) - (end[1] - start[1])) / (time.monotonic() - began)
            rows.append((seconds[0], seconds[1], seconds[0] / seconds[1], max(0.0, others)))
            print(f"round {number + 1}: one rank {1e3 * seconds[0]:.1f} ms, {o.ranks} ranks {1e3 * seconds[1]:.1f} ms, "
                  f"ratio {rows[-1][2]:.3f}, others {rows[-1][3]:.2f} cores", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    one, several, ratio, others = (statistics.median(column) for column in zip(*rows))
    print(f"medians: one rank of {o.ranks} threads {1e3 * one:.1f} ms an update, {o.ranks} ranks of one thread "
          f"{1e3 * several:.1f} ms; ratio {ratio:.3f} (asked for: 0.90); others kept {others:.2f} cores busy")


if __name__ == "__main__":
    main()
