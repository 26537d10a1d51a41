"""Make the pages of the reference from the code and from the tests."""

from __future__ import annotations

import ast
import csv
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tidegate as tg
from tidegate import conformance, quality, streams
from tidegate.engine.counters import COUNTERS

# ---- public names --------------------------------------------------------------------------------


def public_names() -> dict[str, list[str]]:
    """Return the full names of everything public, by section of the page."""
    sections: dict[str, list[str]] = {
        "Calls": [],
        "Policies": [],
        "Constraints": [],
        "Results, settings and errors": [],
    }
    for name in getattr(tg, "__all__"):  # noqa: B009
        public = getattr(tg, name)
        home = public.__module__
        if home.startswith("tidegate.policies"):
            section = "Policies"
        elif home == "tidegate.joins.constrained.constraints":
            section = "Constraints"
        elif inspect.isfunction(public) or name == "MemoryPool":
            section = "Calls"
        else:
            section = "Results, settings and errors"
        sections[section].append(f"{home}.{name}")
    sections["Spark"] = [
        "tidegate.spark.session.session",
        "tidegate.spark.metrics.observed",
        "tidegate.spark.checkpoint.read_checkpoint",
    ]
    sections["Tests of a join"] = ["tidegate.testing.JoinRun"]
    for title, module in (
        ("Streams to try things on", streams),
        ("How good a result is", quality),
        ("Checks of a policy of your own", conformance),
    ):
        sections[title] = [
            f"{found.__module__}.{name}"
            for name, found in vars(module).items()
            if inspect.isfunction(found)
            and found.__module__.startswith(module.__name__)
            and not name.startswith("_")
        ]
    return {
        title: sorted(names, key=lambda name: name.rpartition(".")[2].lower())
        for title, names in sections.items()
    }


def api() -> str:
    """Return the page of public names; mkdocstrings fills in the docstrings."""
    parts = [
        "# Public names\n\nEverything below is `tg.<name>` after `import tidegate as tg`, unless "
        "it shows another module. Names that are not on this page may change in any version."
    ]
    for title, names in public_names().items():
        parts.append(f"## {title}")
        for name in names:
            _, _, short = name.rpartition(".")
            shown = f"tg.{short}" if short in getattr(tg, "__all__") else name  # noqa: B009
            # What a policy has besides its settings is described once, on Policy.
            alone = title == "Policies" and short != "Policy"
            options = ["", "options:", f"  heading: {shown}", *["  members: false"] * alone]
            parts.append(f"::: {name}" + "\n    ".join(options) + "\n")
    return "\n\n".join(parts) + "\n"


# ---- counters ------------------------------------------------------------------------------------

_KINDS = {
    "flow": "Flows: what happened since the last report",
    "gauge": "Gauges: the present state",
    "measure": "Flows that are real numbers",
    "operator": "Of the Spark operator",
    "whole": "Of calls that report once",
}


def counters() -> str:
    """Return the page of counters."""
    parts = [
        "# Counters\n\nEvery join counts what it does. Local calls return the counters in "
        "`Result.counters`. On Spark, every batch reports them: "
        "`tidegate.spark.metrics.observed(query.lastProgress)` reads them "
        "([Watch](../howto/watch.md)). With several shards, a counter is the sum over all shards."
    ]
    for kind, title in _KINDS.items():
        rows = [
            f"| `{each.name}` | {each.unit} | {each.joins} | {each.meaning} |"
            for each in COUNTERS
            if each.kind == kind
        ]
        head = "| counter | unit | joins | meaning |\n|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{head}" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


# ---- errors --------------------------------------------------------------------------------------

#: Titles of the parts of tidegate, in the order of the page.
_AREAS = {
    "api": "Calls and their inputs",
    "settings": "Settings",
    "policies": "Policies",
    "joins.window": "Window joins",
    "joins.star": "Star joins",
    "joins.constrained": "Constrained joins",
    "joins.sampled": "Samples and estimates",
    "joins.truncated": "Truncated joins",
    "sql": "Conditions and CQL",
    "optimal": "The optimum",
    "pool": "Memory pools",
    "spark": "Spark",
    "engine": "Rows and stored state",
    "streams": "Streams to try things on",
    "quality": "How good a result is",
    "conformance": "Checks of a policy of your own",
    "testing": "Tests of a join",
    "cli": "The command line",
    "report": "Tables and plots",
    "errors": "Missing packages",
}


