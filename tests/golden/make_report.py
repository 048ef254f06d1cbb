# SPDX-License-Identifier: Apache-2.0
"""Writes report_statistics.json: intervals and tests of models/report/statistics.h by NumPy and SciPy.

The bootstrap draws with the generator of models/text/random.h, written again here, so that its ends are the same
numbers; the ends of a bootstrap with NumPy's generator and many more resamples stand beside them.
Usage: python make_report.py report_statistics.json
"""
import json
import sys

import numpy as np
from scipy import stats

MASK = (1 << 64) - 1
RESAMPLES, SEED = 10000, 20260


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Random:
    def __init__(self, seed, stream):
        inner = mix((seed + 0x9E3779B97F4A7C15) & MASK)
        self.key = mix(inner ^ ((stream + 1) * 0xD1342543DE82EF95 & MASK))
        self.counter = 0

    def below(self, n):
        self.counter += 1
        draw = mix((self.key + self.counter * 0x9E3779B97F4A7C15) & MASK)
        return ((draw >> 32) * n) >> 32


def drawn(groups):
    random = Random(SEED, 0)
    means = np.empty(RESAMPLES)
    for r in range(RESAMPLES):
        picked = []
        for _ in groups:
            group = groups[random.below(len(groups))]
            picked.append(np.mean([group[random.below(len(group))] for _ in group]))
        means[r] = np.mean(picked)
    return means


def drawn_by_numpy(groups, resamples=200000):
    rng = np.random.default_rng(1)
    means = [g[rng.integers(0, len(g), (resamples, len(groups), len(g)))].mean(2) for g in map(np.asarray, groups)]
    which = rng.integers(0, len(groups), (resamples, len(groups)))
    total = np.zeros(resamples)
    for place in range(len(groups)):
        total += np.stack([m[:, place] for m in means], 1)[np.arange(resamples), which[:, place]]
    return total / len(groups)


def case(groups):
    groups = [list(map(float, g)) for g in groups if len(g)]
    base = np.array([np.mean(g) for g in groups])
    means = drawn(groups)
    low, high = np.percentile(means, [2.5, 97.5])
    loose = np.percentile(drawn_by_numpy(groups), [2.5, 97.5])
    p = min(1, 2 * (1 + min((means <= 0).sum(), (means >= 0).sum())) / (1 + RESAMPLES))
    result = {"groups": groups, "mean": base.mean(), "low": low, "high": high, "p": p,
              "numpy_low": loose[0], "numpy_high": loose[1]}
    if len(groups) > 1:
        test = stats.ttest_1samp(base, 0)
        ends = test.confidence_interval(0.95)
        result.update(t_low=ends.low, t_high=ends.high, t_p=test.pvalue)
    return result


def holm(p):
    p = np.asarray(p, float)
    adjusted = np.empty_like(p)
    for i in range(len(p)):
        smaller = [j for j in range(len(p)) if (p[j], j) <= (p[i], i)]
        adjusted[i] = max(min(1, (len(p) - sum((p[k], k) < (p[j], j) for k in range(len(p)))) * p[j]) for j in smaller)
    return adjusted.tolist()


def main(path):
    rng = np.random.default_rng(7)
    shapes = [[3, 3], [3, 3, 3, 3], [5] * 6, [3, 1, 2], [4], [1, 1, 1, 1, 1]]
    cases = []
    for number, shape in enumerate(shapes):
        effect = [0.03, 0.02, 0, -0.1, 0.5, 0][number]
        cases.append(case([np.round(effect + rng.normal(0, 0.02) + rng.normal(0, 0.01, n), 4) for n in shape]))
    lists = [[0.01, 0.04, 0.03, 0.005], [0.5, 0.5, 0.001], [0.2], np.round(rng.uniform(0, 0.2, 12), 4).tolist()]
    data = {
        "bootstrap": cases,
        "holm": [{"p": list(map(float, p)), "adjusted": holm(p)} for p in lists],
        "student": [{"t": t, "degrees": d, "p": float(2 * stats.t.sf(abs(t), d)), "t95": float(stats.t.ppf(0.975, d))}
                    for t in (0.1, 1, 2.5, 12, -40) for d in (1, 2, 3, 5, 29)],
        "wilson": [{"right": k, "items": n, "low": float(ci.low), "high": float(ci.high)}
                   for k, n in ((0, 10), (3, 10), (500, 1000), (999, 1000), (1, 1))
                   for ci in [stats.binomtest(k, n).proportion_ci(0.95, "wilson")]],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


main(sys.argv[1])
