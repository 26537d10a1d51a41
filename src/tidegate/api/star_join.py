"""`tidegate.star_join`: streams joined through a relation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tidegate.api import run_local
from tidegate.api.inputs import (
    all_on_spark,
    local_settings,
    local_table,
    refuse_local_settings,
)
from tidegate.api.keywords import LocalStarJoin, Settings, SparkStarJoin
from tidegate.api.public_call import public_call
from tidegate.api.result import Result
from tidegate.errors import TidegateError
from tidegate.joins.star.change_feeds import changes_of, feed_of
from tidegate.joins.star.job import LocalRelation, StarJob, in_order
from tidegate.joins.star.shadow import StarCopies
from tidegate.joins.star.spec import FACT, RELATION
from tidegate.joins.star.spec import star_join as star_spec
from tidegate.joins.window.spec import check_collations
from tidegate.settings.by_stream import named_streams
from tidegate.settings.types import (
    LocalData,
)
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidegate.spark.pool_controller import Share


@overload
def star_join(  # type: ignore[overload-overlap]
    streams: Sequence[DataFrame] | Mapping[str, DataFrame],
    relation: DataFrame,
    **settings: Unpack[SparkStarJoin],
) -> DataFrame: ...
@overload
def star_join(
    streams: Sequence[LocalData] | Mapping[str, LocalData],
    relation: LocalData,
    **settings: Unpack[LocalStarJoin],
) -> Result: ...
@public_call(checked_by=star_spec)
def star_join(
    streams: Any,
    relation: Any,
    *,
    memory: int | str | Share | None = None,
    shards: int | None = None,
    relation_changes: Literal["apply", "refuse"] | None = None,
    batch_rows: int | None = None,
    keep_shed: bool = False,
    **settings: Any,
) -> Any:
    """Join streams through a relation within a fixed memory budget.

    A result combines a row of each stream and a link, a row of the relation. The link has the keys
    of all these rows and is active at all their times. The last of the rows must arrive within the
    windows of the others.

    Parameters
    ----------
    streams
        Spark DataFrames, all streaming or all batch, or local data as `tidegate.join` takes it: a
        mapping by name, or a list, whose streams are named "s1", "s2" and so on. Settings for each
        stream are one for all, a list with one for each, or a mapping by name.
    relation
        The links. A batch DataFrame is read once, when this is called, and sent to the workers.
        With `changes`, it is a stream of changes, of the same kind as the streams.
    on
        The key of each stream and of the relation: a column name that both have, a list of them, or
        a ``{stream's: relation's}`` mapping. A list has one for each stream, so several columns for
        each are a list of lists.
    time
        The event time column of each stream: timestamps, dates or numbers.
    within
        The window of each stream: how long a row waits for others, as in `tidegate.join`. A single
        stream has none.
    closed
        True includes the end of a window: rows exactly a window apart join as well.
    interval
        The two columns of the relation with the begin and the end of the time in which a link is
        active. The end is excluded; a null is an open end. A link that ends when it begins is never
        active. None if links are always active.
    changes
        The columns of a stream of changes with the operation, ``"insert"``, ``"delete"`` or
        ``"update"``, and its time. A change must arrive before rows of its time and later are
        joined, and does not affect earlier rows. At one time a link may have one change, or a
        delete and an insert, which replace it. The same change twice counts once; other changes of
        the same link and time are refused. Once rows of its time have been joined, no change is
        accepted, not even a repeated one: remove duplicates from sources that deliver twice. With
        changes there is one shard, and the results of a time come when a later one has arrived.
        The codes of Delta's change feed and of Debezium are operations as well. ``"delta"`` takes
        a change feed with its columns ``_change_type`` and ``_commit_timestamp``, ``"debezium"``
        takes records with ``op``, ``before`` and ``after``, or unwrapped ones with ``__op``.
    fact
        The columns that identify a link. By default the keys in a stream of changes, and in a table
        all columns except the interval. Name others, such as an id, if several links have the same
        keys, or if an update changes a key.
    memory
        The most rows that are held, over all shards. None keeps everything. With Spark DataFrames,
        it can also be a share of a `tidegate.MemoryPool`.
    split
        ``"shared"`` for one memory, ``"fixed"`` for an equal share for each stream.
    policy
        Which rows to keep when not all fit: ``"auto"``, ``"prob"``, ``"simp"``, ``"simpprob"``,
        ``"dimpprob"``, ``"dgl"``, ``"rand"``, ``"fifo"``, ``"until-expiry"``, ``"greedy"``, or a
        policy that ranks rows.
    shed_when
        When rows are shed: ``"after-probe"``, ``"before-probe"`` or ``"before-arrival"``.
    importance, importance_limit, combine
        The column of each stream with the importance of a row: a finite number above 0, and at most
        the limit, if one is given. And how the importance of a result follows: ``"min"`` (the
        default), ``"max"``, ``"sum"`` or ``"product"``.
    lateness
        How much older than the newest row of its own stream a row may be without losing results, as
        in `tidegate.join`.
    suffixes
        What is added to column names that several inputs have: one for each stream, and one for
        the relation. By default the names of the streams, and ``"_fact"``.
    seed
        The seed of policies that choose at random.
    shards
        The number of parts of the join, by the connected components of the relation. If there are
        too few components, rows are copied to all parts that have their links. Only with Spark
        DataFrames.
    relation_changes
        What happens if a relation without `changes` has another content after a restart from a
        checkpoint. ``"apply"``: links that are gone end, and new ones begin, just after the newest
        row that was read before the restart. ``"refuse"``: an error. By default, it is applied if
        there is one shard, and refused otherwise. With ``"apply"`` and several shards, the key of
        the first stream alone decides on the shard of a link, and rows of other streams are copied
        to all shards that have their links. Only with Spark DataFrames.
    batch_rows, keep_shed
        As in `tidegate.join`. Only with local data.

    Returns
    -------
    DataFrame or Result
        A DataFrame from DataFrames, a `Result` from local data: the columns of the streams, then
        those of the relation that are not keys. Counters are as in `tidegate.join`; ``filtered`` is
        the number of rows without an active link, ``copies`` the number of rows that were sent to
        more than one shard.

    Examples
    --------
    >>> import tidegate as tg
    >>> phones = {"cell": [1, 2], "ts": [0, 1]}
    >>> cars = {"road": ["A1", "A1"], "ts": [2, 30]}
    >>> near = {"cell": [1, 2], "road": ["A1", "B7"]}
    >>> found = tg.star_join([phones, cars], near, on=["cell", "road"], time="ts", within=10)
    >>> found.table.to_pylist()
    [{'cell': 1, 'ts_s1': 0, 'road': 'A1', 'ts_s2': 2}]

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*.
    """
    given = named_streams(streams, FACT)
    if all_on_spark({**given, RELATION: relation}):
        refuse_local_settings(batch_rows, keep_shed)
        settings |= {"relation_changes": relation_changes}
        return _on_spark(given, relation, settings, memory, shards)
    at_once, kept = local_settings(
        batch_rows, keep_shed, shards=shards, relation_changes=relation_changes, memory=memory
    )
    tables = {name: local_table(data) for name, data in given.items()}
    links = local_table(relation)
    schemas = {name: table.schema for name, table in tables.items()}
    feed = feed_of(settings.get("changes"), links.schema, _times(schemas, settings))
    if feed is not None:
        links, settings["changes"] = changes_of(feed, links), feed.changes
    spec = star_spec(schemas, links.schema, memory=memory, **settings)
    if spec.dynamic:
        return run_local.run(StarJob(spec, None), [*tables.values(), links], at_once, kept)
    job = StarJob(spec, LocalRelation(*in_order(links)))
    return run_local.run(job, [*tables.values()], at_once, kept)


def _times(schemas: Mapping[str, pa.Schema], settings: Settings) -> list[pa.DataType]:
    """Return the types of all columns that may be the time of a stream."""
    said = settings.get("time")
    names = {one for one in [said, *_values(said)] if isinstance(one, str)}
    return [field.type for schema in schemas.values() for field in schema if field.name in names]


def _values(said: Any) -> Iterable[Any]:
    if isinstance(said, Mapping):
        return said.values()
    return said if isinstance(said, list | tuple) else ()


def _on_spark(
    frames: dict[str, DataFrame],
    relation: DataFrame,
    settings: Settings,
    memory: Any,
    shards: int | None,
) -> DataFrame:
    from tidegate.spark import operator, packing, watermarks
    from tidegate.spark.pool_controller import PoolMembership, shared
    from tidegate.spark.relation import changes_of_frame, ship

    share, memory = shared(memory)
    schemas = {name: packing.arrow_schema(frame.schema) for name, frame in frames.items()}
    given = packing.arrow_schema(relation.schema)
    feed = feed_of(settings.get("changes"), given, _times(schemas, settings))
    if feed is not None:
        relation, settings["changes"] = changes_of_frame(feed, relation), feed.changes
    spec = star_spec(schemas, packing.arrow_schema(relation.schema), memory=memory, **settings)
    for frame, side, keys in zip(frames.values(), spec.streams, spec.relation.keys, strict=True):
        check_collations(frame, side.keys)
        check_collations(relation, keys)
    if spec.dynamic:
        if shards not in (None, 1):
            raise TidegateError(
                f"a relation that changes may connect any rows, so it takes one shard, not "
                f"{quoted(shards)}; leave shards out"
            )
        job = StarJob(spec, None)
    else:
        if relation.isStreaming:
            raise TidegateError(
                "the relation is a streaming DataFrame: read it with spark.read, or say what its "
                'rows do with changes=("operation", "time")'
            )
        job = StarJob(spec, ship(relation))
        job.check()
    marked = watermarks.hold_back([*frames.values()], [side.time for side in spec.streams], spec)
    carried = [(None, f) for f in relation.schema if f.name in spec.relation.carried]
    schema = marked.schema(spec.names, [*marked.columns, *carried])
    place = None if share is None else PoolMembership(share, StarCopies(job))
    inputs = [*marked.inputs, relation] if spec.dynamic else marked.inputs
    return operator.run(
        job, inputs, shards=shards, most=spec.most_shards, schema=schema, share=place
    )
