# SPDX-License-Identifier: Apache-2.0
"""Likelihoods where another model's experts replace a model's own: writes forced.json.

Usage: make_forced.py        (after make_models.py)

torch 2.15.0, transformers 5.23.0, float64, eager. The base is a model of make_models.py. The other one ("post") has its weights, but each
router's row e is the base's row (e + 1) mod E and all query projections are 1.3 times as large. Of every sequence the first half is the prompt;
`nll` are sums of -log p over the other tokens. Keys: base, post: each alone; forced: post with the base's experts, gate weights from its own
logits; converse: base with post's experts; rank1 ...: post with its own experts of the plain pass, the r-th of them replaced by the base's
r-th. An expert that is there already changes places with the one it replaces.
"""
import json
import pathlib

import safetensors.torch as st
import torch
import transformers
from transformers import Qwen3MoeForCausalLM

MODELS = ["qwen3_moe_top2of8", "qwen3_moe_mixed", "qwen3_moe_top8of16"]
HERE = pathlib.Path(__file__).parent


def load(name):
    return Qwen3MoeForCausalLM.from_pretrained(HERE / name, attn_implementation="eager", experts_implementation="eager",
                                               dtype=torch.float32).double().eval()


def routers(model):
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def steer(model):
    """Routers that note what they choose, and take `forced` where it is given."""
    for router in routers(model):
        router.forced = None

        def forward(hidden, router=router):
            logits = hidden.reshape(-1, router.hidden_dim) @ router.weight.T
            probabilities = logits.softmax(-1)
            router.chosen = probabilities.topk(router.top_k, -1).indices
            ids = router.chosen if router.forced is None else router.forced
            weights = probabilities.gather(-1, ids)
            if router.norm_topk_prob:
                weights = weights / weights.sum(-1, keepdim=True)
            return logits, weights, ids
        router.forward = forward
    return model


def nll(model, ids, prompt, forced=None):
    for i, router in enumerate(routers(model)):
        router.forced = None if forced is None else forced[i]
    logp = model(ids[None]).logits[0].log_softmax(-1)
    value = -logp[prompt - 1:-1].gather(-1, ids[prompt:, None]).sum().item()
    return value, [router.chosen for router in routers(model)]


def replaced(own, base, rank):
    rows = []
    for mine, theirs in zip(own.tolist(), base.tolist()):
        expert, before = theirs[rank], mine[rank]
        rows.append([expert if k == rank else before if e == expert else e for k, e in enumerate(mine)])
    return torch.tensor(rows)


@torch.no_grad()
def measure(name):
    base, post = steer(load(name)), steer(load(name))
    for router in routers(post):
        router.weight.copy_(router.weight.roll(-1, 0))
    for layer in post.model.layers:
        layer.self_attn.q_proj.weight.mul_(1.3)
    golden = st.load_file(HERE / name / "golden.safetensors")
    ids, starts = golden["input_ids"].long(), golden["cu_seqlens"].tolist()
    out = []
    for begin, end in zip(starts, starts[1:]):
        if end - begin < 4:
            continue
        row, prompt = ids[begin:end], (end - begin) // 2
        numbers = {}
        numbers["base"], of_base = nll(base, row, prompt)
        numbers["post"], of_post = nll(post, row, prompt)
        numbers["forced"], _ = nll(post, row, prompt, of_base)
        numbers["converse"], _ = nll(base, row, prompt, of_post)
        for rank in range(base.config.num_experts_per_tok):
            numbers[f"rank{rank + 1}"], _ = nll(post, row, prompt, [replaced(a, b, rank) for a, b in zip(of_post, of_base)])
        out.append({"first": begin, "prompt": prompt, "count": end - begin, "nll": numbers})
    return out


def main():
    assert torch.__version__.startswith("2.15.0") and transformers.__version__ == "5.23.0"
    result = {name: measure(name) for name in MODELS}
    (HERE / "forced.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, rows in result.items():
        print(name, {key: round(sum(r["nll"][key] for r in rows), 3) for key in rows[0]["nll"]})


if __name__ == "__main__":
    main()
