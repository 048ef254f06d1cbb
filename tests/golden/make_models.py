# SPDX-License-Identifier: Apache-2.0
"""Tiny random Qwen3-MoE models and what PyTorch computes with them.

Usage: make_models.py [--only NAME] [--out FOLDER]        (FOLDER: this file's by default)

Pins: torch 2.15.0, transformers 5.23.0. Everything is float32 on one CPU thread with eager attention and eager experts; two
runs on one machine write the same bytes, another CPU type may differ in the last bits. README.md beside this file lists
the tensors; make_ops.py makes the goldens of single operations, check_export.py checks what Kedge writes.

Each model is drawn from a seed; a seed is refused (and the next one tried) where any token's k-th and (k+1)-th router logit
are closer than MIN_GAP, at the start or at any of the ten training steps, because a reader with other rounding could
then choose another expert.
"""
import argparse
import json
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import safetensors.torch as st
import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

PINS = {"torch": "2.15.0", "transformers": "5.23.0"}
MIN_GAP = 1e-4
STEPS = 10
OPTIMIZER = {"name": "AdamW", "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0}

# Sizes are odd on purpose: heads * head_dim differs from hidden_size, nothing is a multiple of 16. `lengths` are the
# sequences of the batch and `prompts` how many first tokens of each are no targets. `dead` is (layer, expert): that
# expert is given no token.
VARIANTS = {
    "top2of8": {
        "config": dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                       moe_intermediate_size=12, intermediate_size=36, num_experts=8, num_experts_per_tok=2,
                       norm_topk_prob=True, vocab_size=61, tie_word_embeddings=False, rms_norm_eps=1e-6,
                       rope_theta=10000.0),
        "lengths": [17, 5, 23], "prompts": [6, 0, 9], "dead": (1, 3), "seed": 1000, "sharded": "40KB", "bf16": "20KB",
    },
    "top8of16": {
        "config": dict(hidden_size=28, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
                       moe_intermediate_size=9, intermediate_size=36, num_experts=16, num_experts_per_tok=8,
                       norm_topk_prob=False, vocab_size=67, tie_word_embeddings=True, rms_norm_eps=1e-6,
                       rope_theta=1000000.0),
        "lengths": [1, 26, 15], "prompts": [0, 10, 3], "seed": 2000,
    },
    "mixed": {
        "config": dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, head_dim=6,
                       moe_intermediate_size=10, intermediate_size=36, num_experts=8, num_experts_per_tok=3,
                       norm_topk_prob=True, vocab_size=53, tie_word_embeddings=False, rms_norm_eps=1e-5,
                       rope_theta=10000.0, mlp_only_layers=[1]),
        "lengths": [11, 4, 19, 7], "prompts": [4, 4, 0, 5], "seed": 3000,
    },
    # decoder_sparse_step 2 puts experts in layers 1 and 3, mlp_only_layers takes 1 away again: layer 3 alone is left.
    "step2": {
        "config": dict(hidden_size=12, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3, head_dim=4,
                       moe_intermediate_size=7, intermediate_size=18, num_experts=5, num_experts_per_tok=1,
                       norm_topk_prob=False, vocab_size=31, tie_word_embeddings=False, rms_norm_eps=1e-6,
                       rope_theta=10000.0, decoder_sparse_step=2, mlp_only_layers=[1]),
        "lengths": [13, 9], "prompts": [2, 0], "seed": 4000,
    },
}


def make_config(options):
    options = dict(options)
    theta = options.pop("rope_theta")
    return Qwen3MoeConfig(**options, rope_parameters={"rope_type": "default", "rope_theta": theta}, hidden_act="silu",
                          max_position_embeddings=64, router_aux_loss_coef=0.0, output_router_logits=False, use_cache=False,
                          attention_bias=False, attention_dropout=0.0, bos_token_id=0, eos_token_id=1, dtype="float32")


def is_sparse(config, layer):
    """Whether a layer has experts; written out here so that the golden does not take the library's word for it."""
    return layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0


