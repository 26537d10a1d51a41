"""The keywords of each public call as types, so that editors complete and checkers check them.

There is one set for Spark DataFrames and one for local data where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from tidegate.joins.constrained.constraints import Constraint, Monitor
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
    TimeColumn,
    Within,
    WithinStreams,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.pool_controller import Share


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


class SparkJoin(_Join, total=False):
    """Keywords of `tidegate.join` with Spark DataFrames."""

    memory: Memory | Share
    shards: int | None


class LocalJoin(_Join, total=False):
    """Keywords of `tidegate.join` with local data."""

    memory: Memory
    batch_rows: int | None
    keep_shed: bool


class _StarJoin(TypedDict, total=False):
    on: Required[Keys | Sequence[Keys] | Mapping[str, Keys]]
    time: Required[StreamColumn]
    within: WithinStreams
    closed: bool
    interval: tuple[str, str] | None
    changes: tuple[str, str] | None
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


class SparkStarJoin(_StarJoin, total=False):
    """Keywords of `tidegate.star_join` with Spark DataFrames."""

    memory: int | str | Share | None
    shards: int | None


class LocalStarJoin(_StarJoin, total=False):
    """Keywords of `tidegate.star_join` with local data."""

    memory: int | str | None
    batch_rows: int | None
    keep_shed: bool


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


class SparkSampleJoin(_SampleJoin, total=False):
    """Keywords of `tidegate.sample_join` with Spark DataFrames."""

    memory: int | str | Share | None
    shards: int | None


class LocalSampleJoin(_SampleJoin, total=False):
    """Keywords of `tidegate.sample_join` with local data."""

    memory: int | str | None
    batch_rows: int | None
    keep_shed: bool


class Estimate(TypedDict, total=False):
    """Keywords of `tidegate.estimate`."""

    value: str | None
    by: str | Sequence[str] | None
    time: str | Sequence[str] | None
    per: Duration | None
    confidence: float
    lateness: Duration
    groups: DataFrame | LocalData | None


class _Constrained(TypedDict, total=False):
    constraints: Constraint | Sequence[Constraint] | None
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


class SparkConstrainedJoin(_ConstrainedJoin, total=False):
    """Keywords of `tidegate.constrained_join` with Spark DataFrames."""

    shards: int | None
    shed_to: str | None


class LocalConstrainedJoin(_ConstrainedJoin, total=False):
    """Keywords of `tidegate.constrained_join` with local data."""

    batch_rows: int | None
    keep_shed: bool


class _Cql(_Constrained, total=False):
    time: Required[StreamColumn]
    unique: Required[str | Sequence[str]]
    closed: bool


class SparkCql(_Cql, total=False):
    """Keywords of `tidegate.cql` with Spark DataFrames."""

    shards: int | None
    shed_to: str | None


class LocalCql(_Cql, total=False):
    """Keywords of `tidegate.cql` with local data."""

    batch_rows: int | None
    keep_shed: bool


class LocalRepair(_Constrained, total=False):
    """Keywords of `tidegate.repair` with local data."""

    query: str | None
    unique: str | Sequence[str] | None
    joins: str | Sequence[str] | None
    time: Required[StreamColumn]
    within: WithinStreams
    closed: bool
    filters: Mapping[str, str] | None
    select: str | Sequence[str] | None
    suffixes: Suffixes | None


class SparkRepair(LocalRepair, total=False):
    """Keywords of `tidegate.repair` with Spark DataFrames."""

    shards: int | None


class SparkTruncatedJoin(TypedDict, total=False):
    """Keywords of `tidegate.truncated_join` with Spark DataFrames."""

    on: Required[Keys]
    keep: int | Sequence[int] | None
    delete: int | Sequence[int] | None
    method: Literal["optimal", "adg", "ndg", "independent"] | None
    time: str | Sequence[str] | None
    per: Duration | None
    suffixes: Suffixes | None
    seed: int


class LocalTruncatedJoin(SparkTruncatedJoin, total=False):
    """Keywords of `tidegate.truncated_join` with local data."""

    keep_shed: bool


#: Settings by name, on their way to what checks them.
Settings = dict[str, Any]
