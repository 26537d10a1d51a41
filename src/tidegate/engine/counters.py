"""The counters that joins report: their units and what they mean.

The reference page of counters is made from this table.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: A flow counts events since the last report, a gauge describes the present state, a measure is a
#: flow that is a real number. Spark's operator adds counters of its own. The others depend on the
#: names of a query, or are reported once, by calls on whole inputs.
Kind = Literal["flow", "gauge", "measure", "operator", "whole"]


class Counter(NamedTuple):
    """One counter: its name, kind and unit, the joins that report it, and its meaning."""

    name: str
    kind: Kind
    unit: str
    joins: str
    meaning: str


COUNTERS = (
    Counter(
        "arrived",
        "flow",
        "rows",
        "all",
        "Rows that the join took in, without those of `null_keys` and `null_times`.",
    ),
    Counter(
        "out_of_order",
        "flow",
        "rows",
        "all",
        "Rows older than the newest row of their own stream. They still join.",
    ),
    Counter(
        "late",
        "flow",
        "rows",
        "all",
        "Rows that came after partners they should have met had expired. Results may be missing.",
    ),
    Counter("null_keys", "flow", "rows", "all", "Rows dropped because a key column is null."),
    Counter("null_times", "flow", "rows", "all", "Rows dropped because their time is null."),
    Counter(
        "filtered",
        "flow",
        "rows",
        "star, constrained",
        "Rows dropped before the join: no link of the relation, or a filter of the query, "
        "lets them join.",
    ),
    Counter(
        "copies", "flow", "rows", "star", "Rows that were sent to more than one shard, once each."
    ),
    Counter("admitted", "flow", "rows", "window, star, sampled", "Newcomers that were held."),
    Counter(
        "rejected",
        "flow",
        "rows",
        "window, star, sampled",
        "Newcomers that were never held, because rows of a higher rank filled the budget.",
    ),
    Counter(
        "shed",
        "flow",
        "rows",
        "window, star, sampled",
        "Held rows dropped before their window ended, to stay within the budget.",
    ),
    Counter("expired", "flow", "rows", "all", "Held rows dropped because their window ended."),
    Counter("results", "flow", "rows", "all", "Joined rows delivered."),
    Counter(
        "queue_shed",
        "flow",
        "rows",
        "window with `cpu=`",
        "Rows dropped from the queue before a slow processor.",
    ),
    Counter(
        "eliminated",
        "flow",
        "rows",
        "constrained",
        "Held rows dropped because a constraint says that they find no further partner.",
    ),
    Counter("violations", "flow", "rows", "constrained", "Rows that broke a constraint in use."),
    Counter("held", "gauge", "rows", "all", "Rows in the join's state."),
    Counter("held_left", "gauge", "rows", "window, sampled", "Held rows of the left stream."),
    Counter("held_right", "gauge", "rows", "window, sampled", "Held rows of the right stream."),
    Counter(
        "held_yes",
        "gauge",
        "rows",
        "constrained",
        "Held rows that have all the partners they depend on.",
    ),
    Counter(
        "held_no",
        "gauge",
        "rows",
        "constrained",
        "Held rows that can be in no result, kept to answer for others.",
    ),
    Counter(
        "held_unknown", "gauge", "rows", "constrained", "Held rows whose partners may still come."
    ),
    Counter(
        "allowed",
        "gauge",
        "rows or bytes, as `memory=`",
        "window, star, sampled",
        "The budget in force over all shards; in a pool, its present share. Null without a budget.",
    ),
    Counter(
        "waiting",
        "gauge",
        "rows",
        "all",
        "Rows of the newest tick in the input buffer, which the budget does not include. "
        "For aggregates, results of windows that are still open.",
    ),
    Counter(
        "queued",
        "gauge",
        "rows",
        "window with `cpu=`",
        "Rows in the queue before a slow processor.",
    ),
    Counter("bytes", "gauge", "bytes", "all", "Memory that held rows and their indexes use."),
    Counter("facts", "gauge", "links", "star", "Links of the relation that the join knows."),
    Counter(
        "importance",
        "measure",
        "as the importance column",
        "all",
        "Sum of the importance of the results; the number of results if none is given.",
    ),
    Counter(
        "foreseen", "measure", "results", "sampled", "Results that the model expects of all rows."
    ),
    Counter(
        "missed",
        "measure",
        "results",
        "sampled, constrained",
        "Results lost, estimated: those of rows too large for the budget in a sample, "
        "those that constraints cost in a constrained join.",
    ),
    Counter(
        "missed_low",
        "measure",
        "results",
        "constrained",
        "Lower end of the 95 % interval of `missed`, over the whole run.",
    ),
    Counter(
        "missed_high",
        "measure",
        "results",
        "constrained",
        "Upper end of that interval. Null where the sample gives no upper bound.",
    ),
    Counter(
        "monitored",
        "measure",
        "results",
        "sampled",
        "Results of the rows that are watched to check the model.",
    ),
    Counter(
        "beyond",
        "measure",
        "results",
        "sampled",
        "Monitored results that UNIFORM could not have sampled; `beyond / monitored` is its bias.",
    ),
    Counter("state_bytes", "operator", "bytes", "all on Spark", "State written by this batch."),
    Counter(
        "rebuilt",
        "operator",
        "shards",
        "all on Spark",
        "Shards that were rebuilt from stored state, because their process was new.",
    ),
    Counter("shards", "operator", "shards", "all on Spark", "Shards that ran in this batch."),
    Counter(
        "settings_changed",
        "operator",
        "shards",
        "window on Spark",
        "Shards that went on with changed settings, in the first batch after the restart.",
    ),
    Counter(
        "variance",
        "whole",
        "results squared",
        "sampled, local",
        "Variance that the model expects of a count by this sample.",
    ),
    Counter(
        "peak_held", "whole", "rows", "constrained, local", "The most rows held after any batch."
    ),
    Counter(
        "held of <stream>", "whole", "rows", "constrained", "Rows of one stream that are held."
    ),
    Counter(
        "k of <constraint>",
        "whole",
        "rows or time, as the constraint",
        "constrained",
        "The k in use for each constraint; infinite (null on Spark) if it is not in use.",
    ),
    Counter(
        "use of <constraint>",
        "whole",
        "share",
        "constrained",
        "The share of the rows during which a constraint was in use.",
    ),
    Counter("kept", "whole", "rows", "truncated", "Rows that the plan keeps, of all inputs."),
    Counter("kept_<input>", "whole", "rows", "truncated", "Rows that the plan keeps of one input."),
    Counter(
        "exact_results",
        "whole",
        "rows",
        "truncated, `optimal_star`",
        "Results of the join without a budget.",
    ),
    Counter(
        "exact_importance",
        "whole",
        "as the importance column",
        "`optimal_star`",
        "Importance of the join without a budget.",
    ),
)


def _named(kind: Kind) -> tuple[str, ...]:
    return tuple(counter.name for counter in COUNTERS if counter.kind == kind)


def reported_by(kind: str) -> frozenset[str]:
    """Return the names of the counters that one kind of join reports (`Job.kind`)."""
    return frozenset(
        counter.name
        for counter in COUNTERS
        for joins in counter.joins.split(", ")
        if joins.startswith("all") or kind.startswith(joins.removesuffix(" on Spark"))
    )


FLOWS = _named("flow")
GAUGES = _named("gauge")
MEASURES = _named("measure")
#: Of Spark's operator: what it wrote and rebuilt.
OPERATOR = _named("operator")