def make_model(config, seed):
    """Weights drawn so that activations and logits are of order one and routing is decided clearly."""
    model = Qwen3MoeForCausalLM._from_config(config, attn_implementation="eager", experts_implementation="eager",
                                             dtype=torch.float32)
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
            fan_in = weight.shape[-1]
            if weight.dim() == 1:
                weight.copy_(1.0 + 0.2 * noise)
            elif name.endswith("embed_tokens.weight"):
                # A shared offset keeps the router inputs of all tokens in one half-space, as in real models.
                offset = torch.randn(fan_in, generator=generator, dtype=torch.float32)
                weight.copy_((noise + 0.8 * offset) / fan_in**0.5)
            elif name.endswith("mlp.gate.weight"):
                weight.copy_(noise * 2.0 / fan_in**0.5)
            else:
                weight.copy_(noise * 1.2 / fan_in**0.5)
    return model


def make_batch(config, lengths, prompts, seed):
    """ids [T], cu_seqlens [B+1], labels [T]: the label of token t is the id of token t+1 of its sequence, or -1."""
    generator = torch.Generator().manual_seed(seed + 500000)
    ids = torch.randint(2, config.vocab_size, (sum(lengths),), generator=generator)
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    labels = torch.full_like(ids, -1)
    for begin, end, prompt in zip(starts, starts[1:], prompts):
        first = begin + max(prompt - 1, 0)  # the last prompt token predicts the first target
        labels[first:end - 1] = ids[first + 1:end]
    return ids, starts, labels


def forward(model, ids, starts):
    """Each sequence alone, no padding. Returns logits [T,V], {layer: (router logits, weights, ids)} and hidden states [L+1][T,H].

    Router values come from hooks on the gate modules; the raw logits are recomputed from the gate's input and must agree.
    """
    config = model.config
    captured = {}

    def hook(layer):
        def store(module, inputs, outputs):
            raw, weights, chosen = outputs
            again = inputs[0].reshape(-1, config.hidden_size) @ module.weight.T
            assert (raw - again).abs().max().item() < 1e-5, "the router does not return raw logits"
            captured.setdefault(layer, []).append((raw, weights, chosen))
        return store

    sparse = [layer for layer in range(config.num_hidden_layers) if is_sparse(config, layer)]
    for layer, block in enumerate(model.model.layers):
        assert hasattr(block.mlp, "experts") == (layer in sparse)
    hooks = [model.model.layers[layer].mlp.gate.register_forward_hook(hook(layer)) for layer in sparse]
    logits, hidden = [], []
    try:
        for begin, end in zip(starts, starts[1:]):
            output = model(input_ids=ids[None, begin:end], use_cache=False, output_hidden_states=True)
            logits.append(output.logits[0])
            hidden.append([state[0] for state in output.hidden_states])
    finally:
        for handle in hooks:
            handle.remove()
    routers = {layer: tuple(torch.cat(parts) for parts in zip(*captured[layer])) for layer in sparse}
    return torch.cat(logits), routers, [torch.cat(states) for states in zip(*hidden)]


def token_losses(logits, labels):
    """-log p of each label [T], 0 where there is none; divide the sum by the number of labels in the whole batch."""
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none")


def min_gap(routers, k):
    gap = float("inf")
    for raw, _, _ in routers.values():
        best = raw.sort(dim=-1, descending=True).values
        gap = min(gap, (best[:, k - 1] - best[:, k]).min().item())
        # Equal probabilities inside the k would leave the order of the ids open.
        if k > 1:
            gap = min(gap, (best[:, :k - 1] - best[:, 1:k]).min().item())
    return gap


def disk_tensors(named):
    """Fused in-memory tensors -> the names and shapes of the files: experts apart, gate the first rows of gate_up."""
    out = {}
    for name, value in named:
        value = value.detach()
        if name.endswith("experts.gate_up_proj"):
            stem, width = name[:-len("gate_up_proj")], value.shape[1] // 2
            for j in range(value.shape[0]):
                out[f"{stem}{j}.gate_proj.weight"] = value[j, :width].contiguous()
                out[f"{stem}{j}.up_proj.weight"] = value[j, width:].contiguous()
        elif name.endswith("experts.down_proj"):
            stem = name[:-len("down_proj")]
            for j in range(value.shape[0]):
                out[f"{stem}{j}.down_proj.weight"] = value[j].contiguous()
        else:
            out[name] = value.contiguous()
    return out


def kill_expert(model, ids, starts, layer, expert):
    """Points a gate row away from every token of the batch: least squares to a logit of -6."""
    gate = model.model.layers[layer].mlp.gate
    seen = []
    handle = gate.register_forward_hook(lambda module, inputs, outputs: seen.append(inputs[0].reshape(-1, inputs[0].shape[-1])))
    with torch.no_grad():
        for begin, end in zip(starts, starts[1:]):
            model(input_ids=ids[None, begin:end], use_cache=False)
        handle.remove()
        h = torch.cat(seen).double()
        target = torch.full((h.shape[0], 1), -6.0, dtype=torch.float64)
        gate.weight[expert] = torch.linalg.lstsq(h, target, driver="gelsd").solution[:, 0].float()


