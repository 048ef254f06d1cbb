# SPDX-License-Identifier: Apache-2.0
"""Goldens of single operations: inputs, outputs and gradients by PyTorch in float64, written to ops.safetensors.

Usage: make_ops.py [--out FILE]           Pin: torch 2.15.0, one CPU thread. README.md beside this file lists every tensor.

Names are `<op>/<case>/<tensor>`. Reals are F64, indices I32, scalars have shape [1]. Every real input, cotangent and option but hyper_* is
a float32 number widened to float64, so that a float32 kernel reads it without rounding. `d<name>` is the gradient with respect to
<name> of sum(y * dy) for the random cotangent `dy` (a plain sum would hide transposed and zeroed gradients).
make_models.py makes the goldens of whole models.
"""
import argparse
import pathlib

import safetensors.torch as st
import torch
import torch.nn.functional as F

PIN = "2.15.0"
TENSORS = {}


def exact(value):
    """The nearest float32 numbers, in float64."""
    return torch.as_tensor(value, dtype=torch.float64).float().double()


def draw(*shape, scale=1.0):
    """Normal numbers rounded to float32; a leaf that records its gradient."""
    return exact(torch.randn(*shape, generator=GENERATOR, dtype=torch.float64) * scale).requires_grad_()


def put(case, **values):
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            flat = value if isinstance(value, (list, tuple)) else [value]
            whole = all(isinstance(x, (bool, int)) for x in flat)
            value = torch.tensor(flat, dtype=torch.int32) if whole else exact(flat)
        value = value.detach().clone().contiguous()
        TENSORS[f"{case}/{name}"] = value if value.is_floating_point() else value.int()


def put_gradients(case, y, dy, **inputs):
    """Records dy and the gradient of each input under d<name>."""
    gradients = torch.autograd.grad((y * dy).sum(), list(inputs.values()))
    put(case, dy=dy, **inputs, **{f"d{name}": value for name, value in zip(inputs, gradients)})


def rms_norm():
    for name, shape, eps, scale in (("row", (5, 37), 1e-6, 1.0), ("heads", (4, 3, 10), 1e-5, 1.0), ("tiny", (4, 16), 1e-5, 1e-3)):
        x, eps = draw(*shape, scale=scale), exact(eps).item()
        if name == "tiny":
            with torch.no_grad():
                x[1] = 0.0  # a zero row: y is 0 and dx is dy * weight / sqrt(eps)
        weight = exact(1.0 + draw(shape[-1], scale=0.3).detach()).requires_grad_()
        y = F.rms_norm(x, shape[-1:], weight, eps)
        case = f"rms_norm/{name}"
        put(case, y=y, eps=eps)
        put_gradients(case, y, draw(*shape).detach(), x=x, weight=weight)


