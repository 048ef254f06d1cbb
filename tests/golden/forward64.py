# SPDX-License-Identifier: Apache-2.0
"""The families' forward passes in numpy and float64, straight from a model directory's files.

Shares nothing with transformers: make_models.py compares the two before it writes a golden. It reads the tensors
under their names on disk, experts apart or fused, and both spellings of config.json. `trap` replaces one piece of the
mathematics by a well-known mistake; how far the logits move then tells whether a golden would notice that mistake.
"""
import json
import math
import pathlib

import numpy as np
import safetensors.torch as st

LATENT_EPS = 1e-6  # the norms inside multi-head latent attention, whatever rms_norm_eps says


def read_tensors(path):
    return {name: value.double().numpy() for name, value in st.load_file(path).items()}


def rms(x, weight, eps):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def swiglu(x, gate, up, down):
    g = x @ gate.T
    return (g * sigmoid(g) * (x @ up.T)) @ down.T


def mscale(factor, m):
    return 1.0 if factor <= 1 else 1.0 + 0.1 * m * math.log(factor)


class Model:
    """`tensors`: other values under the same names (default: those of model.safetensors). `trap`: see each family. `options`: names
    of options in which transformers is not followed: norm_topk_prob as in the code beside DeepSeek's weights, latent_norm_eps by the config."""

    def __init__(self, folder, config_name="config.json", tensors=None, trap="", options=()):
        folder = pathlib.Path(folder)
        self.c = json.loads((folder / config_name).read_text())
        self.w = read_tensors(folder / "model.safetensors") if tensors is None else tensors
        self.trap, self.options = trap, options
        self.kind = self.c["model_type"]
        rope = self.c.get("rope_parameters") or dict(self.c.get("rope_scaling") or {}, rope_theta=self.c["rope_theta"])
        self.rope = dict(rope, type=rope.get("rope_type", rope.get("type", "default")))
        self.latent = "kv_lora_rank" in self.c
        self.heads = self.c["num_attention_heads"]
        self.kv_heads = self.c["num_key_value_heads"]
        self.width = self.c["qk_rope_head_dim"] if self.latent else self.c.get("head_dim") or self.c["hidden_size"] // self.heads
        self.eps = self.c["rms_norm_eps"]
        self.clip_gap = math.inf  # how near a value came to clip_qkv, where the gradient has a step

    # Positions

    def angles(self, length):
        """cos and sin [length, width/2], YaRN's factor in them."""
        d, theta, r = self.width, self.rope["rope_theta"], self.rope
        i = np.arange(d // 2)
        frequency = theta ** (-2.0 * i / d)
        factor = 1.0
        if r["type"] == "yarn" and self.trap != "no_yarn":
            def bound(rotations):
                return d * math.log(r["original_max_position_embeddings"] / (2 * math.pi * rotations)) / (2 * math.log(theta))
            low = max(math.floor(bound(r.get("beta_fast", 32))), 0)
            high = min(math.ceil(bound(r.get("beta_slow", 1))), d - 1)
            ramp = np.clip((i - low) / (high - low), 0, 1)
            frequency = frequency * ((1 - ramp) + ramp / r["factor"])
            factor = mscale(r["factor"], r["mscale"]) / mscale(r["factor"], r["mscale_all_dim"])
            if self.trap == "mscale_not_divided":
                factor = mscale(r["factor"], r["mscale"])
        angle = np.arange(length)[:, None] * frequency
        return factor * np.cos(angle), factor * np.sin(angle)

    def rotate(self, x, cos, sin):
        """x [length, heads, width]: pairs (2i, 2i+1) in DeepSeek's families, (i, i+width/2) in the others."""
        interleaved = self.latent != (self.trap == "other_rope_pairs")
        cos, sin, half = cos[:, None], sin[:, None], self.width // 2
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
        out = np.empty_like(x)
        first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
        out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
        return out

    # Attention

    def attend(self, q, k, v, scale):
        """Causal; q [T,heads,d], k [T,kv,d], v [T,kv,dv] -> [T, heads*dv]."""
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * scale
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        return np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(q.shape[0], -1)

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w and self.trap != "no_bias" else y

    def attention(self, x, at):
        if self.latent:
            return self.latent_attention(x, at)
        t, c = x.shape[0], self.c
        q, k, v = (self.linear(x, f"{at}.{part}_proj") for part in "qkv")
        if self.kind == "olmoe":
            clip = c["clip_qkv"] if c.get("clip_qkv") is not None and self.trap != "no_clip" else np.inf
            if self.trap == "clip_before_norm":
                q, k = np.clip(q, -clip, clip), np.clip(k, -clip, clip)
            if self.trap != "norm_each_head":
                q, k = (rms(y, self.w[f"{at}.{part}_norm.weight"], self.eps) for y, part in ((q, "q"), (k, "k")))
            else:
                q, k = (rms(y.reshape(t, -1, self.width), self.w[f"{at}.{part}_norm.weight"].reshape(-1, self.width), self.eps)
                        .reshape(t, -1) for y, part in ((q, "q"), (k, "k")))
            if clip < np.inf:
                self.clip_gap = min(self.clip_gap, *(float(abs(abs(y) - clip).min()) for y in (q, k, v)))
            v = np.clip(v, -clip, clip)
            if self.trap != "clip_before_norm":
                q, k = np.clip(q, -clip, clip), np.clip(k, -clip, clip)
        q, k, v = q.reshape(t, self.heads, -1), k.reshape(t, self.kv_heads, -1), v.reshape(t, self.kv_heads, -1)
        if self.kind == "qwen3_moe":
            q, k = (rms(y, self.w[f"{at}.{part}_norm.weight"], self.eps) for y, part in ((q, "q"), (k, "k")))
        cos, sin = self.angles(t)
        scale = self.width**-0.5
        if self.kind == "granitemoe" and self.trap != "scale_by_head_dim":
            scale = c["attention_multiplier"]
        return self.linear(self.attend(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, scale), f"{at}.o_proj")

    def latent_attention(self, x, at):
        t, c = x.shape[0], self.c
        nope, turn, value, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        eps = self.eps if self.trap == "latent_eps_of_config" or "latent_norm_eps" in self.options else LATENT_EPS
        if c.get("q_lora_rank"):
            q = self.linear(rms(self.linear(x, f"{at}.q_a_proj"), self.w[f"{at}.q_a_layernorm.weight"], eps), f"{at}.q_b_proj")
        else:
            q = self.linear(x, f"{at}.q_proj")
        q = q.reshape(t, self.heads, nope + turn)
        down = self.linear(x, f"{at}.kv_a_proj_with_mqa")
        kv = self.linear(rms(down[:, :rank], self.w[f"{at}.kv_a_layernorm.weight"], eps), f"{at}.kv_b_proj")
        kv = kv.reshape(t, self.heads, nope + value)
        cos, sin = self.angles(t)
        k_turned = self.rotate(down[:, None, rank:], cos, sin).repeat(self.heads, axis=1)
        q = np.concatenate([q[..., :nope], self.rotate(q[..., nope:], cos, sin)], -1)
        k = np.concatenate([kv[..., :nope], k_turned], -1)
        scale = (nope + turn) ** -0.5
        if self.rope["type"] == "yarn" and self.rope.get("mscale_all_dim"):
            scale *= mscale(self.rope["factor"], self.rope["mscale_all_dim"]) ** {"no_mscale": 0, "mscale_once": 1}.get(self.trap, 2)
        return self.linear(self.attend(q, k, kv[..., nope:], scale), f"{at}.o_proj")

    # Experts

    def route(self, logits, bias):
        """Chosen ids [T,K] in descending order of what they were chosen by, and their weights."""
        c, k = self.c, self.c["num_experts_per_tok"]
        scores = sigmoid(logits) if self.kind == "deepseek_v3" else softmax(logits)
        choice = scores if bias is None or self.trap == "no_bias_in_choice" else scores + bias
        groups = c.get("n_group") or 1
        if groups > 1 and c.get("topk_method") != "greedy":
            parts = choice.reshape(len(choice), groups, -1)
            best = np.sort(parts, -1)
            by_sum = (self.kind == "deepseek_v3") != (self.trap == "other_group_score")
            group_scores = best[..., -1] + best[..., -2] if by_sum else best[..., -1]
            kept = np.zeros(group_scores.shape, bool)
            np.put_along_axis(kept, np.argsort(-group_scores, -1)[:, :c["topk_group"]], True, -1)
            masked = 0.0 if self.trap == "groups_masked_by_zero" else -np.inf
            if self.trap != "no_groups":
                choice = np.where(kept[..., None], parts, masked).reshape(choice.shape)
        ids = np.argsort(-choice, -1, kind="stable")[:, :k]
        weights = np.take_along_axis(scores if self.trap != "bias_in_weights" else scores + bias, ids, -1)
        # The native class of deepseek_v2 never divides by the sum, whatever norm_topk_prob says.
        divide = {"mixtral": True, "granitemoe": True, "deepseek_v2": False}.get(self.kind, c.get("norm_topk_prob"))
        if self.trap == "other_normalisation":
            divide = not divide
        if "norm_topk_prob" in self.options:
            divide = c["norm_topk_prob"] and k > 1
            if divide and self.kind == "deepseek_v2":
                return ids, weights / (weights.sum(-1, keepdims=True) + 1e-20)
        if divide:
            weights = weights / weights.sum(-1, keepdims=True)
        if self.trap != "no_routed_scaling":
            weights = weights * c.get("routed_scaling_factor", 1.0)
        return ids, weights

    def expert(self, at, e):
        """gate, up [I,H] and down [H,I] of one expert, from whichever layout the file has."""
        w = self.w
        if f"{at}.input_linear.weight" in w or f"{at}.experts.gate_up_proj" in w:
            granite = f"{at}.input_linear.weight" in w
            both = w[f"{at}.input_linear.weight" if granite else f"{at}.experts.gate_up_proj"][e]
            return (*np.split(both, 2), w[f"{at}.output_linear.weight" if granite else f"{at}.experts.down_proj"][e])
        if f"{at}.experts.{e}.w1.weight" in w:
            return tuple(w[f"{at}.experts.{e}.w{i}.weight"] for i in (1, 3, 2))
        return tuple(w[f"{at}.experts.{e}.{part}_proj.weight"] for part in ("gate", "up", "down"))

    def mlp(self, x, at):
        return swiglu(x, *(self.w[f"{at}.{part}_proj.weight"] for part in ("gate", "up", "down")))

    def block(self, x, layer):
        """The second half of a layer, and (logits, ids, weights) where it has experts."""
        at = f"model.layers.{layer}.mlp"
        if f"{at}.gate_proj.weight" in self.w:
            return self.mlp(x, at), None
        if f"{at}.gate.weight" not in self.w:
            at = f"model.layers.{layer}.block_sparse_moe"
        router = f"{at}.router.layer.weight" if self.kind == "granitemoe" else f"{at}.gate.weight"
        logits = x @ self.w[router].T
        ids, weights = self.route(logits, self.w.get(f"{at}.gate.e_score_correction_bias"))
        y = np.zeros_like(x)
        for e in np.unique(ids):
            t, slot = np.nonzero(ids == e)
            y[t] += weights[t, slot, None] * swiglu(x[t], *self.expert(at, e))
        if f"{at}.shared_experts.gate_proj.weight" in self.w and self.trap != "no_shared":
            y += self.mlp(x, f"{at}.shared_experts")
        if f"{at}.shared_expert.gate_proj.weight" in self.w:
            gate = 1.0 if self.trap == "shared_without_gate" else sigmoid(x @ self.w[f"{at}.shared_expert_gate.weight"].T)
            y += gate * self.mlp(x, f"{at}.shared_expert")
        return y, (logits, ids, weights)

    # Whole model

    def sequence(self, ids):
        c, granite = self.c, self.kind == "granitemoe"

        def multiplier(key):
            return c[key] if granite and self.trap != f"no_{key}" else 1.0
        x = self.w["model.embed_tokens.weight"][ids] * multiplier("embedding_multiplier")
        hidden, routers = [x], {}
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            x = x + multiplier("residual_multiplier") * self.attention(
                rms(x, self.w[f"{at}.input_layernorm.weight"], self.eps), f"{at}.self_attn")
            y, routing = self.block(rms(x, self.w[f"{at}.post_attention_layernorm.weight"], self.eps), layer)
            x = x + multiplier("residual_multiplier") * y
            hidden.append(x)
            if routing is not None:
                routers[layer] = routing
        hidden[-1] = rms(x, self.w["model.norm.weight"], self.eps)
        head = self.w["model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"]
        return hidden[-1] @ head.T / multiplier("logits_scaling"), routers, hidden

    def run(self, ids, starts):
        """Each sequence alone. logits [T,V], {layer: (router logits, ids, weights)}, hidden states [L+1][T,H]."""
        parts = [self.sequence(ids[begin:end]) for begin, end in zip(starts, starts[1:])]
        routers = {layer: tuple(np.concatenate(rows) for rows in zip(*(routing[layer] for _, routing, _ in parts)))
                   for layer in parts[0][1]}
        return np.concatenate([p[0] for p in parts]), routers, [np.concatenate(h) for h in zip(*(p[2] for p in parts))]

    def loss(self, ids, starts, labels):
        logits = self.run(ids, starts)[0]
        top = logits.max(-1)
        nll = np.log(np.exp(logits - top[:, None]).sum(-1)) + top - np.take_along_axis(logits, np.maximum(labels, 0)[:, None], -1)[:, 0]
        return nll[labels >= 0].mean()


def gradient_error(folder, ids, starts, labels, gradients, seed, options=()):
    """Largest |finite difference - <gradient, u>| / |gradient| over tensors; u: the gradient's direction plus a random one.

    A gradient that is zero throughout must be so for the finite difference, too.
    """
    tensors = read_tensors(pathlib.Path(folder) / "model.safetensors")
    generator, worst, step = np.random.default_rng(seed), 0.0, 1e-5
    for name, gradient in gradients.items():
        g = gradient.double().numpy()
        norm = float(np.sqrt((g * g).sum()))
        u = generator.standard_normal(g.shape)
        u /= np.sqrt((u * u).sum())
        if norm > 0:
            u += g / norm
        losses = [Model(folder, tensors=dict(tensors, **{name: tensors[name] + sign * step * u}), options=options).loss(ids, starts, labels)
                  for sign in (1, -1)]
        error = float(abs((losses[0] - losses[1]) / (2 * step) - (g * u).sum()))
        worst = max(worst, error / norm if norm > 0 else error)
    return worst
