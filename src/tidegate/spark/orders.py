"""Orders of a pool as files: a folder for each join, which its query reads beside its inputs."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.memory.books import Followed, Shares

#: Where it is noted which orders were followed; hidden from the query that reads the folder.
_NOTE = ".followed"
#: Which pool writes in a folder: the last that was opened there.
_OWNER = ".owner"


def latest(folder: Path) -> tuple[int, Shares] | None:
    """The last order that was sent, and its number."""
    orders = read(folder)
    return (max(orders), orders[max(orders)]) if orders else None


def write(folder: Path, number: int, shares: Shares) -> None:
    """Send an order: whole, or not at all."""
    _replace(folder / f"{number:08d}.json", {"number": number, "shares": shares})


def note(folder: Path, followed: Followed) -> None:
    """Write down which orders shards have followed, so that earlier ones are done with."""
    _replace(folder / _NOTE, followed)


def noted(folder: Path) -> Followed:
    """Which orders shards have followed."""
    path = folder / _NOTE
    if not path.exists():
        return ()
    return tuple((number, allowed) for number, allowed in json.loads(path.read_text()))


def _replace(path: Path, content: object) -> None:
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(json.dumps(content) + "\n")
    os.replace(hidden, path)


def home(folder: object) -> Path:
    """The folder of a pool, made if there is none; refused if no orders can be kept there."""
    said = "folder must be a path that driver and executors see, where the pool may write"
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise TidegateError(f"{said}, not {folder!r}")
    raw = os.fspath(folder)
    if "://" in str(raw):
        raise TidegateError(
            f"{said}, not {raw!r}: orders are files of a file system that is mounted everywhere; "
            "give a plain path, without a scheme"
        )
    path = Path(os.fsdecode(raw)).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise TidegateError(f"{said}, and {str(path)!r} is not: {error.strerror}") from error
    return path


def own(folder: Path, pool: str) -> None:
    """Have a pool be the one that writes in its folder."""
    _replace(folder / _OWNER, pool)


def owner(folder: Path) -> str:
    """The pool that writes in a folder."""
    found: str = json.loads((folder / _OWNER).read_text())
    return found


def joins(folder: Path) -> dict[str, dict[int, Shares]]:
    """The joins that have orders in the folder of a pool, and these."""
    found = {path.name: read(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    return {name: orders for name, orders in found.items() if orders}


def read(folder: Path) -> dict[int, Shares]:
    """The orders that were ever sent."""
    found = {}
    for path in sorted(folder.glob("[0-9]*.json")):
        try:
            order = json.loads(path.read_text())
            found[order["number"]] = tuple(order["shares"])
        except (ValueError, KeyError, TypeError) as error:
            raise TidegateError(
                f"{str(path)!r} is no order of a pool, or was cut short; give the pool a folder of "
                "its own, or remove the file if it is not the pool's"
            ) from error
    return found
