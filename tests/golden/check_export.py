# SPDX-License-Identifier: Apache-2.0
"""Loads a model directory that Kedge wrote with transformers and compares its logits with stored ones.

Usage: check_export.py MODEL_DIR FILE.safetensors [--tolerance 1e-5]

The file holds `input_ids` or `tokens`, integers [T] (with `cu_seqlens` [B+1] where it is several sequences laid end to end) or
[B,T], and `logits` [T,V] or [B,T,V]. Each sequence runs alone in float32 with eager attention and eager experts. Prints the
largest error relative to the largest stored logit; exit code 1 if it is above the tolerance or not a number, or if the
directory lacks a tensor, has one too many or holds one of another shape; 2 if the files cannot be compared.

A developer's check, not part of the test suite: it needs torch and transformers (make_models.py has the pins).
"""
import argparse
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import safetensors.torch as st
import torch
from transformers import AutoModelForCausalLM


def refuse(message):
    print(f"check_export: {message}", file=sys.stderr)
    raise SystemExit(2)


def read_sequences(path):
    """The id sequences of a file and its logits, both cut per sequence."""
    stored = st.load_file(path)
    name = next((n for n in ("input_ids", "tokens") if n in stored), None)
    if name is None or "logits" not in stored:
        refuse(f"{path}: has no tensor input_ids or tokens, or no logits")
    ids, logits = stored[name].long(), stored["logits"].float()
    if logits.shape[:-1] != ids.shape:
        refuse(f"{path}: {name} is {list(ids.shape)} but logits are {list(logits.shape)}")
    if ids.dim() == 2:
        return list(ids), list(logits)
    if ids.dim() != 1:
        refuse(f"{path}: {name} has rank {ids.dim()}, expected 1 or 2")
    ends = stored["cu_seqlens"].tolist() if "cu_seqlens" in stored else [0, ids.shape[0]]
    if ends[0] != 0 or ends[-1] != ids.shape[0] or any(b <= a for a, b in zip(ends, ends[1:])):
        refuse(f"{path}: cu_seqlens {ends} do not cut {ids.shape[0]} tokens")
    spans = list(zip(ends, ends[1:]))
    return [ids[a:b] for a, b in spans], [logits[a:b] for a, b in spans]


def load(folder):
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                         experts_implementation="eager", output_loading_info=True)
    faults = {kind: list(names) for kind, names in report.items() if names}
    if faults:
        print(f"{folder}: {faults}")
        raise SystemExit(1)
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    sequences, stored = read_sequences(options.file)
    model = load(options.model)
    error, largest = 0.0, 0.0
    with torch.no_grad():
        for ids, expected in zip(sequences, stored):
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            if logits.shape != expected.shape:
                refuse(f"the model gives logits {list(logits.shape)}, the file has {list(expected.shape)}")
            difference = (logits - expected).abs().max().item()
            error = difference if difference != difference else max(error, difference)
            largest = max(largest, expected.abs().max().item())
            if error != error:
                break
    relative = error / largest if largest > 0 else error
    good = relative <= options.tolerance  # false for NaN
    print(f"{options.model}: max relative error {relative:.3e} over {sum(map(len, sequences))} tokens, "
          f"tolerance {options.tolerance:.0e}: {'ok' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
