#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kedge beside PyTorch and transformers on this CPU: training, generation, and products of experts.

For developers. Needs torch and transformers; both sides use the same shapes, dtype and number of threads. Rounds of
the two alternate in one run, so that what else the machine does hits both; printed are medians of each, the median
of the rounds' ratios, and the cores that others kept busy (/proc/stat).

    tests/peers/bench.py --kedge build/kedge step --dtype bf16 --threads 2 --rounds 5
    tests/peers/bench.py --kedge build/kedge products --shape moonlight --threads 1
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

SHAPES = {  # hidden, width, experts, top, tokens, as in tools/bench.c
    "laptop": (256, 128, 16, 4, 1024),
    "qwen3": (2048, 768, 128, 8, 4096),
    "moonlight": (2048, 1408, 64, 6, 4096),
}


def cpu_times():
    with open("/proc/stat") as file:
        fields = [int(x) for x in file.readline().split()[1:8]]
    busy = sum(fields) - fields[3] - fields[4]
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return busy / os.sysconf("SC_CLK_TCK"), spent, time.monotonic()


def load_since(start):
    busy, spent, now = cpu_times()
    return max(0.0, (busy - start[0] - (spent - start[1])) / (now - start[2]))


class Kedge:
    """`kedge bench` as a child process; `memory` is its largest resident set in MiB."""

    def __init__(self, options):
        self.options = options
        self.memory = 0

    def bench(self, *arguments):
        command = [self.options.kedge, "bench", *arguments, "--json", "--threads", str(self.options.threads)]
        command += ["--dtype", self.options.dtype, "--seconds", str(self.options.seconds)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        while child.poll() is None:  # what wait4 tells of a child holds this process's own peak, too
            self.memory = max(self.memory, high_water(child.pid))
            time.sleep(0.02)
        if child.returncode:
            sys.exit("kedge bench failed")
        return json.loads(child.stdout.read())["results"]


def high_water(pid):
    """Largest resident set of a living process, MiB."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0


def repeat(run, options):
    """Median seconds of a run, of at least so many and the given time, after one that is not counted; with --cpu the
    mean of what the process spent."""
    run()
    times, start, spent = [], time.monotonic(), time.process_time()
    while len(times) < options.least or time.monotonic() - start < options.seconds:
        before = time.monotonic()
        run()
        times.append(time.monotonic() - before)
    return (time.process_time() - spent) / len(times) if options.cpu else statistics.median(times)


def laptop_model(experts, dtype):
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, intermediate_size=512, vocab_size=4096,
        tie_word_embeddings=True, norm_topk_prob=True, max_position_embeddings=4096, use_cache=True,
        eos_token_id=None, bos_token_id=None, pad_token_id=None)
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(
        config, experts_implementation=experts, attn_implementation="sdpa", dtype=dtype)


class TorchStep:
    """Training steps: f32, bf16 weights throughout, or f32 weights under autocast to bf16."""

    def __init__(self, experts, kind):
        import torch

        self.torch = torch
        self.autocast = kind == "autocast"
        self.model = laptop_model(experts, torch.bfloat16 if kind == "bf16" else torch.float32)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True)
        self.ids = torch.randint(0, 4096, (8, 256))

    def __call__(self):
        torch = self.torch
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=self.ids, labels=self.ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def torch_generate(experts, dtype):
    import torch

    model = laptop_model(experts, dtype)
    model.eval()
    prompt = torch.arange(16)[None] * 17 + 3

    def run():
        with torch.no_grad():
            model.generate(prompt, max_new_tokens=65, min_new_tokens=65, do_sample=False)

    return run


def report(name, ours, theirs, unit, load):
    """Prints medians of both sides and of the rounds' ratios; returns them, with the load."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(f"{name:44} kedge {statistics.median(ours):10.1f}  peer {statistics.median(theirs):10.1f} {unit:10} "
          f"ratio {statistics.median(ratios):6.2f}  load {load:.1f}", flush=True)
    return {"case": name, "kedge": statistics.median(ours), "peer": statistics.median(theirs), "unit": unit,
            "ratio": statistics.median(ratios), "load": load}


def compare(options, kedge, part, name, peer, tokens):
    """Rounds of tokens a second of both, one after the other."""
    ours, theirs, start = [], [], cpu_times()
    for _ in range(options.rounds):
        line = kedge.bench(part)[0]
        ours.append(tokens / line["cpu_seconds" if options.cpu else "seconds"])
        theirs.append(tokens / repeat(peer, options))
    return report(name, ours, theirs, "tokens/s", load_since(start))


def step(options, kedge):
    kinds = ["f32"] if options.dtype == "f32" else ["bf16", "autocast"]
    rows = [compare(options, kedge, "step", f"training step, {experts}, {kind}", TorchStep(experts, kind), 2048)
            for experts in options.experts for kind in kinds]
    print(f"largest resident set: kedge {kedge.memory:.0f} MiB")
    return rows


