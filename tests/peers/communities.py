# SPDX-License-Identifier: Apache-2.0
"""Compares Kedge's communities, scores, divergences and null graphs with networkx, scikit-learn, igraph, leidenalg and
scipy on random graphs, among them graphs without edges, with isolated nodes, in several parts, of one block, and full of
ties. Prints the largest differences; the exit status is 1 where one is too large.

usage: communities.py LIBKEDGE.SO [GRAPHS]        (pip install numpy scipy networkx scikit-learn igraph leidenalg)
"""
import ctypes as C
import math
import random
import sys
import warnings

import igraph
import leidenalg
import networkx as nx
import numpy as np
import scipy.spatial.distance
import scipy.stats
import sklearn.metrics as skm

warnings.filterwarnings("ignore")
lib = C.CDLL(sys.argv[1])
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 200
U32, U64, F64 = C.c_uint32, C.c_uint64, C.c_double


class Graph(C.Structure):
    _fields_ = [("nodes", U32), ("edges", U32), ("capacity", U32), ("ends", C.POINTER(U32)), ("weights", C.POINTER(F64))]


class Scores(C.Structure):
    _fields_ = [("nodes", U32), ("nmi", F64), ("ami", F64), ("ari", F64)]


class Coactivation(C.Structure):
    _fields_ = [("experts", U32), ("topk", U32), ("tokens", U64), ("total", U64), ("counts", C.POINTER(U64)),
                ("pairs", C.POINTER(U32))]


class Null(C.Structure):
    _fields_ = [("experts", U32), ("total", U64), ("share", C.POINTER(F64))]


class Random(C.Structure):
    _fields_ = [("key", U64), ("counter", U64)]


lib.kedge_message.restype = C.c_char_p
lib.kedge_random_binomial.restype = U64
lib.kedge_random_binomial.argtypes = [C.POINTER(Random), U64, F64]
lib.kedge_pairs_threshold.argtypes = [C.POINTER(U32), U32, F64, C.POINTER(Graph), C.POINTER(U32)]
lib.kedge_communities_detect.argtypes = [C.POINTER(Graph), C.c_int, F64, U64, C.POINTER(U32), C.POINTER(F64)]
lib.kedge_communities_modularity.argtypes = [C.POINTER(Graph), F64, C.POINTER(U32), C.POINTER(F64)]
lib.kedge_partition_compare.argtypes = [C.POINTER(U32), U32, C.POINTER(U32), U32, C.c_void_p, C.POINTER(Scores)]


def call(function, *arguments):
    if function(*arguments):
        raise SystemExit(f"{function.__name__}: {lib.kedge_message().decode()}")


def array(kind, values):
    return (kind * max(len(values), 1))(*values)


largest = {}


def difference(name, ours, theirs, limit):
    """Keeps the largest difference of a kind; NaN must meet NaN."""
    d = 0.0 if math.isnan(ours) and math.isnan(theirs) else abs(ours - theirs)
    d = math.inf if math.isnan(d) else d
    n, most, _ = largest.get(name, (0, 0.0, 0.0))
    largest[name] = (n + 1, max(most, d), limit)


# ---- Graphs

def random_pairs(kind, r):
    """Upper triangle of counts of a random kind."""
    n = r.randint(2, 40)
    blocks = [r.randrange(1 if kind == "one block" else r.randint(2, 5)) for _ in range(n)]
    pairs = []
    for i in range(n):
        for j in range(i + 1, n):
            same = blocks[i] == blocks[j]
            if kind == "no edges":
                w = 0
            elif kind == "one block":
                w = r.randint(50, 60)
            elif kind == "ties":
                w = r.choice([0, 1, 2])
            elif kind == "parts":
                w = r.randint(1, 100) if same else 0
            elif kind == "isolated":
                w = 0 if i % 3 == 0 else r.randint(0, 40) * (3 if same else 1)
            else:
                w = r.randint(0, 30) + (r.randint(0, 100) if same else 0)
            pairs.append(w)
    return n, pairs


