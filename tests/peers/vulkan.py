#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kedge's Vulkan backend beside ggml's, at the same shapes on the same device.

For developers. ggml_vulkan.c says how its half is compiled. The two alternate, case by case, so that what else the
machine does hits both; printed are the least times of each, wall-clock and processor, their ratios, and what was
asked of the ratio.

    tests/peers/vulkan.py --kedge build/test_vulkan_speed --ggml ./ggml_vulkan --rounds 3
"""
import argparse
import os
import re
import subprocess
import sys

# Of ggml's; Kedge's, as test_vulkan_speed prints it; how many times as fast Kedge shall be. A product's gradients are
# A^T B and A B^T.
CASES = [
    ("matmul", "matmul 1024^3", 2),
    ("gradient_first", "matmul 1024^3, A transposed", 20),
    ("gradient_second", "matmul 1024^3, B transposed", 20),
    ("experts", "grouped E 64, K 1024, M 352", 4),
    ("norm", "rms_norm 2048 x 512", 10),
    ("softmax", "softmax 4096 x 4096", 10),
]
LINE = re.compile(r"^(.+?)\s+first .* then\s+([\d.]+) ms \(\s*([\d.]+) ms\)", re.M)


def output(command, environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def keep(least, name, wall, processor):
    old = least.get(name, (wall, processor))
    least[name] = (min(old[0], wall), min(old[1], processor))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kedge", required=True, help="the program test_vulkan_speed")
    parser.add_argument("--ggml", required=True, help="the program made of ggml_vulkan.c")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="of each case in a round")
    options = parser.parse_args()
    runs = str(options.runs)
    print(f"{'':28} {'ggml: wall, processor':>24} {'Kedge: wall, processor':>26} {'ratios':>14}   asked", flush=True)
    for theirs, ours, asked in CASES:
        kedge, ggml = {}, {}
        for _ in range(options.rounds):
            for line in output([options.ggml, runs, theirs], {"GGML_VK_VISIBLE_DEVICES": "0"}).splitlines():
                name, *numbers = line.split()
                if len(numbers) == 2:
                    keep(ggml, name, *map(float, numbers))
            for name, wall, processor in LINE.findall(
                    output([options.kedge], {"KEDGE_TEST_RUNS": runs, "KEDGE_TEST_OP": ours})):
                keep(kedge, name.strip(), float(wall) / 1e3, float(processor) / 1e3)
        if theirs not in ggml or ours not in kedge:
            print(f"{ours:28} not measured", flush=True)
            continue
        a, b = ggml[theirs], kedge[ours]
        print(f"{ours:28} {a[0] * 1e3:10.2f} {a[1] * 1e3:10.2f} ms {b[0] * 1e3:12.2f} {b[1] * 1e3:10.2f} ms "
              f"{a[0] / b[0]:7.1f} {a[1] / b[1]:6.1f}   {asked}", flush=True)


if __name__ == "__main__":
    main()
