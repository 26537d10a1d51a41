"""The reference has every public name, counter and error, because it is made from the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import tidegate as tg
from tidegate.engine.counters import COUNTERS, FLOWS, GAUGES, MEASURES, OPERATOR

ROOT = Path(__file__).parents[2]
TABLE: dict[str, Any] = {"k": [1, 2, 1, 3, 2], "t": [1, 2, 3, 4, 5], "v": [1.0, 2.0, 3.0, 4.0, 5.0]}
JOIN: dict[str, Any] = {"on": "k", "time": "t", "within": 4}


def _hooks() -> Any:
    path = ROOT / "docs" / "hooks" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _hooks()


def test_every_public_name_is_on_the_page() -> None:
    page = reference.api()
    for name in getattr(tg, "__all__"):  # noqa: B009
        home = getattr(tg, name).__module__
        assert f"::: {home}.{name}\n" in page, name
        assert f"  heading: tg.{name}\n" in page, name
    for module in (tg.streams, tg.quality, tg.conformance):  # type: ignore[attr-defined]
        assert f"::: {module.__name__}." in page


def reported() -> dict[str, dict[str, Any]]:
    """Return the counters of small local joins of every kind."""
    two: dict[str, Any] = {"a": TABLE, "b": {"k": [1, 2, 3], "t": [1, 2, 3], "w": [7, 8, 9]}}
    links = {"k": [1, 2, 3]}
    many: dict[str, Any] = {"joins": "a.k -> b.k", "time": "t", "within": 9}
    shedding = tg.constrained_join(two, **many, constraints=tg.RIDS("a -> b", k=1), keep_shed=True)
    sample = tg.sample_join(TABLE, TABLE, **JOIN, memory=3)
    text = "Select count(*) From a [Range 9], b [Range 9] Where a.k = b.k"
    found: dict[str, Any] = {
        "join": tg.join(TABLE, TABLE, **JOIN, memory=2),
        "join with a slow processor": tg.join(
            TABLE, TABLE, **JOIN, memory=2, cpu=tg.SlowCPU(rate=1, queue=1)
        ),
        "star_join": tg.star_join([TABLE, TABLE], links, **JOIN, memory=2),
        "constrained_join": shedding,
        "repair": tg.repair(two, shedding, **many),
        "cql": tg.cql(text, two, time="t", unique="b.k"),
        "sample_join": sample,
        "truncated_join": tg.truncated_join(TABLE, TABLE, on="k", keep=3),
        "optimal": tg.optimal(TABLE, TABLE, **JOIN, memory=2),
        "optimal_star": tg.optimal_star([TABLE, TABLE], links, **JOIN, memory=2),
    }
    return {name: result.counters for name, result in found.items()}


def test_every_counter_has_a_unit_and_a_meaning() -> None:
    patterns = {re.escape(each.name): each.name for each in COUNTERS}
    patterns = {re.sub("<.*>", ".+", pattern): name for pattern, name in patterns.items()}
    seen = set()
    for call, counters in reported().items():
        for counter in counters:
            known = [name for pattern, name in patterns.items() if re.fullmatch(pattern, counter)]
            assert known, f"{counter} of {call} is not in tidegate/engine/counters.py"
            seen.add(known[0])
    # What is left needs Spark.
    spark = {*OPERATOR, "copies"}
    assert {each.name for each in COUNTERS} - seen - spark == set()
    page = reference.counters()
    for each in COUNTERS:
        assert f"| `{each.name}` | {each.unit} | {each.joins} | {each.meaning} |" in page


def test_spark_reports_the_counters_of_the_table() -> None:
    from tidegate.spark import metrics

    fields = [field.name for field in metrics.FIELDS]
    assert fields == [*FLOWS, *GAUGES, *OPERATOR, *MEASURES]


def test_every_error_is_on_the_page() -> None:
    found = list(reference.failures(ROOT / "src"))
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    raised = sum(len(re.findall(r"(?<!class )\bTidegateError\(", s)) for s in sources)
    assert len(found) == raised
    assert all(each.cause.endswith((".", ":")) for each in found)
    page = reference.errors(ROOT / "src")
    assert any(each.message == "policy must be an instance: write {name}()" for each in found)
    assert all(reference._cell(each.message) in page for each in found)
