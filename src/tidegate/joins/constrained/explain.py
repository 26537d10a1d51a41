"""Explain what a constrained join holds, and which missing constraint keeps it from dropping it."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.joins.constrained.graph import Edge
from tidegate.joins.constrained.spec import ConstrainedJoin
from tidegate.settings.times import TimeUnit

Components = Mapping[str, Mapping[str, int]]
#: The k in use of each constraint, by its text; None if it is not used now.
Adherence = Mapping[str, int | None]


def explain(spec: ConstrainedJoin, held: Components, used: Adherence, sampled: int) -> str:
    """Return what each stream holds and what blocks elimination, as lines of text."""
    blocked = blocks(spec, held, used)
    lines = []
    for name, parts in held.items():
        shown = ", ".join(f"{parts[part]:,} {part}" for part in ("yes", "no", "unknown"))
        lines.append(f"{name}: {sum(parts.values()):,} rows held ({shown})")
        lines += [f"  {reason}" for reason in blocked[name]]
    for text, k in used.items():
        known = next(c for c in spec.constraints if c.text == text)
        if k is None:
            lines.append(f"{text}: not used now")
        else:
            shown = length_text(k, spec.unit) if known.in_time else f"{k:,} rows"
            lines.append(f"{text}: used with k = {shown}")
    if sampled:
        lines.append(f"{sampled:,} rows are held only because they are sampled (Monitor.p)")
    return "\n".join(lines)


def blocks(spec: ConstrainedJoin, held: Components, used: Adherence) -> dict[str, list[str]]:
    """Return for each stream what blocks the elimination of the rows that it holds."""
    found: dict[str, list[str]] = {stream.name: [] for stream in spec.streams}
    if not spec.eliminate:
        return {name: ["every row is held for its window: eliminate=False"] for name in found}
    graph = spec.graph
    for at, stream in enumerate(spec.streams):
        parts, reasons = held[stream.name], found[stream.name]
        if parts["unknown"]:
            for e in graph.children(at):
                edge = graph.edges[e]
                if not _any_used(spec, used, e, ("RIDS", "OAC")):
                    reasons.append(
                        f"unknown rows wait for {spec.streams[edge.child].name} until their window "
                        f"ends: {_missing(spec, e, ('RIDS', 'OAC'))}"
                    )
        ups = graph.parents(at)
        open_ups = [e for e in ups if not _any_used(spec, used, e, ("CA", "OAP"))]
        if parts["yes"] and ups and open_ups:
            names = " and ".join(spec.streams[graph.edges[e].parent].name for e in open_ups)
            wanted = "; ".join(_missing(spec, e, ("CA", "OAP")) for e in open_ups)
            reasons.append(f"yes rows wait for more rows of {names}: {wanted}")
        untold = [e for e in ups if not _any_used(spec, used, e, ("RIDS", "OAC"))]
        if parts["no"] and untold:
            names = " and ".join(spec.streams[graph.edges[e].parent].name for e in untold)
            wanted = "; ".join(_missing(spec, e, ("RIDS", "OAC")) for e in untold)
            reasons.append(f"no rows are kept to tell {names}: {wanted}")
        elif parts["no"]:
            reasons.append("no rows are kept as a trial, or because the state is smaller (choose)")
        if parts["yes"] and not ups and not _covers_alone(spec, at):
            reasons.append("yes rows of a root are held for the rows of other roots")
    return found


def length_text(k: int, unit: TimeUnit) -> str:
    """Return a length of time as text: in seconds, or a number if times are numbers."""
    if unit.is_time:
        return f"{float(k / unit.per_unit / 10**9):,g} s"
    return f"{float(k / unit.per_unit):,g}"


def _covers_alone(spec: ConstrainedJoin, stream: int) -> bool:
    return (stream,) in spec.graph.minimal_covers


def _any_used(spec: ConstrainedJoin, used: Adherence, edge: int, kinds: tuple[str, ...]) -> bool:
    return any(
        known.kind in kinds and edge in known.edges and used[known.text] is not None
        for known in spec.constraints
    )


def _missing(spec: ConstrainedJoin, e: int, kinds: tuple[str, ...]) -> str:
    """Name the constraint that would help: one that is not used now, or one to give."""
    idle = [known.text for known in spec.constraints if known.kind in kinds and e in known.edges]
    if idle:
        return f"{' and '.join(idle)} not used now"
    return f"no {' or '.join(_example(spec, spec.graph.edges[e], kind) for kind in kinds)} is given"


def _example(spec: ConstrainedJoin, edge: Edge, kind: str) -> str:
    parent, child = spec.streams[edge.parent].name, spec.streams[edge.child].name
    if kind == "RIDS":
        return f'RIDS("{parent} -> {child}")'
    if kind == "OAC":
        return f'OAC("{child}.{edge.child_keys[0]}")'
    return f'{kind}("{parent}.{edge.parent_keys[0]}")'
