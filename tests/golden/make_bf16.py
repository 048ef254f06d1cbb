# SPDX-License-Identifier: Apache-2.0
"""What transformers computes in bfloat16 with the models of make_models.py.

Usage: make_bf16.py [--only NAME]     (after make_models.py; writes golden.bf16.safetensors into each model's folder)

The tokens are those of golden.safetensors. Where bfloat16 itself moves transformers' logits further than a cosine of 0.999 from
float32, others are drawn: no reader could be asked to be closer.

Same pins, one CPU thread, eager attention and experts. The router's dtype is the class's own: the DeepSeek families compute
it in float32 from bfloat16 hidden states, the others round its logits to bfloat16. README.md lists the tensors.

`margin` says how clear a choice is: the distance between the k-th and the (k+1)-th expert, in steps of bfloat16 at the token's
largest router logit. Behind 1 step the rounding of the logits alone may exchange the two. Where scores are sigmoids, a
step is as large as it gets there: a quarter of the logit's; where groups are chosen by sums of two scores, twice that.
`noise` [1] of a layer is the largest error, in the same steps, that bfloat16 makes in transformers' own router logits
against its float32: a choice whose margin is below some multiple of it hangs on rounding there as anywhere.
"""
import argparse
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import safetensors.torch as st
import torch

from families import FAMILIES, biases_of, choice_of, of, router_of
from make_models import check_pins, family_name, make_batch
from variants import VARIANTS

COSINE = 0.999  # of what transformers computes in bfloat16 with what it computes in float32


def step_of(raw):
    """[T]: a step of bfloat16 at each token's largest router logit."""
    return torch.exp2(torch.floor(torch.log2(raw.float().abs().max(dim=-1).values)) - 7)


def margin_of(config, raw, bias):
    """[T]: how many steps of bfloat16 lie between what is chosen and what is not."""
    raw, step = raw.float(), step_of(raw)
    if config.model_type == "deepseek_v3":
        step = step / 4
    choice, groups, k = *choice_of(config, raw, bias), config.num_experts_per_tok
    best = choice.sort(dim=-1, descending=True).values
    margin = (best[:, k - 1] - best[:, k]) / step
    if groups is not None:
        margin = torch.minimum(margin, groups / (2 * step if config.model_type == "deepseek_v3" else step))
    return margin


def forward(model, ids, starts):
    """Each sequence alone. Logits [T,V] and {layer: (router logits, weights, ids)}, in the model's dtype."""
    config, seen, hooks, logits = model.config, {}, [], []
    for layer in range(config.num_hidden_layers):
        if of(config).is_sparse(config, layer):
            hooks.append(router_of(model, layer).register_forward_hook(
                lambda module, inputs, outputs, layer=layer: seen.setdefault(layer, []).append(outputs)))
    with torch.no_grad():
        for begin, end in zip(starts, starts[1:]):
            logits.append(model(input_ids=ids[None, begin:end], use_cache=False).logits[0])
    for hook in hooks:
        hook.remove()
    return torch.cat(logits), {layer: tuple(torch.cat(values) for values in zip(*parts)) for layer, parts in seen.items()}


def make(folder, name, spec):
    exact, model = (FAMILIES[family_name(name)].model.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager",
                                                                     dtype=dtype).eval() for dtype in (torch.float32, torch.bfloat16))
    assert all(p.dtype == torch.bfloat16 for p in model.parameters()) and all(b.dtype == torch.float32 for b in biases_of(model).values())
    golden, config = st.load_file(folder / "golden.safetensors"), model.config
    ids, starts = golden["input_ids"].long(), golden["cu_seqlens"].tolist()
    for redrawn in range(100):
        logits, routers = forward(model, ids, starts)
        exact_logits, exact_routers = forward(exact, ids, starts)
        cosine = torch.nn.functional.cosine_similarity(logits.double().flatten(), exact_logits.double().flatten(), dim=0).item()
        if cosine >= COSINE:
            break
        ids, starts, _ = make_batch(config, spec["lengths"], spec["prompts"], spec["seed"] + redrawn)
    else:
        raise SystemExit(f"{name}: bfloat16 itself is too coarse")
    tensors = {"input_ids": ids.int(), "cu_seqlens": torch.tensor(starts, dtype=torch.int32), "logits": logits}
    for layer, (raw, _, chosen) in routers.items():
        tensors[f"router_logits.{layer}"] = raw
        error = (raw.float() - exact_routers[layer][0].float()).abs().max(dim=-1).values / step_of(raw)
        tensors[f"noise.{layer}"] = error.max().reshape(1)
        tensors[f"topk_ids.{layer}"] = chosen.sort(dim=-1).values.int()
        tensors[f"margin.{layer}"] = margin_of(config, raw, getattr(router_of(model, layer), "e_score_correction_bias", None))
    st.save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "golden.bf16.safetensors", metadata={"format": "pt"})
    margins = torch.cat([value for key, value in tensors.items() if key.startswith("margin.")])
    print(f"{name}: cosine with float32 {cosine:.6f} (redrawn {redrawn} times), choices {len(margins)}, "
          f"margins below 1: {(margins < 1).sum()}, 2: {(margins < 2).sum()}, 4: {(margins < 4).sum()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=VARIANTS)
    options = parser.parse_args()
    check_pins()
    for name, spec in VARIANTS.items():
        if options.only in (None, name):
            make(pathlib.Path(__file__).resolve().parent / name, name, spec)


if __name__ == "__main__":
    main()
