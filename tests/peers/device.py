#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's products in bf16 on a card, at the shapes of `kedge bench`: for tools/device-check.sh.

Prints JSON: for each shape the teraflops a second of the grouped product of the experts' first projection, forward,
and of one dense product of as much work. Medians of repeats timed by events. Without a card or PyTorch it fails.
"""
import json
import statistics
import sys

import torch

SHAPES = {  # hidden, width, experts, top, tokens, as in tools/bench.c
    "qwen3": (2048, 768, 128, 8, 4096),
    "moonlight": (2048, 1408, 64, 6, 4096),
}


def seconds(run, repeats=20):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return statistics.median(times)


def grouped(hidden, width, experts, rows):
    """The rows spread over the experts as `kedge bench` spreads them, to within a few."""
    product = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if product is None:
        return None
    x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(experts, hidden, width, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([rows * (e + 1) // experts for e in range(experts)], device="cuda", dtype=torch.int32)
    return seconds(lambda: product(x, w, offs=ends))


def dense(hidden, width, rows):
    x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(hidden, width, device="cuda", dtype=torch.bfloat16)
    return seconds(lambda: x @ w)


def main():
    if not torch.cuda.is_available():
        sys.exit("no card")
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "shapes": {}}
    for name, (hidden, width, experts, top, tokens) in SHAPES.items():
        rows = tokens * top
        work = 2e-12 * rows * hidden * width
        line = {"dense_tflops": work / dense(hidden, width, rows)}
        try:
            took = grouped(hidden, width, experts, rows)
            line["grouped_tflops"] = work / took if took else None
        except RuntimeError as error:
            line["grouped_error"] = str(error).splitlines()[0]
        result["shapes"][name] = line
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
