#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every comparison of Kedge with its peers on this CPU in one run, and a table of what was asked and what was measured.

For developers, on a machine that does nothing else: about ten minutes on two cores. Needs torch and transformers; ggml
and llama.cpp where they are (see ggml.py and llama.py). A comparison during which others kept more than --busy cores
at work is made once more, and the quieter one counts; the table shows the load beside each. 2 threads unless it says
otherwise.

    tests/peers/bench_all.py --kedge build/kedge --ggml FOLDER --ggml-libraries FOLDER
"""
import argparse
import statistics
import sys
import time
import types

import bench
import ggml
import llama


def settings(options, **other):
    common = {"kedge": options.kedge, "dtype": "bf16", "shape": "laptop", "threads": options.threads, "rounds": 3,
              "seconds": 0.7, "least": 3, "experts": ["eager", "batched_mm", "grouped_mm"], "cpu": options.cpu,
              "ggml": options.ggml, "ggml_libraries": options.ggml_libraries, "llama_python": options.llama_python,
              "verbose": False}
    return types.SimpleNamespace(**{**common, **other})


def quietly(options, run):
    """Rows of a comparison, of the quieter of two where the first was not quiet."""
    rows = run() or []
    rows = rows if isinstance(rows, list) else [rows]
    if not rows or max(row["load"] for row in rows) <= options.busy:
        return rows
    again = run()
    again = again if isinstance(again, list) else [again]
    return min(rows, again, key=lambda r: max(row["load"] for row in r))


def best(rows):
    """The row of the fastest peer."""
    return min(rows, key=lambda row: row["ratio"])


class Table:
    def __init__(self):
        self.rows = []

    def add(self, name, asked, row):
        self.rows.append((name, asked, row))

    def print(self):
        print(f"\n{'':46} {'kedge':>10} {'peer':>10} {'unit':9} {'asked':>6} {'ratio':>6}  load")
        for name, asked, row in self.rows:
            print(f"{name:46} {row['kedge']:10.1f} {row['peer']:10.1f} {row['unit']:9} "
                  f"{asked or '':>6} {row['ratio']:6.2f}  {row['load']:.1f}{'' if not asked or row['ratio'] >= asked else '  less'}")


def steps(options, table):
    for dtype in ("bf16", "f32"):
        # Without batched_mm, which copies the weights for every token and takes many times as long here.
        o = settings(options, dtype=dtype, rounds=3 if dtype == "bf16" else 2, experts=["eager", "grouped_mm"])
        rows = quietly(options, lambda o=o: bench.step(o, bench.Kedge(o)))
        table.add(f"training step, {dtype}, eager", 8, best([r for r in rows if "eager" in r["case"]]))
        table.add(f"training step, {dtype}, best ({best(rows)['case'].split(', ', 1)[1]})", 3, best(rows))


def memory(options, table):
    o = settings(options, experts=["eager"])
    table.add("training memory, bf16, eager (peer / kedge)", 1, bench.memory(o, bench.Kedge(o))[0])


def generation(options, table):
    for dtype in ("bf16", "f32"):
        o = settings(options, dtype=dtype, rounds=2)
        row = best(quietly(options, lambda o=o: bench.generate(o, bench.Kedge(o))))
        table.add(f"generation, {dtype}, transformers", 10, row)
        for row in quietly(options, lambda o=o: llama.compare(o)):
            table.add(f"generation, {dtype}, llama.cpp", 1.2, row)


def products(options, table):
    asked = {"grouped forward": 1.3, "grouped input gradient": 1.3, "grouped weight gradient": 1.8}
    for shape in ("laptop", "qwen3", "moonlight"):
        o = settings(options, shape=shape, rounds=3 if shape == "laptop" else 2, seconds=0.3)
        for row in quietly(options, lambda o=o: bench.products(o, bench.Kedge(o))):
            table.add(f"{row['case']}, oneDNN", asked[row["case"].split(", ")[1]], row)


def experts_of_ggml(options, table):
    for dtype, asked in (("f32", 2), ("bf16", 8)):
        o = settings(options, dtype=dtype, rounds=2, seconds=0.3)
        for row in quietly(options, lambda o=o: ggml.compare(o)):
            table.add(row["case"], asked, row)


def layer(options, table):
    # One run of each: batched_mm would copy the weights for every token.
    o = settings(options, shape="moonlight", rounds=1, seconds=0, least=1, experts=["eager", "grouped_mm"])
    row = best(quietly(options, lambda: bench.layer(o, bench.Kedge(o))))
    table.add(f"{row['case']}, forward and backward", 2, row)


def threads(options, table):
    """Two threads beside one, of Kedge alone."""
    def scale(part, *more):
        one, two, start = [], [], bench.cpu_times()
        for _ in range(3):
            one.append(1 / bench.Kedge(settings(options, threads=1)).bench(part, *more)[0]["seconds"])
            two.append(1 / bench.Kedge(settings(options, threads=2)).bench(part, *more)[0]["seconds"])
        return {"case": part, "kedge": statistics.median(two), "peer": statistics.median(one), "unit": "runs/s",
                "ratio": statistics.median(a / b for a, b in zip(two, one)), "load": bench.load_since(start)}

    for name, arguments in (("training step", ["step"]), ("laptop layer", ["layer"])):
        table.add(f"{name}, 2 threads / 1, bf16", 1.7, quietly(options, lambda a=arguments: scale(*a))[0])


def main():
    parts = {"steps": steps, "generation": generation, "threads": threads, "products": products,
             "ggml": experts_of_ggml, "memory": memory, "layer": layer}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of " + ", ".join(parts) + " (all)")
    parser.add_argument("--kedge", default="build/kedge", help="the program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ggml", help="folder of ggml's sources")
    parser.add_argument("--ggml-libraries", help="folder of its libraries")
    parser.add_argument("--llama-python", default=sys.executable, metavar="COMMAND", help="runs llama.cpp's side")
    parser.add_argument("--busy", type=float, default=0.2, help="cores of others above which a comparison is repeated")
    parser.add_argument("--cpu", action="store_true", help="processor time in place of the clock's")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(parts):
        parser.error("no part " + ", ".join(sorted(unknown)))
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, oneDNN of this torch, "
          f"{options.threads} threads", flush=True)
    table, start = Table(), time.monotonic()
    for name, part in parts.items():
        if not options.parts or name in options.parts:
            part(options, table)
    table.print()
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
