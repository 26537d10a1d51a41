"""Generated streams satisfy their constraint, nearly with equality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from twins import constrained as naive
from twins.constrained import Join, Tup

import tidegate as tg
from tidegate.streams import links, many_one


def arrivals(tables: dict[str, pa.Table]) -> list[Tup]:
    found = [
        Tup(name, row["t"], row["t"], tuple((c, v) for c, v in row.items() if c in "AB"))
        for name, table in tables.items()
        for row in table.to_pylist()
    ]
    return sorted(found, key=lambda tup: tup.time)


@pytest.mark.parametrize("k", [0, 7, 30])
def test_streams_satisfy_referential_integrity(k: int) -> None:
    rows = arrivals(many_one(80, kind="rids", k=k, multiplicity=3, seed=k))
    for child, column in (("S2", "A"), ("S3", "B")):
        found = naive.rids(rows, Join("S1", child, ((column, column),)))
        assert 0.9 * k <= found <= k


@pytest.mark.parametrize("kind", ["ca", "oap", "oac"])
@pytest.mark.parametrize("k", [0, 8, 40])
def test_streams_satisfy_clustered_and_ordered_arrival(kind: str, k: int) -> None:
    """Distances are drawn from all of 0 to k (sections 5.4 and 6.4), so the largest is about k."""
    n = 240 if kind == "oac" else 60
    rows = arrivals(many_one(n, kind=kind, k=k, multiplicity=4, seed=1))
    measure = naive.clustering if kind == "ca" else naive.scrambling
    for stream in ("S2",) if kind == "oac" else ("S1", "S2"):
        assert 0.8 * k <= measure(rows, stream, "A") <= k
    if kind != "oac":
        for parent in ("S1", "S2"):
            assert naive.rids(rows, Join(parent, "S3", (("A", "A"),))) == 0


def test_k_may_change_over_time() -> None:
    tables = many_one(200, kind="rids", k=[(0, 0), (0.5, 0), (0.5, 20), (1, 20)], seed=3)
    rows = arrivals(tables)
    join = Join("S1", "S2", (("A", "A"),))
    half = [t for t in rows if t.time < len(rows) * 0.4]
    assert naive.rids(half, join) == 0
    assert naive.rids(rows, join) > 15


@pytest.mark.parametrize("kind", ["ca", "oap"])
def test_the_largest_distance_of_each_value_is_even_over_0_to_k(kind: str) -> None:
    """As in the paper's streams, for each value."""
    k, n = 100, 2_000
    table = many_one(n, kind=kind, k=k, multiplicity=3, seed=6)["S1"]
    values = table["A"].to_numpy()
    places: list[list[int]] = [[] for _ in range(n)]
    for at, value in enumerate(values):
        places[value].append(at)
    largest = []
    seen = np.maximum.accumulate(values)
    for value, own in enumerate(places):
        if kind == "ca":
            largest.append(own[-1] - own[0] - len(own) + 1)
        else:
            largest.append(max(0, own[-1] - int(np.searchsorted(seen, value, side="right"))))
    assert max(largest) <= k
    shares = np.histogram(largest, bins=[0, 25, 50, 75, k + 1])[0] / n
    assert shares == pytest.approx([0.25] * 4, abs=0.06)


@pytest.mark.parametrize("kind", ["ca", "oap", "oac"])
def test_a_changed_k_holds_for_later_rows(kind: str) -> None:
    tables = many_one(400, kind=kind, k=[(0, 30), (0.5, 30), (0.5, 2), (1, 2)], seed=3)
    rows = arrivals(tables)
    own = [t for t in rows if t.stream == "S2"]
    measure = naive.clustering if kind == "ca" else naive.scrambling
    assert 20 <= measure(own, "S2", "A") <= 30
    assert 1 <= measure(own[len(own) * 11 // 20 :], "S2", "A") <= 2


def test_some_parents_have_no_child() -> None:
    tables = many_one(500, kind="rids", dangling=0.25, seed=2)
    lost = ~np.isin(tables["S1"]["B"].to_numpy(), tables["S3"]["B"].to_numpy())
    assert 0.2 < lost.mean() < 0.3


def test_packets_pass_three_links_in_order() -> None:
    tables = links(60, rate=20, delay=0.5, seed=1)
    assert [len(t) for t in tables.values()] == [1_200, 12_000, 1_200]
    when = {
        name: dict(zip(table["pid"].to_pylist(), table["ts"].to_pylist(), strict=True))
        for name, table in tables.items()
    }
    through = set(when["C"]) & set(when["B"])
    assert 60 < len(through) < 180
    assert all(0 <= when["B"][p] - when["C"][p] <= 500 for p in through)
    assert len(set(when["B"]) & set(when["O"])) > 900


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"kind": "xyz"}, 'kind must be one of "rids"'),
        ({"k": -1}, "k must be a whole number of at least 0"),
        ({"k": "many"}, "a whole number or a list of"),
        ({"k": [(0.5, 1), (0.2, 2)]}, "must ascend"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], words: str) -> None:
    settings = {"n": 5, "kind": "rids", **bad}
    with pytest.raises(tg.TidegateError, match=words):
        many_one(settings.pop("n"), **settings)
