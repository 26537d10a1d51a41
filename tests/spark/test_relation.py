"""Relations that are sent to workers: one from PostgreSQL over JDBC, and an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidegate as tg

from .postgres import DRIVER, Postgres, postgres
from .workloads import bag

#: All kinds of columns. Some rooms changed owners; open ends are written in three ways.
ROOMS = """
create table rooms (
    id uuid primary key default gen_random_uuid(),
    sensor bigint not null, detector varchar(10),
    since timestamptz, until timestamptz,
    room text, area numeric(8, 2), tags text[], extra jsonb,
    unique (sensor, detector, since)
);
insert into rooms (sensor, detector, since, until, room, area, tags, extra)
select n % 40, 'd' || (n / 40 + n % 7),
       case n % 3 when 0 then '-infinity' when 1 then null
            else timestamptz '2026-01-01 00:00:00+00' + make_interval(secs => n % 50) end,
       case n % 4 when 0 then 'infinity' when 1 then null
            else timestamptz '2026-01-01 00:01:00+00' + make_interval(secs => n % 60) end,
       'room ' || n, n / 3.0, array['a', null], '{"floor": 2}'
from generate_series(0, 199) as n;
insert into rooms (sensor, detector, room) values (3, null, 'no detector');
"""
SECONDS = 120


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        server.run(ROOMS)
        yield server


@pytest.fixture
def jdbc(spark: SparkSession) -> SparkSession:
    """Return a session with the JDBC driver, which Spark downloads by its coordinates."""
    other = spark.newSession()
    other.sql(f"ADD JAR '{DRIVER}'")
    return other


def streams(rows: int = 300) -> dict[str, pa.Table]:
    rng = np.random.default_rng(3)
    first = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    made = {}
    for name, key in (("heat", "sensor"), ("smoke", "detector")):
        milliseconds = first + np.sort(rng.integers(0, SECONDS * 1_000, rows))
        keys = rng.integers(0, 40 if key == "sensor" else 12, rows)
        values = keys if key == "sensor" else [f"d{k}" for k in keys]
        ts = pa.array(milliseconds, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        made[name] = pa.table({key: values, "ts": ts, f"{name}_id": np.arange(rows)})
    return made


def test_a_relation_in_postgresql(jdbc: SparkSession, database: Postgres) -> None:
    """Compare with Spark's own two joins over JDBC."""
    frames = {name: jdbc.createDataFrame(table) for name, table in streams().items()}
    rooms = jdbc.read.jdbc(database.url, "rooms", properties={"driver": "org.postgresql.Driver"})
    alarms = tg.star_join(
        frames,
        rooms,
        on={"heat": "sensor", "smoke": "detector"},
        time="ts",
        within="5 seconds",
        interval=("since", "until"),  # PostgreSQL's infinity and null are both open ends
    )
    ids = ["heat_id", "smoke_id", "room", "area", "extra"]
    found = alarms.select(ids).toArrow()
    assert len(found) > 300
    assert bag(found) == bag(native(**frames, rooms=rooms).select(ids).toArrow())


def test_a_relation_without_rows(spark: SparkSession) -> None:
    frames = [spark.createDataFrame(table) for table in streams(20).values()]
    nothing = spark.createDataFrame([], "sensor long, detector string, room string")
    settings: dict[str, Any] = {"on": ["sensor", "detector"], "time": "ts", "within": "5 seconds"}
    for shards in (1, 2):
        found = tg.star_join(frames, nothing, **settings, shards=shards).toArrow()
        assert (len(found), found.column_names[-1]) == (0, "room")


def native(heat: DataFrame, smoke: DataFrame, rooms: DataFrame) -> DataFrame:
    active = "(since is null or since <= {t}) and (until is null or {t} < until)"
    both = heat.join(rooms, "sensor").where(active.format(t="ts"))
    both = both.withColumnRenamed("ts", "hot").join(smoke, "detector")
    near = "abs(unix_micros(hot) - unix_micros(ts)) < 5000000"
    return both.where(active.format(t="ts")).where(near)
