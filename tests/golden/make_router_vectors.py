# SPDX-License-Identifier: Apache-2.0
"""Writes router_vectors.json: gates, losses and gradients of one router, for `kedge gradcheck --vectors`.

numpy, float64, every gradient written out by hand from the formulas of docs/mathematics.md; central differences of each
loss are compared with them before anything is written. Another size: --size T,E,K,d,S.
"""
import argparse
import json
import pathlib

import numpy

EPS, C, BETA, ALPHA, FLOOR = 0.1, 4.0, 1.25, 1.7, 1e-8


def softmax(z):
    e = numpy.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(z):
    return 1 / (1 + numpy.exp(-z))


def center(v):
    return v - v.mean(axis=-1, keepdims=True)


def best(scores, k):
    """Indices of the k largest of each row, best first, ties to the lower index."""
    return numpy.argsort(-scores, axis=-1, kind="stable")[..., :k]


class Router:
    def __init__(self, size, seed):
        self.T, self.E, self.K, self.d, self.S = size
        r = numpy.random.default_rng(seed)
        self.X = r.normal(size=(self.T, self.d))
        self.W = r.normal(size=(self.E, self.d)) * 1.2 / numpy.sqrt(self.d)
        self.W0 = self.W + r.normal(size=self.W.shape) * 0.3 / numpy.sqrt(self.d)
        self.a = r.normal(size=self.E) * 0.2
        self.G = r.normal(size=(self.T, self.E))
        self.span = r.integers(-1, self.S, size=self.T)
        self.pi = softmax(1.5 * r.normal(size=(self.S, self.E)))
        if self.E > 1:
            self.pi[-1, self.E // 2] = 0
        self.pi /= self.pi.sum(axis=-1, keepdims=True)
        c = numpy.clip(self.pi, EPS / self.E, C / self.E)
        self.clipped = c
        self.bias = center(numpy.log(c))
        self.inside = self.span >= 0
        self.rows = numpy.where(self.inside, self.span, 0)
        self.n = max(int(self.inside.sum()), 1)

    # ---- gates
    def gates(self, z, ids, kind, normalise):
        p = sigmoid(z) if kind == "sigmoid" else softmax(z)
        s = numpy.take_along_axis(p, ids, -1)
        if normalise:
            s = s / (s.sum(axis=-1, keepdims=True) + (1e-20 if kind == "sigmoid" else 0))
        g = numpy.zeros_like(z)
        numpy.put_along_axis(g, ids, s * (ALPHA if kind == "sigmoid" else 1), -1)
        return g

    def gate_gradient(self, z, ids, kind, normalise):
        g = self.gates(z, ids, kind, normalise)
        chosen = numpy.zeros(z.shape, bool)
        numpy.put_along_axis(chosen, ids, True, -1)
        G = numpy.where(chosen, self.G, 0)
        M = (G * g).sum(axis=-1, keepdims=True)
        if kind == "sigmoid":
            s = sigmoid(z)
            D = numpy.where(chosen, s, 0).sum(axis=-1, keepdims=True) + 1e-20
            return numpy.where(chosen, (ALPHA * G - M) / D * s * (1 - s), 0)
        if normalise:
            return numpy.where(chosen, g * (G - M), 0)
        return g * G - softmax(z) * M

    def choice(self, z, kind):
        return best(sigmoid(z) + self.a if kind == "sigmoid" else z, self.K)

    def rpb(self, kind, normalise):
        z = self.X @ self.W.T + BETA * numpy.where(self.inside[:, None], self.bias[self.rows], 0)
        return self.gate_case(z, self.choice(z, kind), kind, normalise) | {"biased_logits": z}

    def hard(self, kind, normalise):
        z = self.X @ self.W.T
        order = [sorted(range(self.E), key=lambda e: (-c[e], -p[e], e))[: self.K] for c, p in zip(self.clipped, self.pi)]
        ids = numpy.where(self.inside[:, None], numpy.array(order)[self.rows], self.choice(z, kind))
        return self.gate_case(z, ids, kind, normalise)

    def gate_case(self, z, ids, kind, normalise):
        dz = self.gate_gradient(z, ids, kind, normalise)
        loss = lambda y: (numpy.take_along_axis(self.G * self.gates(y, ids, kind, normalise), ids, -1)).sum()
        self.confirm(loss, z, dz)
        return {"topk": ids, "gates": self.gates(z, ids, kind, normalise), "dL_dz": dz, "dL_dW": dz.T @ self.X}

    # ---- losses
    def confirm(self, loss, x, gradient):
        """Central differences at a few entries."""
        r = numpy.random.default_rng(1)
        for _ in range(12):
            at = tuple(r.integers(0, n) for n in x.shape)
            f = []
            for step in (-2, -1, 1, 2):
                y = x.copy()
                y[at] += step * 1e-3
                f.append(loss(y))
            want = (8 * (f[2] - f[1]) - (f[3] - f[0])) / 12e-3
            assert abs(want - gradient[at]) <= 1e-8 * max(1, abs(gradient).max()), (at, want, gradient[at])

    def masked(self, v):
        return numpy.where(self.inside.reshape(-1, *[1] * (v.ndim - 1)), v, 0)

    def loss_case(self, loss, dz, **more):
        z = self.X @ self.W.T
        self.confirm(loss, z, dz)
        return {"loss": loss(z), "dz": dz, "dW": dz.T @ self.X} | more

    def lbl(self, kind):
        z = self.X @ self.W.T
        q_of = lambda y: softmax(-numpy.logaddexp(0, -y) if kind == "sigmoid" else y)
        f = numpy.bincount(best(z, self.K)[self.inside].ravel(), minlength=self.E) / (self.n * self.K)
        loss = lambda y: self.E * (f * self.masked(q_of(y)).sum(axis=0) / self.n).sum()
        q = q_of(z)
        m = (f * q).sum(axis=-1, keepdims=True)
        dz = self.E / self.n * q * (f - m) * (1 - sigmoid(z) if kind == "sigmoid" else 1)
        return self.loss_case(loss, self.masked(dz), f=f, P=self.masked(q).sum(axis=0) / self.n)

    def zloss(self):
        z = self.X @ self.W.T
        lse = lambda y: numpy.log(numpy.exp(y).sum(axis=-1))
        dz = 2 / self.n * lse(z)[:, None] * softmax(z)
        return self.loss_case(lambda y: self.masked(lse(y) ** 2).sum() / self.n, self.masked(dz))

    def kl(self):
        z = self.X @ self.W.T
        pi = self.pi[self.rows]
        log_pi = numpy.log(numpy.where(pi > 0, pi, 1))
        loss = lambda y: self.masked((pi * (log_pi - numpy.log(softmax(y)))).sum(axis=-1)).sum() / self.n
        return self.loss_case(loss, self.masked((softmax(z) - pi) / self.n))

    def logit_l2(self):
        z = self.X @ self.W.T
        want = center(numpy.log(numpy.maximum(self.pi[self.rows], FLOOR)))
        loss = lambda y: self.masked(((center(y) - want) ** 2).sum(axis=-1)).sum() / self.n
        return self.loss_case(loss, self.masked(2 / self.n * (center(z) - want)))

    def router_l2(self):
        return {"loss_term": 1e4 / 2 * ((self.W - self.W0) ** 2).sum(), "dW": 1e4 * (self.W - self.W0)}

    def cases(self):
        ways = (("sigmoid_norm", "sigmoid", True), ("softmax", "softmax", False), ("softmax_norm", "softmax", True))
        out = {"rpb_" + n: self.rpb(k, norm) for n, k, norm in ways}
        out |= {"hard_" + n: self.hard(k, norm) for n, k, norm in ways}
        return out | {"lbl_softmax": self.lbl("softmax"), "lbl_sigmoid": self.lbl("sigmoid"), "zloss": self.zloss(), "kl": self.kl(),
                      "logit_l2": self.logit_l2(), "router_l2_lambda1e4_2layers_this_layer": self.router_l2()}

    def clear(self):
        """Whether no choice is so near that float32 might make another."""
        z = self.X @ self.W.T
        biased = z + BETA * numpy.where(self.inside[:, None], self.bias[self.rows], 0)
        for s in (z, biased, sigmoid(z) + self.a, sigmoid(biased) + self.a):
            order = -numpy.sort(-s, axis=-1)[:, : self.K + 1]
            if self.K < self.E and numpy.min(order[:, :-1] - order[:, 1:]) < 1e-5:
                return False
        return True


def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value.tolist() if isinstance(value, (numpy.ndarray, numpy.generic)) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="11,12,4,6,3")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "router_vectors.json")
    args = parser.parse_args()
    size = tuple(int(n) for n in args.size.split(","))
    router = next(r for r in (Router(size, seed) for seed in range(100)) if r.clear())
    T, E, K, d, _ = size
    data = {"dims": {"T": T, "E": E, "K": K, "d": d}, "X": router.X, "W": router.W, "W0": router.W0, "e_score_correction_bias": router.a,
            "dL_dgate": router.G, "span": router.span, "eps": EPS, "C": C, "beta": BETA, "alpha": ALPHA, "log_floor": FLOOR,
            "pi": router.pi, "bias": router.bias, "base_logits": router.X @ router.W0.T, "cases": router.cases()}
    args.out.write_text(json.dumps(plain(data)) + "\n")


main()
