"""The keywords of each public call as types, so that editors complete and checkers check them.

There is one set for Spark DataFrames and one for local data where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from tidegate.joins.constrained.constraints import Constraints, Monitor
from tidegate.policies import Age, Policy, Prob
from tidegate.settings.slow_cpu import SlowCPU
from tidegate.settings.types import (
    Combine,
    Duration,
    Keys,
    Lateness,
    LocalData,
    Memory,
    ShedWhen,
    Split,
    StreamColumn,
    Suffixes,
    Time,
    TimeColumn,
    Within,
    WithinStreams,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.pool_controller import Share


class _OnSpark(TypedDict, total=False):
    shards: int | None


class _Local(TypedDict, total=False):
    batch_rows: int | None
    keep_shed: bool


class _Join(TypedDict, total=False):
    on: Keys | None
    time: Required[TimeColumn]
    within: Required[Within]
    closed: bool
    where: str | None
    policy: str | Policy
    split: Split
    shed_when: ShedWhen
    importance: TimeColumn | None
    combine: Combine | None
    lateness: Lateness
    cpu: SlowCPU | None
    suffixes: Suffixes
    seed: int
    count_from: Time | None
    shed_to: str | None


class SparkJoin(_Join, _OnSpark, total=False):
    """Keywords of `tidegate.join` with Spark DataFrames."""

    memory: Memory | Share


class LocalJoin(_Join, _Local, total=False):
    """Keywords of `tidegate.join` with local data."""

    memory: Memory


class Learn(TypedDict, total=False):
    """Keywords of `tidegate.learn`."""

    on: Keys | None
    time: Required[TimeColumn]
    within: Required[Within]
    closed: bool
    where: str | None
    steps: int


class _StarJoin(TypedDict, total=False):
    on: Required[Keys | Sequence[Keys] | Mapping[str, Keys]]
    time: Required[StreamColumn]
    within: WithinStreams
    closed: bool
    interval: tuple[str, str] | None
    changes: tuple[str, str] | Literal["delta", "debezium"] | None
    fact: str | Sequence[str] | None
    split: Literal["shared", "fixed"]
    policy: str | Policy
    shed_when: ShedWhen
    importance: StreamColumn | None
    importance_limit: float | None
    combine: Combine | None
    lateness: Lateness
    suffixes: Suffixes | None
    seed: int


class SparkStarJoin(_StarJoin, _OnSpark, total=False):
    """Keywords of `tidegate.star_join` with Spark DataFrames."""

    relation_changes: Literal["apply", "refuse"] | None
    memory: int | str | Share | None


class LocalStarJoin(_StarJoin, _Local, total=False):
    """Keywords of `tidegate.star_join` with local data."""

    memory: int | str | None


class _SampleJoin(TypedDict, total=False):
    on: Required[Keys]
    time: Required[TimeColumn]
    within: Required[Within]
    closed: bool
    where: str | None
    fraction: float | None
    method: Literal["uniform", "cluster", "pps", "auto"]
    model: Literal["frequency", "age"] | Prob | Age
    value: str | None
    margin: float
    reach: float
    lateness: Lateness
    suffixes: Suffixes
    seed: int


class SparkSampleJoin(_SampleJoin, _OnSpark, total=False):
    """Keywords of `tidegate.sample_join` with Spark DataFrames."""

    memory: int | str | Share | None


class LocalSampleJoin(_SampleJoin, _Local, total=False):
    """Keywords of `tidegate.sample_join` with local data."""

    memory: int | str | None


class Estimate(TypedDict, total=False):
    """Keywords of `tidegate.estimate`."""

    value: str | None
    by: str | Sequence[str] | None
    time: str | Sequence[str] | None
    per: Duration | None
    every: Duration | None
    confidence: float
    lateness: Duration
    groups: DataFrame | LocalData | None


class _Constrained(TypedDict, total=False):
    constraints: Constraints
    monitor: Monitor | None
    lateness: Lateness
    lag: Duration | None
    choose: bool
    eliminate: bool


class _ConstrainedJoin(_Constrained, total=False):
    joins: Required[str | Sequence[str]]
    time: Required[StreamColumn]
    within: WithinStreams
    closed: bool
    filters: Mapping[str, str] | None
    select: str | Sequence[str] | None
    suffixes: Suffixes | None
    shed_to: str | None


class SparkConstrainedJoin(_ConstrainedJoin, _OnSpark, total=False):
    """Keywords of `tidegate.constrained_join` with Spark DataFrames."""


class LocalConstrainedJoin(_ConstrainedJoin, _Local, total=False):
    """Keywords of `tidegate.constrained_join` with local data."""


class Profile(TypedDict, total=False):
    """Keywords of `tidegate.profile`."""

    joins: Required[str | Sequence[str]]
    time: Required[StreamColumn]
    within: WithinStreams
    closed: bool
    filters: Mapping[str, str] | None
    batch_rows: int | None


class _Cql(_Constrained, total=False):
    time: Required[StreamColumn]
    unique: Required[str | Sequence[str]]
    closed: bool
    shed_to: str | None
    changes: Mapping[str, str] | None


class SparkCql(_Cql, _OnSpark, total=False):
    """Keywords of `tidegate.cql` with Spark DataFrames."""


class LocalCql(_Cql, _Local, total=False):
    """Keywords of `tidegate.cql` with local data."""


class LocalRepair(_Constrained, total=False):
    """Keywords of `tidegate.repair` with local data."""

    on: Keys | None
    where: str | None
    shed_when: ShedWhen
    importance: TimeColumn | None
    combine: Combine | None
    count_from: Time | None
    between: tuple[Time | None, Time | None] | None
    memory: Memory
    policy: str | Policy | None
    split: Split | None
    cpu: SlowCPU | None
    seed: int | None
    query: str | None
    unique: str | Sequence[str] | None
    joins: str | Sequence[str] | None
    time: Required[StreamColumn]
    within: Within | WithinStreams
    closed: bool
    filters: Mapping[str, str] | None
    select: str | Sequence[str] | None
    suffixes: Suffixes | None


class SparkRepair(LocalRepair, _OnSpark, total=False):
    """Keywords of `tidegate.repair` with Spark DataFrames."""


class SparkTruncatedJoin(TypedDict, total=False):
    """Keywords of `tidegate.truncated_join` with Spark DataFrames."""

    on: Required[Keys | Sequence[Mapping[str, str]]]
    keep: int | Sequence[int] | Mapping[str, int] | None
    delete: int | Sequence[int] | Mapping[str, int] | None
    method: Literal["optimal", "adg", "ndg", "independent"] | None
    time: StreamColumn | None
    per: Duration | None
    suffixes: Suffixes | None
    seed: int


class LocalTruncatedJoin(SparkTruncatedJoin, total=False):
    """Keywords of `tidegate.truncated_join` with local data."""

    counts: str | None
    keep_shed: bool


#: Settings by name, on their way to what checks them.
Settings = dict[str, Any]
