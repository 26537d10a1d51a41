"""`tidegate.star_join`: streams joined through a relation, on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError
from tidegate.joins.star.job import StarJob
from tidegate.joins.star.shadow import StarCopies
from tidegate.joins.star.spec import RELATION, named
from tidegate.joins.star.spec import star_join as spec_of_star
from tidegate.joins.window.spec import check_collations
from tidegate.policies import Policy
from tidegate.settings.checks import input_of
from tidegate.settings.values import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def star_join(
    streams: Sequence[DataFrame] | Mapping[str, DataFrame],
    relation: DataFrame,
    *,
    on: Any,
    time: Any,
    within: Any = None,
    interval: tuple[str, str] | None = None,
    changes: tuple[str, str] | None = None,
    fact: str | Sequence[str] | None = None,
    memory: Any = None,
    split: str = "shared",
    policy: str | Policy = "auto",
    shed_when: str = "after-probe",
    importance: Any = None,
    importance_limit: float | None = None,
    combine: str | None = None,
    lateness: Any = None,
    shards: int | None = None,
    suffixes: Sequence[str] | None = None,
    seed: int = 0,
) -> DataFrame:
    """Join streams through a relation, in a fixed amount of memory.

    A result combines a row of each stream and a fact, a row of the relation, that has the keys of
    all of them and is active at all their times. The last of the rows must come within the
    windows of the others.

    Parameters
    ----------
    streams
        Spark DataFrames, all streaming or all batch: a list of one or more, which are then called
        "s1", "s2" and so on, or a mapping of names to them. Settings that are said to be for each
        stream are one for all, a list with one for each, or a mapping of the same names.
    relation
        The facts: a batch DataFrame, read once, here and now, and sent to the workers once. Or,
        with `changes`, a stream of changes of them, of the same kind as the streams.
    on
        For each stream its key and that of the relation: a column name that both have, a list of
        them, or a ``{stream's: relation's}`` mapping. A list for all streams has one for each of
        them: several columns for each are a list of lists.
    time
        The event time column of each stream: timestamps, dates or numbers.
    within
        The window of each stream: how long a row waits for others, as `tidegate.join` has it.
        One stream alone has none.
    interval
        The two columns of the relation that say from when and until when a fact is active; the end
        is excluded, and a null is an end that is open. A fact that ends as it begins is never
        active, and plays no part. None, if facts are always active.
    changes
        The columns of a stream of changes with the operation, ``"insert"``, ``"delete"`` or
        ``"update"``, and its time. A change must not come after rows of its time and later have
        been joined, and has no effect on those that came before it. At one time a fact may have
        one change, or a delete and an insert, which replace it; the same change twice is one, and
        others are refused, in whatever batches they come until rows of their time are joined.
        After that none is taken, the same again neither: a source that delivers twice has to be
        freed of repetitions before. With changes there is one shard, and the
        results of a time come once a later one has arrived.
    fact
        The columns that tell facts apart. By default the keys in a stream of changes, and in a
        table all columns but the interval. Name others, such as an id, where several facts have
        the same keys, or where an update changes a key.
    memory
        How many rows are held at the most, over all shards. None keeps everything. Or a share of
        a `tidegate.MemoryPool`.
    split
        ``"shared"`` for one memory, ``"fixed"`` for an equal share of it for each stream.
    policy
        Which rows to keep when not all fit: ``"auto"``, ``"prob"``, ``"simp"``, ``"simpprob"``,
        ``"dimpprob"``, ``"dgl"``, ``"rand"``, ``"fifo"``, ``"until-expiry"``, ``"greedy"``, or a
        policy that ranks rows.
    moment
        When a victim leaves: ``"after-probe"``, ``"before-probe"`` or ``"before-arrival"``.
    importance, importance_limit, combine
        For each stream, the column that says how important a row is: a finite number above 0,
        and at most the limit, if there is one. And how the importance of a result follows:
        ``"min"`` (the default), ``"max"``, ``"sum"`` or ``"product"``.
    lateness
        How long rows are kept beyond their window for partners that come late. By default the
        delay of the streams' watermarks, and 0 without any.
    shards
        In how many parts the join is run, by the connected components of the relation. Where there
        are too few of these, rows are copied to all parts that their facts are in.
    suffixes
        What is added to column names that several inputs have: one for each stream, and one for
        the relation. By default the names of the streams, and ``"_fact"``.
    seed
        For policies that draw lots.

    Returns
    -------
    DataFrame
        The columns of the streams, then those of the relation that are no keys. Counters are
        observed as those of `tidegate.join` are; ``filtered`` says how many rows were dropped for
        want of an active fact, ``copies`` how many were sent to more than one shard.

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*.
    """
    from tidegate.spark import operator, packing, watermarks
    from tidegate.spark.pool_controller import PoolMembership, shared
    from tidegate.spark.relation import ship

    share, memory = shared(memory)
    frames = named(streams)
    for name, frame in (*frames.items(), (RELATION, relation)):
        if not hasattr(frame, "mapInArrow"):
            raise TidegateError(
                f"{input_of(name)} must be a Spark DataFrame, not {type(frame).__name__}; "
                "tidegate.local.star_join takes Arrow tables and pandas"
            )
    spec = spec_of_star(
        {name: packing.arrow_schema(frame.schema) for name, frame in frames.items()},
        packing.arrow_schema(relation.schema),
        on=on,
        time=time,
        within=within,
        interval=interval,
        changes=changes,
        fact=fact,
        memory=memory,
        split=split,
        policy=policy,
        shed_when=shed_when,
        importance=importance,
        importance_limit=importance_limit,
        combine=combine,
        lateness=lateness,
        suffixes=suffixes,
        seed=seed,
    )
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
