"""The command line: `tidegate demo` and the other commands.

A command's own module is imported when the command runs, so `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tidegate.errors import TidegateError

app = typer.Typer(
    name="tidegate",
    help="Join data streams on Apache Spark in a fixed amount of memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from tidegate import __version__

        typer.echo(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Join data streams on Apache Spark in a fixed amount of memory."""


@app.command("demo")
def run_demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the report, the plots and the data.")
    ] = Path("tidegate-demo"),
    auctions: Annotated[
        int,
        typer.Option(help="Auctions opened in a day, from 100 on; 8 bids each."),
    ] = 20_000,
    batches: Annotated[int, typer.Option(help="In how many files each stream arrives.")] = 12,
    seed: Annotated[int, typer.Option(help="The same seed gives the same streams.")] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON instead of tables.")
    ] = False,
) -> None:
    """Join auctions with bids on embedded Spark, and see what share of the answer fits where."""
    with _plain_ends():
        from tidegate.cli.demo import Settings, main

        main(Settings(out=out, auctions=auctions, batches=batches, seed=seed), as_json=json)


@app.command("state")
def show_state(
    checkpoint: Annotated[
        str, typer.Argument(help="The checkpointLocation of a query that does not run.")
    ],
    rows: Annotated[
        Path | None, typer.Option(help="Write all held rows to this Parquet file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what the checkpoint of a query holds: settings, and held rows by shard and stream."""
    with _plain_ends():
        from tidegate.cli.state import main

        main(checkpoint, rows, as_json=json)


archive_app = typer.Typer(
    help="Look after the folders of shed_to.", no_args_is_help=True, add_completion=False
)
app.add_typer(archive_app, name="archive")


@archive_app.command("compact")
def compact_archive(
    folder: Annotated[str, typer.Argument(help="The folder or address that was shed_to.")],
    size: Annotated[
        int, typer.Option(help="The size of a merged file, in megabytes.", min=1)
    ] = 128,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Merge the small files of an archive. It may be in use, and an interruption loses nothing."""
    with _plain_ends():
        from tidegate.cli.archives import compacted

        compacted(folder, size << 20, as_json=json)


@app.command("repair")
def run_repair(
    archive: Annotated[str, typer.Argument(help="The folder or address that was shed_to.")],
    left: Annotated[str, typer.Option(help="All rows of the left: Parquet, CSV or Arrow files.")],
    right: Annotated[str, typer.Option(help="All rows of the right.")],
    out: Annotated[Path, typer.Option(help="Folder for the missing results, as Parquet.")],
    slices: Annotated[
        int, typer.Option(help="In how many slices of time; each has a file.", min=1)
    ] = 16,
    suffixes: Annotated[
        tuple[str, str], typer.Option(help="The suffixes of columns that both sides have.")
    ] = ("_left", "_right"),
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Find the results that a window join has missed. If interrupted, it goes on where it was."""
    with _plain_ends():
        from tidegate.cli.archives import Repair, repaired

        repaired(Repair(archive, left, right, out, slices, suffixes), as_json=json)


@contextmanager
def _plain_ends() -> Iterator[None]:
    """End a command with a message instead of a traceback for expected errors and interrupts."""
    try:
        yield
    except TidegateError as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        typer.echo("tidegate: stopped", err=True)
        raise typer.Exit(130) from interrupt
