#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kedge's forward product of experts beside ggml's mul_mat_id on this CPU: Moonlight's shape, 512 tokens.

For developers. Builds tests/peers/ggml_cpu.c against ggml's headers and its libraries ggml-cpu and ggml-base; without
them a line says so. Rounds of the two alternate.

    tests/peers/ggml.py --kedge build/kedge --ggml FOLDER --ggml-libraries FOLDER --dtype f32 --threads 2
"""
import argparse
import os
import subprocess
import tempfile

import bench

HIDDEN, WIDTH, EXPERTS, TOP, TOKENS = 2048, 1408, 64, 6, 512


def build(options, folder):
    """The harness, or None where ggml is not there."""
    here, program = os.path.dirname(os.path.abspath(__file__)), os.path.join(folder, "ggml_cpu")
    if not options.ggml or not os.path.exists(os.path.join(options.ggml, "include", "ggml.h")):
        print("products beside ggml: not run, --ggml names no folder of its sources")
        return None
    libraries = options.ggml_libraries or os.path.join(options.ggml, "build", "src")
    command = ["cc", "-O2", "-D_GNU_SOURCE", "-I" + os.path.join(options.ggml, "include"),
               os.path.join(here, "ggml_cpu.c"), "-o", program, "-L" + libraries, "-Wl,-rpath," + libraries,
               "-lggml-cpu", "-lggml-base"]
    return program if subprocess.run(command, check=False).returncode == 0 else None


def compare(options):
    with tempfile.TemporaryDirectory() as folder:
        program = build(options, folder)
        if not program:
            return None
        kedge, ours, theirs, start = bench.Kedge(options), [], [], bench.cpu_times()
        flops = 2e-9 * TOKENS * TOP * HIDDEN * WIDTH
        for _ in range(options.rounds):
            lines = kedge.bench("products", "--shape", "moonlight", "--tokens", str(TOKENS))
            line = next(x for x in lines if x["case"] == "grouped forward")
            ours.append(flops / line["cpu_seconds" if options.cpu else "seconds"])
            out = subprocess.run([program, options.dtype, str(options.threads), str(options.seconds), str(HIDDEN),
                                  str(WIDTH), str(EXPERTS), str(TOP), str(TOKENS)], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout.split()
            theirs.append(flops / float(out[1 if options.cpu else 0]))
    return bench.report(f"moonlight, 512 tokens, ggml, {options.dtype}", ours, theirs, "GFLOP/s",
                        bench.load_since(start))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kedge", default="build/kedge", help="the program")
    parser.add_argument("--ggml", help="folder of ggml's sources")
    parser.add_argument("--ggml-libraries", help="folder of its libraries (build/src in its sources)")
    parser.add_argument("--dtype", default="bf16", choices=["f32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1, help="of each side in a round")
    parser.add_argument("--cpu", action="store_true", help="processor time in place of the clock's")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