def threshold(n, pairs, rho):
    """The kept pairs by sorting all of them."""
    m = max(1, math.floor(rho * n * (n - 1) / 2 + 0.5))
    places = [(i, j) for i in range(n) for j in range(i + 1, n)]
    order = sorted((k for k in range(len(pairs)) if pairs[k]), key=lambda k: (-pairs[k], places[k]))[:m]
    return [(*places[k], pairs[k]) for k in sorted(order)]


def quality(graph, labels):
    blocks = {}
    for v, c in enumerate(labels):
        blocks.setdefault(c, set()).add(v)
    return nx.community.modularity(graph, blocks.values(), weight="weight")


def check_scores(n, a, b):
    s = Scores()
    call(lib.kedge_partition_compare, array(U32, a), n, array(U32, b), n, None, C.byref(s))
    difference("NMI, scikit-learn", s.nmi, skm.normalized_mutual_info_score(a, b), 1e-12)
    difference("AMI, scikit-learn", s.ami, skm.adjusted_mutual_info_score(a, b), 1e-9)
    difference("ARI, scikit-learn", s.ari, skm.adjusted_rand_score(a, b), 1e-12)
    difference("NMI, igraph", s.nmi, igraph.compare_communities(a, b, method="nmi"), 1e-12)


def check_graph(kind, r, gaps):
    n, pairs = random_pairs(kind, r)
    rho = r.choice([0.05, 0.1, 0.2, 0.5, 1.0])
    graph, least = Graph(), U32()
    call(lib.kedge_pairs_threshold, array(U32, pairs), n, rho, C.byref(graph), C.byref(least))
    ours = [(graph.ends[2 * e], graph.ends[2 * e + 1], int(graph.weights[e])) for e in range(graph.edges)]
    difference("kept edges, sorting", 0.0, float(ours != threshold(n, pairs, rho)), 0)
    peer = nx.Graph()
    peer.add_nodes_from(range(n))
    peer.add_weighted_edges_from(ours)
    ig = igraph.Graph(n, [(i, j) for i, j, _ in ours])
    weights = [w for _, _, w in ours]
    found = []
    for detector in (0, 1):
        best = -math.inf
        for seed in range(8):
            labels, q = (U32 * n)(), F64()
            call(lib.kedge_communities_detect, C.byref(graph), detector, 1.0, seed, labels, C.byref(q))
            found.append(list(labels))
            best = max(best, q.value) if ours else math.nan
            if not ours:
                difference("Q without edges, not defined", q.value, math.nan, 0)
                difference("singletons without edges", 0.0, float(list(labels) != list(range(n))), 0)
                continue
            difference("Q, networkx", q.value, quality(peer, labels), 1e-12)
            difference("Q, igraph", q.value, ig.modularity(list(labels), weights=weights), 1e-12)
        if not ours:
            continue
        rivals = [nx.community.modularity(peer, nx.community.louvain_communities(peer, weight="weight", seed=s),
                                          weight="weight") for s in range(8)]
        gaps.setdefault(("Louvain", "Leiden")[detector] + " Q, networkx's Louvain", []).append(best - max(rivals))
        la = max(leidenalg.find_partition(ig, leidenalg.ModularityVertexPartition, weights=weights, seed=s,
                                          n_iterations=-1).quality() for s in range(8))
        gaps.setdefault(("Louvain", "Leiden")[detector] + " Q, leidenalg", []).append(best - la)
    lib.kedge_weighted_graph_destroy(C.byref(graph))
    noise = [r.randrange(r.randint(1, n)) for _ in range(n)]
    mixed = found[0][:]
    r.shuffle(mixed)
    for a, b in ((found[0], found[-1]), (found[0], mixed), (found[0], noise), (noise, list(range(n))),
                 ([0] * n, noise), ([0] * n, [5] * n), (list(range(n)), list(range(n)))):
        check_scores(n, a, b)


# ---- Null graphs and divergences

