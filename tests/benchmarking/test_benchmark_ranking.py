"""The benchmarks of approximate ranks and of iJoin's schemes, at a tiny size."""

from __future__ import annotations

import tidegate as tg
from benchmarks import approximation, ijoin
from tidegate.streams import zipf


def test_exact_is_what_a_small_memory_has() -> None:
    tables = zipf(400, domain=40, seed=2)
    kept = approximation.measure(tables, 80, 60, tg.Heeb())
    public = tg.join(*tables, on="key", time="time", within=80, memory=60, policy="heeb")
    assert kept.exact == public.results
    assert 0.9 < kept.share < 1.1
    assert {"auto", "life", "prob, window"} < set(approximation.moving())


def test_every_scheme_of_ijoin_has_its_row() -> None:
    scale = ijoin.Scale(ticks=300, seeds=1, settings=((10, 25),))
    [table] = ijoin.run(scale, lambda what: None).tables
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == list(ijoin.SCHEMES)
    drops, anew = (int(rows["every 10 drops"][at].replace(",", "")) for at in (5, 6))
    assert anew == -(-drops // 10)
    assert rows["successive"][5] == rows["successive"][6]
