"""`tidegate.optimal_star`: the best result that any policy could have reached in a star join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tidegate.api.inputs import is_spark, local_table
from tidegate.api.public_call import public_call
from tidegate.errors import TidegateError
from tidegate.joins.star.spec import FACT, RELATION, star_join
from tidegate.optimal.star import OSSJ, best_star
from tidegate.settings.by_stream import named_streams
from tidegate.settings.checks import input_of
from tidegate.settings.types import (
    Combine,
    Keys,
    Lateness,
    LocalData,
    ShedWhen,
    StreamColumn,
    Suffixes,
    WithinStreams,
)


@public_call(
    policy="the optimum takes no policy; leave it out, and compare it with tidegate.star_join",
    changes="the optimum takes no stream of changes; give links with an interval",
)
def optimal_star(
    streams: Sequence[LocalData] | Mapping[str, LocalData],
    relation: LocalData,
    *,
    on: Keys | Sequence[Keys] | Mapping[str, Keys],
    time: StreamColumn,
    within: WithinStreams = None,
    closed: bool = False,
    interval: tuple[str, str] | None = None,
    fact: str | Sequence[str] | None = None,
    memory: int | str | None = None,
    split: Literal["shared", "fixed"] = "shared",
    shed_when: ShedWhen = "after-probe",
    importance: StreamColumn | None = None,
    importance_limit: float | None = None,
    combine: Combine | None = None,
    lateness: Lateness = None,
    suffixes: Suffixes | None = None,
    seed: int = 0,
) -> OSSJ:
    """Find the best result of a star join of two streams, knowing all rows beforehand.

    With an `importance`, the total importance is maximised, otherwise the number of results, which
    the paper calls SJA-S.

    Parameters
    ----------
    streams
        Two streams of local data, as `tidegate.star_join` takes them.
    relation
        The links, with or without an interval. Inserts and deletes are begins and ends of
        intervals.
    on, time, within, closed, interval, fact, memory, split, importance, importance_limit, combine
        As in `tidegate.star_join`.
    shed_when
        ``"after-probe"``, or ``"before-probe"``, which is the paper's.
    suffixes
        As in `tidegate.star_join`.
    lateness, seed
        Accepted, so that the settings of a join can be given as they are; not used.

    Returns
    -------
    OSSJ
        Like `tidegate.Result`, with `keep_until` and `upper_bound`.

    Examples
    --------
    >>> import tidegate as tg
    >>> calls = {"cell": [1, 2, 2], "ts": [0, 1, 2]}
    >>> cars = {"road": ["A", "B", "B"], "ts": [3, 4, 5]}
    >>> near = {"cell": [1, 2], "road": ["A", "B"]}
    >>> join = dict(on=["cell", "road"], time="ts", within=10)
    >>> tg.star_join([calls, cars], near, **join).results
    5
    >>> tg.optimal_star([calls, cars], near, **join, memory=1).results
    2

    References
    ----------
    Towne, Zhu, Zuzarte, Hou, *Window Query Processing for Joining Data Streams with Relations*,
    section 3.1.
    """
    given = named_streams(streams, FACT)
    for name, data in (*given.items(), (RELATION, relation)):
        if is_spark(data):
            raise TidegateError(
                f"{input_of(name)} is a Spark DataFrame, and the optimum of a star join is found "
                "in this process: give batch DataFrames with .toArrow()"
            )
    tables = {name: local_table(data) for name, data in given.items()}
    links = local_table(relation)
    spec = star_join(
        {name: table.schema for name, table in tables.items()},
        links.schema,
        on=on,
        time=time,
        within=within,
        closed=closed,
        interval=interval,
        fact=fact,
        memory=memory,
        split=split,
        shed_when=shed_when,
        importance=importance,
        importance_limit=importance_limit,
        combine=combine,
        lateness=lateness,
        suffixes=suffixes,
        seed=seed,
    )
    return best_star(spec, list(tables.values()), links)
