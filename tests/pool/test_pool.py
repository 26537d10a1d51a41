"""A pool without Spark: joins in this process, with the same updates and reports."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from benchmarks.foreseen import of_joins
from benchmarks.pools import PooledRun, sharded
from tidegate.joins.sampled.engine import SampledJob
from tidegate.joins.sampled.expected_error import Expectations
from tidegate.joins.sampled.spec import sampled_join
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.shadow import StarCopies
from tidegate.joins.star.spec import star_join
from tidegate.joins.window.job import WindowJob
from tidegate.joins.window.shadow import WindowCopies
from tidegate.joins.window.spec import WindowJoin, window_join
from tidegate.pool.member import Member, PooledJob
from tidegate.report.plots import available
from tidegate.spark.pool_controller import PoolMembership
from tidegate.streams import zipf

MEMORY, WINDOW, BATCHES = 60, 60, 16


def turning(first: float, then: float, seed: int = 1) -> tuple[WindowJoin, list[Any]]:
    """Return a join and its batches; the skew of keys changes from `first` to `then`."""
    sides = []
    for half, skew in enumerate((first, then)):
        pair = zipf(480, domain=40, skew=skew, correlation="same", seed=seed + half)
        sides.append(
            [t.set_column(1, "time", pa.array(t["time"].to_numpy() + 480 * half)) for t in pair]
        )
    left, right = (pa.concat_tables([a, b]) for a, b in zip(*sides, strict=True))
    spec = window_join(
        left.schema,
        right.schema,
        on="key",
        time="time",
        within=WINDOW,
        memory=MEMORY,
        policy="prob",
    )
    return spec, of_joins(spec, [left, right], BATCHES)


def pool_of(folder: Path, **settings: Any) -> tg.MemoryPool:
    given: dict[str, Any] = {"memory": MEMORY, "folder": folder, "every": 1}
    return tg.MemoryPool(**(given | settings))


@pytest.mark.parametrize("one_query", [False, True])
def test_a_join_that_turns_hard_gets_more_within_a_few_batches(
    tmp_path: Path, one_query: bool
) -> None:
    """Joins have a query each, or all have one query."""
    pool = pool_of(tmp_path)
    run = PooledRun(pool, one_query=one_query)
    streams = {"easy": turning(1.0, 1.0, 1), "turning": turning(1.0, 0.0, 5)}
    for name, (spec, _) in streams.items():
        run.add(name, spec)
    pool.rebalance()
    for at in range(BATCHES):
        run.feed({name: feeds[at] for name, (_, feeds) in streams.items()})
        now = [run.allowed[name][-1][0] for name in streams]
        assert sum(now) <= pool.granted <= MEMORY
        assert run.held[-1] <= MEMORY
    shares = [each[0] for each in run.allowed["turning"]]
    assert shares[0] == MEMORY // 2
    assert abs(shares[7] - MEMORY // 2) < MEMORY // 5
    assert min(shares[12:]) > 0.62 * MEMORY
    assert run.allowed["easy"][-1][0] + shares[-1] == MEMORY
    for standing in pool.explain().joins:
        assert standing.measured is not None
        assert standing.predicted == pytest.approx(standing.measured, abs=0.1)


def test_joins_stars_and_samples_share_one_memory(tmp_path: Path) -> None:
    """Each kind is estimated in its own way; together they never hold more than the memory."""
    pool = pool_of(tmp_path, memory=MEMORY)
    run = PooledRun(pool)
    spec, feeds = turning(0.5, 0.5, 1)
    left = spec.left.schema
    facts = pa.table({"a": range(40), "b": range(40)})
    star = star_join(
        {"r": left, "s": left},
        facts.schema,
        on=[{"key": "a"}, {"key": "b"}],
        time="time",
        within=WINDOW,
        memory=MEMORY,
    )
    job = StarJob(star, LocalRelation(*in_order(facts)))
    sample = sampled_join(left, left, on="key", time="time", within=WINDOW, memory=MEMORY)
    run.add("join", spec)
    run.enter("star", job, StarCopies(job), shards=2)
    run.enter("sample", SampledJob(sample), Expectations(sample), shards=2)
    pool.rebalance()
    for inputs in feeds:
        run.feed(dict.fromkeys(("join", "star", "sample"), inputs))
        now = sum(sum(run.allowed[name][-1]) for name in run.allowed)
        assert now <= pool.granted <= MEMORY
        assert run.held[-1] <= MEMORY
    standings = {each.name: each for each in pool.explain().joins}
    assert [each.measure for each in standings.values()] == ["recall", "recall", "accuracy"]
    for each in standings.values():
        assert each.predicted is not None
        assert each.measured == pytest.approx(each.predicted, abs=0.12)
    # A small sample gives a good count, so the sample needs less memory than the join.
    assert sum(standings["sample"].share) < sum(standings["join"].share)
    least = [each.predicted or 0.0 for each in standings.values()]
    assert max(least) - min(least) < 0.1
    assert "of a count over a window" in str(pool.explain())


def test_weights_and_objectives_change_the_shares(tmp_path: Path) -> None:
    """More weight means more recall. With objective="sum", the join with more results gets all."""
    recalls: dict[str, list[float | None]] = {}
    for objective in ("min", "sum"):
        pool = pool_of(tmp_path / objective, objective=objective)
        run = PooledRun(pool)
        streams = {"a": turning(0.3, 0.3, 1), "b": turning(1.5, 1.5, 1)}
        run.add("a", streams["a"][0], weight=1.5 if objective == "min" else 1.0)
        run.add("b", streams["b"][0])
        pool.rebalance()
        for at in range(BATCHES // 2):
            run.feed({name: feeds[at] for name, (_, feeds) in streams.items()})
        recalls[objective] = [pool.standing(name).predicted for name in "ab"]
    one, other = recalls["min"]
    assert one is not None
    assert other is not None
    assert one / other == pytest.approx(1.5, abs=0.1)
    poor, rich = recalls["sum"]
    assert poor is not None
    assert rich is not None
    assert rich > poor + 0.3


def test_joins_come_and_go_while_others_run(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    run = PooledRun(pool)
    spec, feeds = turning(1.0, 1.0)
    run.add("a", spec)
    pool.rebalance()
    for at in range(2):
        run.feed({"a": feeds[at]})
    assert run.allowed["a"][-1] == [MEMORY]
    run.add("b", spec, shards=2)
    pool.rebalance()
    for at in range(2, 8):
        run.feed({"b": feeds[at], "a": feeds[at]})
        assert run.allowed["a"][-1][0] + sum(run.allowed["b"][-1]) <= MEMORY
    # The new join has nothing at first, as the other one holds everything.
    assert run.allowed["b"][0] == [0, 0]
    assert sum(run.allowed["b"][-1]) > MEMORY // 4
    pool.remove("a")
    for at in range(8, 11):
        run.feed({"a": feeds[at], "b": feeds[at]})
    assert (run.allowed["a"][-1], sum(run.allowed["b"][-1])) == ([0], MEMORY)
    assert pool.joins == ["b"]
    # A join whose query has ended leaves at once.
    run.add("c", spec)
    pool.rebalance()
    run.feed({"b": feeds[11], "c": feeds[11]})
    pool.end("c")
    pool.remove("c")
    run.feed({"b": feeds[12]})
    assert sum(run.allowed["b"][-1]) <= pool.granted <= MEMORY
    assert pool.joins == ["b"]


def test_the_memory_of_an_ended_query_goes_to_the_others(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    run = PooledRun(pool)
    spec, feeds = turning(1.0, 1.0)
    run.add("a", spec)
    run.add("b", spec)
    assert [each.state for each in pool.explain().joins] == ["no query yet"] * 2
    pool.rebalance()
    run.feed({"a": feeds[0], "b": feeds[0]})
    # At once, if all planned batches are committed: a restart applies the latest update first.
    pool.end("a")
    assert (pool.standing("a").share, pool.standing("b").share) == ((0,), (MEMORY,))
    assert "a (weight 1): ended; 0 rows" in str(pool.explain())
    run.feed({"b": feeds[1]})
    assert run.allowed["b"][-1] == [MEMORY]
    # Built again, it gets nothing until the other join has shrunk.
    run.add("a", spec)
    pool.start("again", "a")
    standing = pool.standing("a")
    assert (standing.state, standing.missing, standing.waits_for) == ("running", 30, ("b",))
    assert "a (weight 1): running, waits for 30 more rows from b; 0 rows" in str(pool.explain())
    run.feed({"a": feeds[2], "b": feeds[2]})
    assert run.allowed["a"][-1] == [0]
    assert pool.standing("a").missing == 0
    assert pool.granted == MEMORY


def test_a_query_that_ended_within_a_batch_keeps_its_memory_for_the_replay(
    tmp_path: Path,
) -> None:
    pool = pool_of(tmp_path)
    run = PooledRun(pool)
    spec, feeds = turning(1.0, 1.0)
    for name in ("a", "b"):
        run.add(name, spec)
    pool.rebalance()
    run.feed({"a": feeds[0], "b": feeds[0]})
    pool.end("a", in_flight=True)
    assert pool.standing("a").kept == 30
    assert "ended, with 30 rows kept for the batch" in str(pool.explain())
    run.add("c", spec)
    pool.rebalance()
    for at in range(1, 4):
        run.feed({"b": feeds[at], "c": feeds[at]})
        assert pool.granted <= MEMORY
    assert run.allowed["b"][-1][0] + run.allowed["c"][-1][0] <= 30
    # After its removal, it cannot come back while others have the memory that it needs.
    pool.remove("a")
    for at in range(4, 6):
        run.feed({"b": feeds[at], "c": feeds[at]})
    assert run.allowed["b"][-1][0] + run.allowed["c"][-1][0] > 50
    with pytest.raises(tg.TidegateError, match="needs 30 again, and others have that now; use ano"):
        run.add("a", spec)
    assert pool.joins == ["b", "c"]


def with_one_join(folder: Path) -> tuple[tg.MemoryPool, PooledRun, Any, Any]:
    """Return a pool with a join that has processed one batch, its run, its spec and its batches."""
    pool = pool_of(folder)
    run = PooledRun(pool)
    spec, feeds = turning(1.0, 1.0)
    run.add("a", spec)
    pool.rebalance()
    run.feed({"a": feeds[0]})
    return pool, run, spec, feeds


def test_a_removed_join_can_return_once_its_query_has_ended(tmp_path: Path) -> None:
    pool, run, spec, feeds = with_one_join(tmp_path)
    pool.remove("a")
    assert pool.explain().json()["leaving"] == {"a": MEMORY}
    assert "a: removed, and may hold 60 rows until its query" in str(pool.explain())
    with pytest.raises(tg.TidegateError, match="still leaving: stop its query first"):
        run.add("a", spec)
    run.feed({"a": feeds[1]})
    assert pool.granted == 0
    with pytest.raises(tg.TidegateError, match="its query still runs, which would apply"):
        run.add("a", spec)
    pool.end("a")
    run.add("a", spec)
    pool.rebalance()
    assert pool.standing("a").share == (MEMORY,)
    # A join that was never started leaves at once.
    pool.remove("a")
    assert (pool.joins, pool.leaving, pool.granted) == ([], {}, 0)


def test_a_reopened_pool_reserves_what_joins_had(tmp_path: Path) -> None:
    """The order in which joins are built and started does not matter."""
    spec, feeds = turning(1.0, 1.0)
    run = PooledRun(pool_of(tmp_path))
    for name in ("a", "b"):
        run.add(name, spec)
    run._pool.rebalance()
    run.feed({"a": feeds[0], "b": feeds[0]})
    pool = pool_of(tmp_path)
    assert [(each.name, each.state, each.kept) for each in pool.explain().joins] == [
        ("a", "not built again", 30),
        ("b", "not built again", 30),
    ]
    run = PooledRun(pool)
    run.add("a", spec)
    pool.rebalance()
    run.feed({"a": feeds[1]})
    assert run.allowed["a"] == [[30]]
    pool.remove("b")
    run.feed({"a": feeds[2]})
    assert run.allowed["a"][-1] == [MEMORY]
    assert pool_of(tmp_path).joins == ["a"]


def test_the_later_of_two_pools_owns_the_folder(tmp_path: Path) -> None:
    pool, run, spec, _ = with_one_join(tmp_path)
    later = pool_of(tmp_path)
    assert later.standing("a").kept == MEMORY
    # Reports to the first pool have no effect any more.
    sent = sorted((tmp_path / "a").iterdir())
    pool.end("a")
    assert sorted((tmp_path / "a").iterdir()) == sent
    with pytest.raises(tg.TidegateError, match="another pool was opened in the folder"):
        pool.remove("a")
    with pytest.raises(tg.TidegateError, match="another pool was opened in the folder"):
        run.add("b", spec)


def test_a_reopened_pool_resumes_with_its_shares(tmp_path: Path) -> None:
    streams = {"a": turning(0.0, 0.0, 1), "b": turning(1.0, 1.0, 1)}
    shares: list[list[tuple[int, ...]]] = []
    for _ in range(2):
        pool = pool_of(tmp_path)
        run = PooledRun(pool)
        for name, (spec, _) in streams.items():
            run.add(name, spec)
        pool.rebalance()
        if not shares:
            for at in range(6):
                run.feed({name: feeds[at] for name, (_, feeds) in streams.items()})
        shares.append([pool.standing(name).share for name in streams])
    # Free memory is handed out even before anything is known.
    assert all(now[0] >= before[0] for before, now in zip(*shares, strict=True))
    assert sum(now[0] for now in shares[1]) <= MEMORY
    assert shares[0][0] > shares[0][1]


def test_shards_whose_keys_are_worth_more_get_more() -> None:
    from benchmarks.pools import QUICK

    found = sharded(QUICK, 2)
    assert found.adapted > 0.99 * found.one
    assert found.adapted > found.equal


def test_explain_shows_the_shares(tmp_path: Path) -> None:
    pool = pool_of(tmp_path / "pool")
    run = PooledRun(pool)
    spec, feeds = turning(1.0, 1.0)
    run.add("a", spec, shards=2)
    assert "not known yet" in str(pool.explain())
    pool.rebalance()
    for at in range(4):
        run.feed({"a": feeds[at]})
    explained = pool.explain()
    row = explained.json()["joins"]["a"]
    assert row["share"] == sum(row["shards"]) == row["allowed"] == MEMORY
    assert row["held"] <= MEMORY
    assert [point[0] for point in row["curve"]] == [MEMORY * n / 8 for n in range(9)]
    assert row["one_megabyte_more"]["recall"] == pytest.approx(1 - row["predicted"], abs=0.05)
    text = str(explained)
    for part in (
        "60 rows for 1 joins",
        "a (weight 1): running; 60",
        "% measured",
        "one more megabyte",
    ):
        assert part in text
    if available():
        explained.plot(tmp_path / "pool.png")
        assert (tmp_path / "pool.png").read_bytes().startswith(b"\x89PNG")


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"memory": None}, "a pool needs memory"),
        ({"memory": 0}, "memory must be a positive number of rows"),
        ({"objective": "max"}, 'objective must be one of "min", "sum"'),
        ({"every": 0}, "every must be a positive number of batches"),
        ({"folder": 5}, "folder must be a path .*, not 5"),
        ({"folder": ""}, "folder must be a path .*, not ''"),
        ({"folder": "s3://bucket/pool"}, "give a plain path, without a scheme"),
        ({"folder": __file__}, "where the pool may write, and .*test_pool.py' is not: "),
        ({"folder": f"{__file__}/pool"}, "where the pool may write, and .*pool' is not: "),
    )
    for settings, said in bad:
        given: dict[str, Any] = {"memory": MEMORY, "folder": tmp_path}
        with pytest.raises(tg.TidegateError, match=said):
            tg.MemoryPool(**(given | settings))
    pool = pool_of(tmp_path)
    for weight in (0, -1, float("nan"), "2"):
        with pytest.raises(tg.TidegateError, match="a weight must be a number above 0"):
            pool.share("a", weight)  # type: ignore[arg-type]
    for name in ("", "a/b", ".a", 5):
        with pytest.raises(tg.TidegateError, match="the name of a join in a pool must be"):
            pool.share(name)  # type: ignore[arg-type]
    with pytest.raises(tg.TidegateError, match='the pool has no join "a"; it has none'):
        pool.remove("a")
    in_bytes = pool_of(tmp_path, memory="1 MB")
    spec = turning(1.0, 1.0)[0]
    with pytest.raises(tg.TidegateError, match='holds a number of rows, and the pool has "1 MB"'):
        in_bytes.admit(PoolMembership(in_bytes.share("a"), WindowCopies(spec)), 1)


@pytest.mark.parametrize("content", ['{"a": 1}', '{"number": 1, "sha', "[]"])
def test_a_folder_with_other_files_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "2020.json").write_text(content)
    with pytest.raises(tg.TidegateError, match="2020.json' is no budget update of a pool"):
        pool_of(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        '{"number": 1, "shares": [MORE]}',
        '{"number": 1, "shares": [MORE, 1], "memory": 5}',
        '{"number": 1, "shares": [-1]}',
        '{"number": 1, "shares": [1.5]}',
        '{"number": 1, "shares": [true]}',
        '{"number": "1", "shares": [1]}',
        '{"number": 1, "shares": 5}',
        '{"number": 1, "shares": [1], "more": 1}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass").hex(),
    ],
)
def test_an_impossible_update_is_refused(tmp_path: Path, content: str) -> None:
    """An update that is larger than the pool is one example. The error names the file."""
    (tmp_path / "a").mkdir()
    text = content.replace("MORE", str(MEMORY + 1))
    (tmp_path / "a" / "00000001.json").write_text(text)
    with pytest.raises(tg.TidegateError, match=r"a/00000001.json' is no budget.*remove the file"):
        pool_of(tmp_path)


def test_damaged_confirmations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "00000001.json").write_text('{"number": 1, "shares": [5]}')
    for note in ("", "5", "[5]", '[["1", 2]]', "{"):
        (tmp_path / "a" / ".followed").write_text(note)
        with pytest.raises(tg.TidegateError, match=r"a/\.followed' is no budget.*remove the file"):
            pool_of(tmp_path)


def test_a_pool_may_be_smaller_than_it_was(tmp_path: Path) -> None:
    """Updates contain the size of the pool when they were sent."""
    (tmp_path / "a").mkdir()
    update = {"number": 1, "shares": [10 * MEMORY], "memory": 10 * MEMORY}
    (tmp_path / "a" / "00000001.json").write_text(json.dumps(update))
    assert pool_of(tmp_path).joins == ["a"]


def test_an_engine_refuses_an_update_above_the_pools_memory() -> None:
    spec = turning(1.0, 1.0)[0]
    member = Member("pool", "a", (2, MEMORY), 1.0)
    engine = PooledJob(WindowJob(spec), WindowCopies(spec), member).engine_at(0, 2)
    engine.apply_budget(1, (MEMORY - 1, 1))
    with pytest.raises(tg.TidegateError, match="budget update 2 of a pool gives one join"):
        engine.apply_budget(2, (MEMORY, 1))
    with pytest.raises(tg.TidegateError, match="is for 1 shards, and the join has 2"):
        engine.apply_budget(3, (MEMORY,))
    assert engine.take_counters()["allowed"] == MEMORY - 1
    engine.apply_budget(4, (MEMORY, 1), memory=2 * MEMORY)
    assert engine.take_counters()["allowed"] == MEMORY


def test_a_pool_without_a_folder_uses_a_temporary_one() -> None:
    pool = tg.MemoryPool(memory=100, objective="sum")
    spec, _ = turning(1.0, 1.0)
    _, folder = pool.admit(PoolMembership(pool.share("a"), WindowCopies(spec)), 1)
    pool.rebalance()
    assert sorted(path.name for path in folder.glob("*.json")) == ["00000001.json", "00000002.json"]
    del pool
    gc.collect()
    assert not folder.exists()
