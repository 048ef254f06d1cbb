# SPDX-License-Identifier: Apache-2.0
"""What make_models.py knows of each family: transformers' classes, names on disk, which scores choose experts.

The variants themselves are in variants.py; the mathematics, independent of transformers, in forward64.py.
"""
import dataclasses
import re
from collections.abc import Callable

import torch
import transformers

PER_EXPERT = ("{e}.gate_proj.weight", "{e}.up_proj.weight", "{e}.down_proj.weight")


@dataclasses.dataclass
class Family:
    config: type
    model: type
    extra: dict                                # keys of config.json that every variant has
    is_sparse: Callable                        # (config, layer): written out here, not taken from the library
    experts: tuple | None = PER_EXPERT         # names of gate, up and down after "experts."; None: stored as in memory
    block: str = "mlp"                         # the attribute of a layer
    router: str = "gate"                       # the attribute of that block
    rename: tuple = ()                         # (in memory, on disk) patterns


def by_step(config, layer):
    return layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0


def everywhere(config, layer):
    return True


def after_dense(config, layer):
    return layer >= config.first_k_dense_replace


QWEN = dict(hidden_act="silu", max_position_embeddings=64, router_aux_loss_coef=0.0, output_router_logits=False, use_cache=False,
            attention_dropout=0.0, bos_token_id=0, eos_token_id=1, dtype="float32")
# Keys that the published config files have and the native classes keep without using are given, too.
DEEPSEEK = dict(hidden_act="silu", use_cache=False, attention_bias=False, attention_dropout=0.0, bos_token_id=0, eos_token_id=1,
                dtype="float32", moe_layer_freq=1, aux_loss_alpha=0.001, seq_aux=True, ep_size=1, tie_word_embeddings=False)

FAMILIES = {
    "qwen3_moe": Family(transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM, dict(QWEN, attention_bias=False), by_step),
    "qwen2_moe": Family(transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM, QWEN, by_step),
    "olmoe": Family(transformers.OlmoeConfig, transformers.OlmoeForCausalLM,
                    dict(QWEN, attention_bias=False, pad_token_id=None), everywhere),
    "mixtral": Family(transformers.MixtralConfig, transformers.MixtralForCausalLM, QWEN, everywhere,
                      ("{e}.w1.weight", "{e}.w3.weight", "{e}.w2.weight"), rename=((r"\.mlp\.", ".block_sparse_moe."),)),
    "granitemoe": Family(transformers.GraniteMoeConfig, transformers.GraniteMoeForCausalLM, dict(QWEN, attention_bias=False), everywhere,
                         None, "block_sparse_moe", "router",
                         ((r"experts\.gate_up_proj$", "input_linear.weight"), (r"experts\.down_proj$", "output_linear.weight"),
                          (r"router\.weight$", "router.layer.weight"))),
    "deepseek_v2": Family(transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM, dict(DEEPSEEK, scoring_func="softmax"),
                          after_dense),
    "deepseek_v3": Family(transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM,
                          dict(DEEPSEEK, scoring_func="sigmoid", topk_method="noaux_tc", num_nextn_predict_layers=0), after_dense),
}


def of(config):
    return FAMILIES[config.model_type]


def new_model(config):
    model = of(config).model._from_config(config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32)
    return model.eval()


def router_of(model, layer):
    family = of(model.config)
    return getattr(getattr(model.model.layers[layer], family.block), family.router)


def biases_of(model):
    """The correction biases, {name: tensor}: buffers, saved in the files, never trained."""
    return {name: value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")}


def disk_tensors(config, named):
    """Tensors in memory -> names and shapes of the files; in most families experts apart, gate the first rows of gate_up."""
    family, out = of(config), {}
    for name, value in named:
        value = value.detach()
        for pattern, new in family.rename:
            name = re.sub(pattern, new, name)
        stem, _, last = name.rpartition("experts.")
        if family.experts is not None and last == "gate_up_proj":
            width = value.shape[1] // 2
            for e in range(value.shape[0]):
                out[f"{stem}experts." + family.experts[0].format(e=e)] = value[e, :width].contiguous()
                out[f"{stem}experts." + family.experts[1].format(e=e)] = value[e, width:].contiguous()
        elif family.experts is not None and last == "down_proj" and value.dim() == 3:
            for e in range(value.shape[0]):
                out[f"{stem}experts." + family.experts[2].format(e=e)] = value[e].contiguous()
        else:
            out[name] = value.contiguous()
    return out


def choice_of(config, raw, bias):
    """What experts are chosen by [T,E], -inf where a group is left out, and the gap between groups kept and not [T], or None."""
    choice, gap = raw.detach(), None
    if config.model_type == "deepseek_v3":
        choice = raw.detach().sigmoid() + bias
    groups = getattr(config, "n_group", None) or 1
    if groups > 1:
        best = choice.view(len(choice), groups, -1).sort(dim=-1, descending=True).values
        scores = best[..., 0] + best[..., 1] if config.model_type == "deepseek_v3" else best[..., 0]
        order = scores.sort(dim=-1, descending=True)
        gap = (order.values[:, config.topk_group - 1] - order.values[:, config.topk_group])
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order.indices[:, :config.topk_group], True)
        choice = choice.masked_fill(~kept.repeat_interleave(choice.shape[1] // groups, dim=1), float("-inf"))
    return choice, gap