def rope():
    heads, dim = 3, 10
    for name, interleaved, positions, factor in (("half", False, [0, 1, 2, 3, 0, 1, 63], 1.0),
                                                 ("interleaved", True, [0, 1, 2, 3, 0, 1, 63], 1.25),
                                                 ("far", False, [8191, 5000, 4097, 0], 1.0)):
        inv_freq = exact(10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim))
        if name == "far":
            # Eleven significant bits: the product with a position below 2^13 is exact in float32, so the far angle is no matter of rounding.
            mantissa, exponent = torch.frexp(inv_freq)
            inv_freq = torch.ldexp(torch.round(mantissa * 2**11) / 2**11, exponent)
        positions = torch.tensor(positions)
        tokens = positions.shape[0]
        angles = positions.double()[:, None] * inv_freq
        cos, sin = angles.cos() * factor, angles.sin() * factor
        x = draw(tokens, heads * dim)
        if interleaved:
            pairs = torch.view_as_complex(x.view(tokens, heads, dim // 2, 2))
            y = torch.view_as_real(pairs * torch.complex(cos, sin)[:, None]).reshape(tokens, heads * dim)
        else:
            wide = x.view(tokens, heads, dim)
            turned = torch.cat((-wide[..., dim // 2:], wide[..., :dim // 2]), dim=-1)
            y = (wide * torch.cat((cos, cos), -1)[:, None] + turned * torch.cat((sin, sin), -1)[:, None]).reshape(tokens, heads * dim)
        case = f"rope/{name}"
        put(case, inv_freq=inv_freq, positions=positions, heads=heads, interleaved=int(interleaved), factor=factor, cos=cos, sin=sin, y=y)
        put_gradients(case, y, draw(tokens, heads * dim).detach(), x=x)


def attention():
    # name, heads, kv heads, q/k width, v width, lengths, tokens outside any sequence at the end, scale
    for name, heads, kv, dqk, dv, lengths, outside, scale in (("grouped", 4, 2, 8, 8, [1, 6, 9], 0, 8**-0.5),
                                                              ("outside", 3, 1, 6, 6, [5, 4], 3, 6**-0.5),
                                                              ("sharp", 3, 3, 12, 8, [10, 3], 0, 3.0)):
        tokens = sum(lengths) + outside
        q, k, v = draw(tokens, heads * dqk), draw(tokens, kv * dqk), draw(tokens, kv * dv)
        scale = exact(scale).item()
        segments = torch.full((tokens,), -1)
        outputs, lse, begin, ends = [], [], 0, [0]
        for length in lengths:
            rows = slice(begin, begin + length)
            segments[rows] = begin
            qs = q[rows].view(length, heads, dqk).transpose(0, 1)
            ks = k[rows].view(length, kv, dqk).transpose(0, 1).repeat_interleave(heads // kv, 0)
            vs = v[rows].view(length, kv, dv).transpose(0, 1).repeat_interleave(heads // kv, 0)
            part = F.scaled_dot_product_attention(qs[None], ks[None], vs[None], is_causal=True, scale=scale)[0]
            outputs.append(part.transpose(0, 1).reshape(length, heads * dv))
            scores = (qs @ ks.mT * scale).masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
            assert torch.allclose(part, scores.softmax(-1) @ vs, rtol=1e-12, atol=1e-12)
            lse.append(scores.logsumexp(-1).T)
            begin += length
            ends.append(begin)
        y = torch.cat(outputs + [torch.zeros(outside, heads * dv, dtype=torch.float64)])
        case = f"attention/{name}"
        put(case, heads=heads, kv_heads=kv, scale=scale, segments=segments, cu_seqlens=ends, y=y, lse=torch.cat(lse))
        put_gradients(case, y, draw(tokens, heads * dv).detach(), q=q, k=k, v=v)


def head_loss():
    for name, tokens, width, vocab, scale in (("plain", 7, 12, 29, 0.5), ("large", 5, 9, 17, 12.0)):
        h, weight = draw(tokens, width), draw(vocab, width, scale=scale)
        labels = torch.randint(0, vocab, (tokens,), generator=GENERATOR)
        labels[2] = -1
        labels[3], labels[4] = 0, vocab - 1
        dnll = exact(torch.rand(tokens, generator=GENERATOR, dtype=torch.float64) / tokens)
        dnll[1] = 0.0
        logits = h @ weight.T
        nll = F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
        loss = (nll * dnll).sum()
        dh, dweight = torch.autograd.grad(loss, (h, weight))
        put(f"head_loss/{name}", h=h, weight=weight, labels=labels, logits=logits, lse=logits.logsumexp(-1), nll=nll, dnll=dnll,
            loss=loss.reshape(1), dh=dh, dweight=dweight)


def swiglu():
    gate, up = draw(6, 11, scale=2.0), draw(6, 11)
    with torch.no_grad():
        gate[0, :6] = torch.tensor([0.0, 30.0, -30.0, 100.0, -100.0, -1e-4], dtype=torch.float64).float().double()
    y = F.silu(gate) * up
    put("swiglu/plain", y=y)
    put_gradients("swiglu/plain", y, draw(6, 11).detach(), gate=gate, up=up)


def embed():
    weight, ids = draw(13, 6), torch.tensor([3, 3, 0, 12, 3, 7, 0, 5, 7])
    y = F.embedding(ids, weight)
    put("embed/plain", ids=ids, y=y)
    put_gradients("embed/plain", y, draw(9, 6).detach(), weight=weight)


def gates():
    # The low case has all sigmoids near 1e-26, far below the 1e-20 in the denominator.
    for name, sigmoid, normalise, alpha, epsilon, shift in (("softmax", False, False, 1.0, 0.0, 0.0),
                                                            ("softmax_normalised", False, True, 1.0, 0.0, 0.0),
                                                            ("sigmoid", True, False, 2.446, 0.0, 0.0),
                                                            ("sigmoid_normalised", True, True, 2.446, 1e-20, 0.0),
                                                            ("sigmoid_low", True, True, 2.446, 1e-20, -60.0)):
        tokens, experts, k = 6, 9, 3
        logits = exact(draw(tokens, experts, scale=2.0).detach() + shift).requires_grad_()
        alpha, epsilon = exact(alpha).item(), exact(epsilon).item()
        scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
        bias = draw(experts, scale=0.2).detach() if sigmoid and shift == 0.0 else torch.zeros(experts, dtype=torch.float64)
        ranked = (scores + bias).sort(dim=-1, descending=True)
        gap = (ranked.values[:, :k] - ranked.values[:, 1:k + 1]).min() / ranked.values[:, k].abs().min()
        assert gap > 1e-4, f"gates/{name}: a choice is too close"
        ids = ranked.indices[:, :k]
        chosen = scores.gather(1, ids)
        y = chosen / (chosen.sum(-1, keepdim=True) + epsilon) if normalise else chosen
        y = y * alpha
        case = f"gates/{name}"
        put(case, sigmoid=int(sigmoid), normalise=int(normalise), alpha=alpha, epsilon=epsilon, bias=bias, scores=scores, ids=ids, y=y)
        put_gradients(case, y, draw(tokens, k).detach(), logits=logits)


def experts():
    """The routed part of a mixture-of-experts layer: y_t = sum_k weights_tk * expert_{ids_tk}(x_t). Expert 2 gets no token."""
    tokens, width, inner, count, k = 7, 10, 5, 4, 2
    x, weights = draw(tokens, width), exact(torch.rand(tokens, k, generator=GENERATOR, dtype=torch.float64)).requires_grad_()
    w_gate, w_up, w_down = draw(count, inner, width, scale=0.5), draw(count, inner, width, scale=0.5), draw(count, width, inner, scale=0.5)
    ids = torch.tensor([[0, 1], [1, 0], [3, 1], [1, 3], [0, 3], [1, 0], [1, 3]])
    rows = []
    for t in range(tokens):
        rows.append(sum(weights[t, j] * (w_down[e] @ (F.silu(w_gate[e] @ x[t]) * (w_up[e] @ x[t]))) for j, e in enumerate(ids[t])))
    y = torch.stack(rows)
    put("experts/plain", ids=ids, y=y)
    put_gradients("experts/plain", y, draw(tokens, width).detach(), x=x, weights=weights, w_gate=w_gate, w_up=w_up, w_down=w_down)


def adamw():
    for name, decay in (("decay", 0.1), ("no_decay", 0.0)):
        start = draw(8).detach()
        grads = [draw(8).detach(), draw(8).detach()]
        for index, value in ((0, 0.0), (1, 1e-9), (2, 1e4)):
            grads[0][index] = exact(value)
            grads[1][index] = exact(-value)
        rates, betas = [exact(v).item() for v in (1e-3, 7e-4)], [exact(v).item() for v in (0.9, 0.95)]
        eps, decay = exact(1e-8).item(), exact(decay).item()
        parameter = torch.nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([parameter], lr=rates[0], betas=tuple(betas), eps=eps, weight_decay=decay, foreach=False, fused=False)
        case = f"adamw/{name}"
        put(case, parameter_0=start, beta1=betas[0], beta2=betas[1], eps=eps, decay=decay)
        for step in (1, 2):
            optimizer.param_groups[0]["lr"] = rates[step - 1]
            parameter.grad = grads[step - 1].clone()
            optimizer.step()
            state = optimizer.state[parameter]
            hyper = torch.tensor([rates[step - 1], 1 - betas[0]**step, 1 - betas[1]**step, 0.0], dtype=torch.float64)
            put(case, **{f"grad_{step}": grads[step - 1], f"hyper_{step}": hyper, f"parameter_{step}": parameter,
                         f"m_{step}": state["exp_avg"], f"v_{step}": state["exp_avg_sq"]})


def clip():
    for name, scale, limit in (("above", 2.0, 1.0), ("below", 0.01, 1.0), ("equal", None, 1.0), ("zero", 0.0, 1.0), ("tight", 1.0, 1e-3)):
        parameters = [torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.float64)), torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))]
        grads = [draw(4, 3, scale=scale or 0.0).detach(), draw(5, scale=scale or 0.0).detach()]
        if scale is None:
            grads[1][0] = 1.0  # the norm is the limit: the scale is 1 / (1 + 1e-6), not 1
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad.clone()
        limit = exact(limit).item()
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=False)
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        assert all(torch.allclose(p.grad, g * factor, rtol=1e-14, atol=0.0) for p, g in zip(parameters, grads))
        put(f"clip/{name}", grad_a=grads[0], grad_b=grads[1], max_norm=limit, sum_squares=sum((g * g).sum() for g in grads).reshape(1),
            norm=norm.reshape(1), scale=factor.reshape(1), clipped_a=parameters[0].grad, clipped_b=parameters[1].grad)


def table_rows(rows, experts):
    """Probabilities, rounded to float32 each, so that a row's sum is 1 to within rounding; one of them is 0."""
    table = draw(rows, experts, scale=1.5).detach().softmax(-1)
    table[0, 1] = 0.0
    return exact(table / table.sum(-1, keepdim=True))


def rows_of(index, losses):
    """0 for tokens without a row."""
    return torch.where(index < 0, torch.zeros_like(losses), losses)


def anchor_kl():
    def kl(z, pi):
        log_p = F.log_softmax(z, -1).masked_fill(pi == 0, 0.0)  # F.kl_div is no number where pi is 0 and z is -inf
        return (torch.special.xlogy(pi, pi) - pi * log_p).sum(-1)

    endless = float("-inf")
    for name, z, table, index, known in (("rows", draw(7, 9, scale=2.0), table_rows(3, 9), [2, 0, -1, 1, 0, -1, 2], None),
                                         ("unnormalised", draw(4, 5), exact(table_rows(2, 5) * 0.7), [1, 0, 1, -1], None),
                                         ("direction", [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]], [[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0, 1],
                                          [0.4330396, 0.4742658]),
                                         ("never", [[0.0, 1.0, endless], [endless, 0.0, endless]], [[1.0, 0.0, endless], [endless, 0.0, endless]],
                                          [0, 1], [0.4621172, 0.0])):
        if known:
            z, table = exact(z).requires_grad_(), exact(exact(table).softmax(-1))
        index = torch.tensor(index)
        y = rows_of(index, kl(z, table[index]))
        if known:
            assert torch.allclose(y, torch.tensor(known, dtype=torch.float64), atol=1e-7)
        else:
            log_p = F.log_softmax(z, -1)
            assert torch.allclose(y, rows_of(index, F.kl_div(log_p, table[index], reduction="none").sum(-1)), rtol=1e-13, atol=1e-14)
        case = f"anchor_kl/{name}"
        put(case, table=table, index=index, y=y)
        put_gradients(case, y, draw(len(index)).detach(), z=z)


def anchor_l2():
    for name, floor, scale in (("rows", 1e-8, 2.0), ("floored", 0.1, 1.0), ("far", 1e-8, 60.0)):
        z, table, index, floor = draw(7, 9, scale=scale), table_rows(3, 9), torch.tensor([2, 0, -1, 1, 0, -1, 2]), exact(floor).item()
        want = table[index].clamp(min=floor).log()
        y = rows_of(index, ((z - z.mean(-1, keepdim=True)) - (want - want.mean(-1, keepdim=True))).square().sum(-1))
        case = f"anchor_l2/{name}"
        put(case, table=table, index=index, floor=floor, y=y)
        put_gradients(case, y, draw(7).detach(), z=z)


def logsumexp():
    x = draw(6, 11, scale=3.0)
    with torch.no_grad():
        x[1], x[2], x[3, 4:] = 80.0, -300.0, float("-inf")
    y = torch.logsumexp(x, -1)
    put("logsumexp/rows", y=y)
    put_gradients("logsumexp/rows", y, draw(6).detach(), z=x)


def balance():
    for name, sigmoid, shift, scale in (("softmax", False, 0.0, 2.0), ("sigmoid", True, 0.0, 2.0), ("low", True, -60.0, 1.0), ("lowest", True, -200.0, 3.0)):
        tokens, experts = 8, 6
        z = exact(draw(tokens, experts, scale=scale).detach() + shift).requires_grad_()
        counts = torch.randint(0, 9, (3, experts), generator=GENERATOR).double()
        counts[1] = 0.0  # an empty row: no loss
        index = torch.tensor([0, 2, 1, -1, 2, 0, 0, 1])
        q = F.softmax(F.logsigmoid(z), -1) if sigmoid else F.softmax(z, -1)
        if sigmoid and shift == 0.0:
            assert torch.allclose(q, z.sigmoid() / z.sigmoid().sum(-1, keepdim=True), rtol=1e-13)
        share = (counts / counts.sum(-1, keepdim=True).clamp(min=1.0))[index]
        y = rows_of(index, experts * (share * q).sum(-1))
        case = f"balance/{name}"
        put(case, counts=counts, index=index, sigmoid=int(sigmoid), y=y)
        put_gradients(case, y, draw(tokens).detach(), z=z)


def choice():
    ids = torch.stack([torch.randperm(7, generator=GENERATOR)[:3] for _ in range(12)])
    ids[4], ids[7, 1] = -1, -1
    index = torch.tensor([0, 2, 2, -1, 0, 0, 2, 2, -1, 0, 2, 0])
    groups, experts = 4, 7
    counts = torch.zeros(groups, experts, dtype=torch.float64)
    for group in range(groups):
        chosen = ids[index == group].flatten()
        counts[group] = torch.bincount(chosen[chosen >= 0], minlength=experts)
    table = torch.randint(0, experts, (3, 3), generator=GENERATOR)
    replaced = torch.where(index[:, None] < 0, ids, table[index])
    put("choice/plain", ids=ids, index=index, groups=groups, experts=experts, counts=counts, table=table, replaced=replaced)


def detach():
    x = draw(4, 5)
    y = x * x.detach().square() + x.detach()
    put("detach/plain", y=y)
    put_gradients("detach/plain", y, draw(4, 5).detach(), x=x)


def main():
    global GENERATOR
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / "ops.safetensors")
    options = parser.parse_args()
    if torch.__version__.split("+")[0] != PIN:
        raise SystemExit(f"the pinned torch is {PIN}, found {torch.__version__}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for number, op in enumerate((rms_norm, rope, attention, head_loss, swiglu, embed, gates, experts, adamw, clip, anchor_kl, anchor_l2,
                                 logsumexp, balance, choice, detach)):
        GENERATOR = torch.Generator().manual_seed(77000 + number)  # one stream an op: a new case leaves the others as they were
        op()
    # Logits alone may be -inf: an expert that can never be chosen.
    assert all((torch.isfinite(value) | (value == float("-inf")) & name.endswith("/z")).all() for name, value in TENSORS.items())
    st.save_file(TENSORS, options.out, metadata={"kedge": f"torch {PIN}, float64"})
    print(f"{options.out.name}: {len(TENSORS)} tensors, {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