class Failure(NamedTuple):
    """A place that raises a TidegateError."""

    module: str
    message: str
    cause: str


def failures(source: Path) -> Iterator[Failure]:
    """Find every TidegateError in the sources."""
    for path in sorted((source / "tidegate").rglob("*.py")):
        module = ".".join(path.relative_to(source / "tidegate").with_suffix("").parts)
        module = module.removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        yield from _failures_in(tree, module, _first_sentence(tree))


def _failures_in(node: ast.AST, module: str, cause: str) -> Iterator[Failure]:
    for child in ast.iter_child_nodes(node):
        nearer = cause
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            nearer = _first_sentence(child) or cause
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Name)
            and child.func.id == "TidegateError"
            and child.args
        ):
            yield Failure(module, _message(child.args[0]), nearer)
        yield from _failures_in(child, module, nearer)


def _first_sentence(node: ast.AST) -> str:
    text = ast.get_docstring(node) if hasattr(node, "body") else None  # type: ignore[arg-type]
    return " ".join((text or "").partition("\n\n")[0].split())


def _message(node: ast.expr) -> str:
    """Return a message as a reader sees it, with the names of the values that it quotes."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_message(value) for value in values)
        case ast.BinOp(left=left, right=right):
            return _message(left) + _message(right)
        case ast.IfExp(body=body):
            return _message(body)
        case ast.FormattedValue(value=ast.Call(args=[value])) | ast.FormattedValue(value=value):
            match value:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    return "{" + name.strip("_") + "}"
    return "…"


def errors(source: Path) -> str:
    """Return the page of errors."""
    found = list(failures(source))
    unknown = {each.module for each in found if _area(each.module) not in _AREAS}
    assert not unknown, f"give these modules a title in {__file__}: {unknown}"
    parts = [
        "# Errors\n\nEvery problem that you can fix is a `tg.TidegateError` (a `ValueError`). Its "
        "message quotes the value, says what was expected and what to do. This page lists all of "
        f"them, {len(found)} in number, made from the code; `{{name}}` and `…` stand for "
        "what a message quotes. "
        "Search for a few words of the message you see. [Troubleshoot](../howto/troubleshoot.md) "
        "has problems that show in other ways."
    ]
    for area, title in _AREAS.items():
        rows = [
            f"| {_cell(each.message)} | {_cell(each.cause)} |"
            for each in found
            if _area(each.module) == area
        ]
        if rows:
            head = "| message | raised where the code does this |\n|---|---|\n"
            parts.append(f"## {title}\n\n{head}" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _area(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "joins" else parts[0]


def _cell(text: str) -> str:
    """Return a text as the cell of a table."""
    plain = " ".join(text.split())
    for letter in "\\|*_<>[]`{}":
        plain = plain.replace(letter, f"&#{ord(letter)};")
    return plain


# ---- what runs where -----------------------------------------------------------------------------


def support(docs: Path) -> str:
    """Return the page that says what runs where, from the table that the tests check."""
    with (docs / "reference" / "support.csv").open() as file:
        rows = list(csv.DictReader(file))
    places = list(dict.fromkeys(row["place"] for row in rows))
    calls = list(dict.fromkeys(row["call"] for row in rows))
    answers = {(row["call"], row["place"]): row["answer"] for row in rows}
    lines = [
        f"| `tg.{call}` | " + " | ".join(answers.get((call, place), "") for place in places) + " |"
        for call in calls
    ]
    head = f"| call | {' | '.join(places)} |\n|---|{'---|' * len(places)}\n"
    tests = [f"| `tg.{r['call']}` | {r['place']} | `{r['test']}` |" for r in rows]
    return (
        "# What runs where\n\nClassic Spark is a session with a Java driver, Connect a session of "
        "Spark Connect. A stream is a DataFrame of `spark.readStream`, a batch one of "
        "`spark.read`; inside `foreachBatch` every DataFrame is a batch. Local data is pandas, "
        "Polars, Arrow, or a mapping of columns.\n\n"
        f"{head}" + "\n".join(lines) + "\n\n"
        "*yes*: a test runs it. *refused*: a test shows the error that says what to do instead. "
        "*untested*: it may work, and no test says so.\n\n"
        "## The tests behind the table\n\n"
        "| call | where | test |\n|---|---|---|\n" + "\n".join(tests) + "\n"
    )