def train(model, ids, starts, labels):
    """Ten AdamW steps on the same batch: losses before each step, norms before clipping, the smallest gap on the way."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    o = OPTIMIZER
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": o["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
                                  lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False, fused=False)
    losses, norms, gap = [], [], float("inf")
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits, routers, _ = forward(model, ids, starts)
        loss = token_losses(logits, labels).sum() / (labels >= 0).sum()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), o["max_grad_norm"], foreach=False).item())
        losses.append(loss.item())
        gap = min(gap, min_gap(routers, model.config.num_experts_per_tok))
        optimizer.step()
    with torch.no_grad():
        logits, routers, _ = forward(model, ids, starts)
    return losses, norms, min(gap, min_gap(routers, model.config.num_experts_per_tok)), logits


def copy_of(model, noise_seed=None, dtype=torch.float32):
    """A second model with the same weights, each off by up to a rounding error if `noise_seed` is given, or rounded to `dtype`."""
    other = Qwen3MoeForCausalLM._from_config(model.config, attn_implementation="eager", experts_implementation="eager",
                                             dtype=torch.float32)
    other.eval()
    generator = torch.Generator().manual_seed(noise_seed or 0)
    with torch.no_grad():
        for (_, to), (_, weight) in zip(other.named_parameters(), model.named_parameters()):
            to.copy_(weight.to(dtype).float())
            if noise_seed is not None:
                to.mul_(1.0 + (torch.rand(to.shape, generator=generator) - 0.5) * 2.0**-22)
    return other


def values_of(ids, starts, labels, logits, routers):
    """Tensors that each golden file has."""
    out = {"input_ids": ids.int(), "cu_seqlens": torch.tensor(starts, dtype=torch.int32), "labels": labels.int(),
           "logits": logits.detach()}
    for layer, (raw, weights, chosen) in routers.items():
        assert (weights.diff(dim=-1) <= 0).all(), "ids are not in descending order of probability"
        out[f"router_logits.{layer}"] = raw.detach()
        out[f"topk_ids.{layer}"] = chosen.int()
        out[f"topk_weights.{layer}"] = weights.detach()
    return out


def write_golden(folder, tensors, meta):
    """One metadata entry only: the writer keeps no order among several, and the bytes should repeat."""
    meta = dict(meta, pins=PINS, dtype="float32", attn_implementation="eager", experts_implementation="eager", threads=1)
    with open(folder / "golden.json", "w", encoding="utf-8") as file:
        json.dump(meta, file, indent=1)
        file.write("\n")
    st.save_file({name: value.clone().contiguous() for name, value in tensors.items()}, folder / "golden.safetensors",
                 metadata={"kedge": json.dumps(meta, separators=(",", ":"))})


def check_disk_names(model, folder):
    """The names of our gradients must be the names in the file, and the values must agree under that mapping."""
    stored = st.load_file(folder / "model.safetensors")
    ours = disk_tensors(model.named_parameters())
    assert stored.keys() == ours.keys(), stored.keys() ^ ours.keys()
    assert all(torch.equal(stored[name], ours[name]) for name in stored)


def attempt(name, spec, seed):
    """One seed: (model, tensors, meta), or None where a routing decision is too close or the wrong expert is idle."""
    config = make_config(spec["config"])
    k = config.num_experts_per_tok
    model = make_model(config, seed)
    ids, starts, labels = make_batch(config, spec["lengths"], spec["prompts"], seed)
    if "dead" in spec:
        kill_expert(model, ids, starts, *spec["dead"])
    logits, routers, hidden = forward(model, ids, starts)
    counts = {layer: torch.bincount(chosen.flatten(), minlength=config.num_experts).tolist()
              for layer, (_, _, chosen) in routers.items()}
    idle = {(layer, e) for layer, row in counts.items() for e, n in enumerate(row) if n == 0}
    if idle != ({spec["dead"]} if "dead" in spec else set()):
        return None
    losses = token_losses(logits, labels)
    loss = losses.sum() / (labels >= 0).sum()
    loss.backward()
    gradients = disk_tensors((n, p.grad) for n, p in model.named_parameters())
    trained = copy_of(model)
    step_losses, norms, gap, last = train(trained, ids, starts, labels)
    if gap < MIN_GAP:
        return None
    assert step_losses[0] == loss.item()
    rough = [train(copy_of(model, noise_seed), ids, starts, labels) for noise_seed in (1, 2, 3)]
    tensors = values_of(ids, starts, labels, logits, routers)
    tensors["token_losses"] = losses.detach()
    tensors["loss"] = loss.detach().reshape(1)
    for layer, state in enumerate(hidden):
        tensors[f"hidden.{layer}"] = state.detach()
    for parameter, gradient in gradients.items():
        tensors[f"grad.{parameter}"] = gradient
    tensors["train.losses"] = torch.tensor(step_losses)
    tensors["train.grad_norms"] = torch.tensor(norms)
    tensors["train.logits"] = last
    meta = {
        "model": f"qwen3_moe_{name}", "seed": seed, "lengths": spec["lengths"], "prompts": spec["prompts"],
        "moe_layers": sorted(routers), "tokens_per_expert": {str(layer): row for layer, row in counts.items()},
        "min_gap": min_gap(routers, k), "min_gap_training": gap, "labels": int((labels >= 0).sum()),
        "logits_std": logits.std().item(), "loss": loss.item(), "optimizer": OPTIMIZER,
        "train_losses": step_losses, "train_grad_norms": norms,
        # What three runs from weights off by one rounding error differ by: no reader can be asked to be closer than this.
        "rounding_floor": {
            "train_losses": max(abs(a - b) for r in rough for a, b in zip(r[0], step_losses)),
            "train_grad_norms": max(abs(a - b) for r in rough for a, b in zip(r[1], norms)),
            "train_logits": max((r[3] - last).abs().max().item() for r in rough),
        },
    }
    if "dead" in spec:
        meta["idle_expert"] = {"layer": spec["dead"][0], "expert": spec["dead"][1]}
    return model, tensors, meta


def make_bf16(model, spec, name, out):
    """The same model rounded to bfloat16, in two shards; None if a decision is too close after the rounding."""
    folder = out / f"qwen3_moe_{name}_bf16"
    rounded = copy_of(model, dtype=torch.bfloat16)
    ids, starts, labels = make_batch(model.config, spec["lengths"], spec["prompts"], spec["used_seed"])
    with torch.no_grad():
        logits, routers, _ = forward(rounded, ids, starts)
    gap = min_gap(routers, model.config.num_experts_per_tok)
    if gap < MIN_GAP:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    rounded.to(torch.bfloat16).save_pretrained(folder, max_shard_size=spec["bf16"])
    assert len(list(folder.glob("model-*.safetensors"))) == 2
    meta = {"model": folder.name, "seed": spec["used_seed"], "lengths": spec["lengths"], "prompts": spec["prompts"],
            "moe_layers": sorted(routers), "min_gap": gap, "stored": "bfloat16, widened to float32 before the forward pass"}
    write_golden(folder, values_of(ids, starts, labels, logits, routers), meta)
    return True


def make_variant(name, spec, out):
    for seed in range(spec["seed"], spec["seed"] + 200):
        made = attempt(name, spec, seed)
        spec["used_seed"] = seed
        if made is not None and ("bf16" not in spec or make_bf16(made[0], spec, name, out)):
            break
    else:
        raise SystemExit(f"{name}: no seed with clear routing")
    model, tensors, meta = made
    folder = out / f"qwen3_moe_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    check_disk_names(model, folder)
    if "sharded" in spec:
        model.save_pretrained(folder / "sharded", max_shard_size=spec["sharded"])
        assert len(list((folder / "sharded").glob("model-*.safetensors"))) >= 2
    write_golden(folder, tensors, meta)
    print(f"{folder.name}: seed {seed}, loss {meta['loss']:.6f} -> {meta['train_losses'][-1]:.6f}, norm {meta['train_grad_norms'][0]:.3f}, "
          f"gap {meta['min_gap']:.2e}/{meta['min_gap_training']:.2e}, floor {meta['rounding_floor']['train_losses']:.1e}, "
          f"logits {meta['logits_std']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=VARIANTS)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    options = parser.parse_args()
    found = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    if found != PINS:
        raise SystemExit(f"pinned versions are {PINS}, found {found}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    for name, spec in VARIANTS.items():
        if options.only in (None, name):
            make_variant(name, spec, options.out)


if __name__ == "__main__":
    main()