def memory(options, kedge):
    """Resident set of a process that trains, beside one that has only loaded its libraries."""
    kedge.bench("step")
    # A process's own high water: what getrusage tells of it begins at that of the process that started it.
    code = ("import os, sys; sys.path.insert(0, sys.argv[1]); import bench, torch;"
            "import transformers.models.qwen3_moe.modeling_qwen3_moe;"
            "torch.set_num_threads(int(sys.argv[4]));"
            "base = bench.high_water(os.getpid());"
            "step = bench.TorchStep(sys.argv[2], sys.argv[3]); [step() for _ in range(3)];"
            "print(base, bench.high_water(os.getpid()))")
    here, rows = os.path.dirname(os.path.abspath(__file__)), []
    for experts in options.experts:
        out = subprocess.run([sys.executable, "-c", code, here, experts, options.dtype, str(options.threads)],
                             capture_output=True, text=True, check=True).stdout.split()
        print(f"training memory, {experts:12} kedge {kedge.memory:.0f} MiB, peer {float(out[1]):.0f} MiB "
              f"(libraries alone {float(out[0]):.0f})", flush=True)
        rows.append({"case": f"training memory, {experts}", "kedge": kedge.memory, "peer": float(out[1]), "unit": "MiB",
                     "ratio": float(out[1]) / kedge.memory, "load": 0.0})
    return rows


def generate(options, kedge):
    import torch

    dtype = torch.float32 if options.dtype == "f32" else torch.bfloat16
    return [compare(options, kedge, "generate", f"generation, {experts}", torch_generate(experts, dtype), 64)
            for experts in options.experts]


def products(options, kedge):
    """Grouped products against one matrix product an expert of PyTorch's oneDNN (bf16) or its BLAS (f32)."""
    import torch

    hidden, width, experts, top, tokens = SHAPES[options.shape]
    dtype = torch.float32 if options.dtype == "f32" else torch.bfloat16
    rows = tokens * top // experts
    x = torch.randn(experts, rows, hidden).to(dtype)
    dy = torch.randn(experts, rows, width).to(dtype)
    w = torch.randn(experts, width, hidden).to(dtype)
    runs = {
        "grouped forward": lambda: [torch.mm(x[e], w[e].t()) for e in range(experts)],
        "grouped input gradient": lambda: [torch.mm(dy[e], w[e]) for e in range(experts)],
        "grouped weight gradient": lambda: [torch.mm(dy[e].t(), x[e]) for e in range(experts)],
    }
    flops = 2e-9 * tokens * top * hidden * width
    ours, theirs, start = {n: [] for n in runs}, {n: [] for n in runs}, cpu_times()
    for _ in range(options.rounds):
        lines = {line["case"]: line for line in kedge.bench("products", "--shape", options.shape)}
        for name, run in runs.items():
            ours[name].append(flops / lines[name]["cpu_seconds" if options.cpu else "seconds"])
            theirs[name].append(flops / repeat(run, options))
    load = load_since(start)
    return [report(f"{options.shape}, {name}", ours[name], theirs[name], "GFLOP/s", load) for name in runs]


def layer(options, kedge):
    """A layer of experts forward and backward, on random routes."""
    import torch
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    hidden, width, experts, top, tokens = SHAPES[options.shape]
    dtype, rows = torch.float32 if options.dtype == "f32" else torch.bfloat16, []
    for name in options.experts:
        config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=width, num_experts=experts,
                                num_experts_per_tok=top)
        config._experts_implementation = name
        block = Qwen3MoeExperts(config).to(dtype)
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        x = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
        chosen = torch.rand(tokens, experts).topk(top).indices
        weights = torch.rand(tokens, top).to(dtype)
        dy = torch.randn(tokens, hidden).to(dtype)

        def run():
            block.zero_grad(set_to_none=True)
            x.grad = None
            block(x, chosen, weights).backward(dy)

        ours, theirs, start = [], [], cpu_times()
        for _ in range(options.rounds):
            line = kedge.bench("layer", "--shape", options.shape)[0]
            ours.append(tokens / line["cpu_seconds" if options.cpu else "seconds"])
            theirs.append(tokens / repeat(run, options))
        rows.append(report(f"{options.shape} layer, {name}", ours, theirs, "tokens/s", load_since(start)))
    return rows


def main():
    parts = {"step": step, "memory": memory, "generate": generate, "products": products, "layer": layer}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--kedge", default="build/kedge", help="the program")
    parser.add_argument("--dtype", default="bf16", choices=["f32", "bf16"])
    parser.add_argument("--shape", default="laptop", choices=SHAPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each side in a round")
    parser.add_argument("--least", type=int, default=3, help="runs of each side in a round")
    parser.add_argument("--experts", nargs="+", default=["eager", "batched_mm", "grouped_mm"])
    parser.add_argument("--cpu", action="store_true", help="processor time in place of the clock's: for one thread of a "
                        "busy machine")
    options = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.threads} threads, "
          f"{options.dtype}; oneDNN {torch.backends.mkldnn.is_available()}")
    for part in options.parts:
        parts[part](options, Kedge(options))


if __name__ == "__main__":
    main()
