# SPDX-License-Identifier: Apache-2.0
"""Where implementations of a family differ: what the other one computes with models of make_models.py.

Usage: make_options.py        (after make_models.py; writes golden.options.safetensors into the folders of OPTIONS)

Same pins as make_models.py. transformers' own classes with one piece exchanged, and forward64.py must agree. Float32, tensors as in
golden.safetensors: inputs, routing, logits, loss and gradients; the metadata has the option as Kedge takes it.
"""
import pathlib

import safetensors.torch as st
import torch

from families import FAMILIES, disk_tensors, of, router_of
from make_models import TRAP, check_float64, check_pins, family_name, forward, min_gap, token_losses, values_of

OPTIONS = {"deepseek_v2_group": "norm_topk_prob=remote", "deepseek_v3_moonlight": "latent_norm_eps=config"}


def eps_of_config(model):
    """As vLLM, SGLang and Megatron do: rms_norm_eps in the norms inside latent attention, too."""
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            assert module.variance_epsilon == 1e-6 != model.config.rms_norm_eps
            module.variance_epsilon = model.config.rms_norm_eps


def norm_as_remote(model):
    """As modeling_deepseek.py beside DeepSeek-V2's weights does: normalised, or else scaled."""
    config = model.config
    assert config.norm_topk_prob and config.num_experts_per_tok > 1 and config.routed_scaling_factor != 1

    def normalise(module, inputs, outputs):
        raw, weights, chosen = outputs
        weights = weights / config.routed_scaling_factor
        return raw, weights / (weights.sum(-1, keepdim=True) + 1e-20), chosen
    for layer in range(config.num_hidden_layers):
        if of(config).is_sparse(config, layer):
            router_of(model, layer).register_forward_hook(normalise)


def make(folder, name, option):
    model = FAMILIES[family_name(name)].model.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager",
                                                             dtype=torch.float32).eval()
    (norm_as_remote if option.startswith("norm") else eps_of_config)(model)
    golden = st.load_file(folder / "golden.safetensors")
    ids, starts, labels = golden["input_ids"].long(), golden["cu_seqlens"].tolist(), golden["labels"].long()
    logits, routers, _ = forward(model, ids, starts)
    loss = token_losses(logits, labels).sum() / (labels >= 0).sum()
    loss.backward()
    tensors = values_of(ids, starts, labels, logits, routers) | {"loss": loss.detach().reshape(1)}
    for parameter, gradient in disk_tensors(model.config, ((n, p.grad) for n, p in model.named_parameters())).items():
        tensors[f"grad.{parameter}"] = gradient
    moved = (tensors["logits"] - golden["logits"]).abs().max().item()
    gap = min_gap(model, routers)
    assert moved > TRAP and gap > 1e-5, (moved, gap)
    found = check_float64(folder, {}, tensors, options=[option.split("=")[0]])["float64_error"]
    st.save_file({key: value.clone().contiguous() for key, value in tensors.items()}, folder / "golden.options.safetensors",
                 metadata={"model_options": option})
    print(f"{name}: {option} moves a logit by {moved:.3f}, gap {gap:.1e}, float64 {found}", flush=True)


def main():
    check_pins()
    for name, option in OPTIONS.items():
        make(pathlib.Path(__file__).resolve().parent / name, name, option)


if __name__ == "__main__":
    main()