def check_null(r):
    n = r.randint(3, 12)
    counts = [r.choice([0, r.randint(1, 2000)]) for _ in range(n)]
    if sum(c > 0 for c in counts) < 2:
        return None
    total, draws = r.randint(10, 20000), 400
    c = Coactivation(n, 2, total, total, array(U64, counts), array(U32, [0] * (n * (n - 1) // 2)))
    model = Null()
    call(lib.kedge_null_model_init, C.byref(model), C.byref(c))
    pairs = (U32 * (n * (n - 1) // 2))()
    state, got = Random(r.getrandbits(64), 0), []
    for _ in range(draws):
        lib.kedge_null_model_draw(C.byref(model), C.byref(state), pairs)
        got.append(list(pairs))
    lib.kedge_null_model_destroy(C.byref(model))
    q = np.array([counts[i] * counts[j] for i in range(n) for j in range(i + 1, n)], float)
    q /= q.sum()
    got = np.array(got)
    difference("sums of null draws", 0.0, float((got.sum(1) != total).any()), 0)
    used = q > 0
    sums = got.sum(0)[used]
    if len(sums) < 2 or (draws * total * q[used]).min() < 20:
        return None
    return scipy.stats.chisquare(sums, draws * total * q[used]).pvalue


def check_binomial(r):
    n, p = r.choice([5, 60, 5000, 123330, 10**8]), r.choice([1e-6, 1e-4, 0.01, 0.3, 0.5, 0.8])
    state, draws = Random(r.getrandbits(64), 0), 20000
    got = np.array([lib.kedge_random_binomial(C.byref(state), n, p) for _ in range(draws)])
    law = scipy.stats.binom(n, p)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 30)))
    chance = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    seen = np.bincount(np.searchsorted(edges, got, side="left"), minlength=len(edges) + 1)
    keep = chance * draws > 5
    if keep.sum() < 2 or not keep.all():
        return None
    return scipy.stats.chisquare(seen, chance * draws).pvalue


def check_divergence(r):
    n = r.randint(2, 64)
    p = [r.choice([0.0, r.random()]) for _ in range(n - 1)] + [r.random() + 0.01]
    q = [r.random() + 0.01] + [r.choice([0.0, r.random()]) for _ in range(n - 1)]
    value = F64()
    call(lib.kedge_retention_jsd, array(F64, p), array(F64, q), n, C.byref(value))
    difference("JSD, scipy", value.value, float(scipy.spatial.distance.jensenshannon(p, q)) ** 2, 1e-12)
    call(lib.kedge_retention_tvd, array(F64, p), array(F64, q), n, C.byref(value))
    difference("TVD, numpy", value.value, float(np.abs(np.array(p) / sum(p) - np.array(q) / sum(q)).sum() / 2), 1e-12)


def main():
    r = random.Random(1)
    gaps = {}
    kinds = ["plain", "plain", "plain", "no edges", "one block", "ties", "parts", "isolated"]
    for g in range(COUNT):
        check_graph(kinds[g % len(kinds)], r, gaps)
        check_divergence(r)
    bad = False
    print(f"{COUNT} graphs: {', '.join(sorted(set(kinds)))}")
    for name, (count, most, limit) in sorted(largest.items()):
        bad |= not most <= limit
        print(f"  {name:32s} {count:6d} compared, largest difference {most:.3g}{'' if most <= limit else '  TOO LARGE'}")
    for name, values in sorted(gaps.items()):
        bad |= min(values) < -0.03
        print(f"  {name:32s} best of 8 seeds each: ours above theirs by {np.mean(values):+.5f} on average, "
              f"from {min(values):+.5f} to {max(values):+.5f}")
    for name, check, count in (("null graphs", check_null, 300), ("binomial draws", check_binomial, 60)):
        values = [v for v in (check(r) for _ in range(count)) if v is not None]
        uniform = scipy.stats.kstest(values, "uniform").pvalue
        bad |= min(values) < 1e-3 / len(values) or uniform < 1e-3
        print(f"  {name:32s} {len(values):6d} chi-square tests, least p {min(values):.2g}; are the p uniform: p {uniform:.2g}")
    return int(bad)


sys.exit(main())
