"""Star joins: the figures of paper 4 (Towne, Zhu, Zuzarte, Hou), and tuples a second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from benchmarks.measure import Step
from benchmarks.report import Section, Table
from tidegate.engines.star_job import InHand, StarJob, in_order
from tidegate.star_spec import star_join

DOMAIN, FACTS = 50, 250
ON = {"r": "a", "s": "b"}
POLICIES = ("auto", "dgl", "dimpprob", "simpprob", "simp", "prob", "rand")

Streams = dict[str, pa.Table]


@dataclass(frozen=True)
class Scale:
    """How long streams are, seeds, and which relations and memories are tried for speed."""

    length: int = 5_000
    seeds: int = 5
    speed_rows: int = 100_000
    facts: tuple[int, ...] = (250, 10_000, 1_000_000)
    memory: tuple[int, ...] = (1_000, 10_000, 100_000)


FULL = Scale()
QUICK = Scale(length=600, seeds=1, speed_rows=2_000, facts=(250,), memory=(1_000,))


def streams(length: int, seed: int, facts: int = FACTS) -> tuple[Streams, pa.Table]:
    """Section 4.1: R is Zipf(1), S uniform, F uniform; the rarer a key, the more important."""
    rng = np.random.default_rng(seed)
    chance = 1 / np.arange(1, DOMAIN + 1)
    keys = {
        "r": rng.choice(DOMAIN, length, p=chance / chance.sum()),
        "s": rng.integers(0, DOMAIN, length),
    }
    made = {}
    for name, values in keys.items():
        rarer = np.argsort(np.argsort(-np.bincount(values, minlength=DOMAIN)))[values]
        weight = 1.0 + rarer * 10 // DOMAIN
        made[name] = pa.table({ON[name]: values, "t": np.arange(length), "w": weight})
    pairs = rng.permutation(DOMAIN * DOMAIN)[:facts]
    return made, pa.table({"a": pairs // DOMAIN, "b": pairs % DOMAIN})


def offline(length: int, seed: int, memory: int) -> dict[str, tuple[float, int]]:
    """Figure 4: importance and results of OSSJ, SJA-S and RAND-S, m = 10."""
    tables, facts = streams(length, seed)
    bounded: dict[str, Any] = {"on": ON, "time": "t", "within": 10, "memory": memory}
    bounded |= {"split": "fixed", "moment": "evict-first"}
    best = tg.ossj(tables, facts, **bounded, importance="w")
    largest = tg.ossj(tables, facts, **bounded)
    weights = (largest.table[f"w_{name}"].to_numpy() for name in ON)
    rand = tg.local.star_join(tables, facts, **bounded, importance="w", policy="rand", seed=seed)
    return {
        "OSSJ": (best.importance, best.results),
        "SJA-S": (float(np.minimum(*weights).sum()), largest.results),
        "RAND-S": (rand.importance, rand.results),
        "EXACT": (best.counters["exact_importance"], int(best.counters["exact_results"])),
    }


def online(length: int, seed: int, memory: int) -> dict[str, float]:
    """Figure 6: importance over the optimum's, m = 50; and that over the exact result's."""
    tables, facts = streams(length, seed)
    bounded: dict[str, Any] = {"on": ON, "time": "t", "within": 50, "memory": memory}
    bounded |= {"split": "fixed", "importance": "w"}
    best = tg.ossj(tables, facts, **bounded)
    found = {
        policy: tg.local.star_join(tables, facts, **bounded, policy=policy, seed=seed).importance
        for policy in POLICIES
    }
    ratios = {policy: value / best.importance for policy, value in found.items()}
    return ratios | {"OSSJ/exact": best.importance / best.counters["exact_importance"]}


def filtered(length: int, seed: int, facts: int) -> float:
    """Figure 5: what share of the tuples is dropped on arrival."""
    tables, relation = streams(length, seed, facts)
    found = tg.local.star_join(tables, relation, on=ON, time="t", within=10)
    return found.counters["filtered"] / (2 * length)


def speed(rows: int, facts: int, memory: int) -> tuple[float, float, float]:
    """Tuples and results a second of processor time, and seconds of it to index the relation.

    Keys are drawn from as many as there are facts, each key has about one, and the window is twice
    as long as memory is for.
    """
    rng = np.random.default_rng(0)
    relation = pa.table({"a": rng.permutation(facts), "b": rng.permutation(facts)})
    tables = {
        name: pa.table({key: rng.integers(0, facts, rows), "t": np.arange(rows)})
        for name, key in ON.items()
    }
    schemas = {name: table.schema for name, table in tables.items()}
    spec = star_join(
        schemas, relation.schema, on=ON, time="t", within=memory, memory=memory, policy="auto"
    )
    start = time.process_time()
    job = StarJob(spec, InHand(*in_order(relation)))
    job.check()
    indexed = time.process_time() - start
    inputs = [
        [job.prepare(s, table.combine_chunks().to_batches()[0])[0]]
        for s, table in enumerate(tables.values())
    ]
    engine = job.engine(1)
    start = time.process_time()
    results = sum(batch.num_rows for batch in engine.feed(inputs))
    seconds = time.process_time() - start
    return 2 * rows / seconds, results / seconds, indexed


def run(scale: Scale, step: Step) -> Section:
    """All of it."""
    seeds = range(1, scale.seeds + 1)
    four, six = [], []
    for memory in (2, 4, 8, 12, 16):
        step(f"star joins offline, memory {memory}")
        runs = [offline(scale.length, seed, memory) for seed in seeds]
        means = [(np.mean([one[name] for one in runs], axis=0), name) for name in runs[0]]
        four.append((str(memory), *(f"{mean[0]:,.0f} ({mean[1]:,.0f})" for mean, _ in means)))
    for memory in (4, 10, 20, 40, 60, 80):
        step(f"star joins online, memory {memory}")
        ratios = [online(scale.length, seed, memory) for seed in seeds]
        names = (*POLICIES, "OSSJ/exact")
        six.append((str(memory), *(f"{np.mean([one[n] for one in ratios]):.3f}" for n in names)))
    five = []
    for facts in (25, 50, 100, 250, 1000):
        shares = [filtered(scale.length, seed, facts) for seed in seeds]
        five.append((str(facts), f"{np.mean(shares):.1%}"))
    fast = []
    for facts in scale.facts:
        for memory in scale.memory:
            step(f"star joins, {facts:,} facts, memory {memory:,}")
            tuples, results, indexed = speed(scale.speed_rows, facts, memory)
            cells = (f"{tuples / 1e6:.2f} M", f"{results / 1e6:.2f} M", f"{indexed:.2f} s")
            fast.append((f"{facts:,}", f"{memory:,}", *cells))
    return Section(
        title="Star joins",
        workload=(
            "Section 4 of Towne, Zhu, Zuzarte and Hou: R with Zipf(1) keys, S with uniform ones, "
            f"{DOMAIN} keys, {scale.length:,} tuples a stream, one at each time; importance 1 to "
            f"10, the rarer keys more; F of {FACTS} uniform facts. Means of {scale.seeds} seeds."
        ),
        figures=(),
        tables=(
            Table(
                "Figure 4: importance (and results) offline, m = 10, evict-first",
                ("M", "OSSJ", "SJA-S", "RAND-S", "EXACT"),
                tuple(four),
            ),
            Table(
                "Figure 5: tuples dropped on arrival for want of a fact",
                ("facts", "share"),
                tuple(five),
            ),
            Table(
                "Figure 6: importance over the optimum's, m = 50, probe-first",
                ("M", *POLICIES, "OSSJ/exact"),
                tuple(six),
                "The paper finds DGL ahead of the others of its policies; here it is not, and SIMP "
                "is ahead of all of them in a small memory.",
            ),
            Table(
                "The engine alone, results assembled, policy Auto, in processor time",
                ("facts", "memory", "tuples a second", "results a second", "indexing"),
                tuple(fast),
            ),
        ),
    )
