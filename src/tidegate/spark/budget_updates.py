"""Orders of a pool as files: a folder for each join, which its query reads beside its inputs."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tidegate.engine.state_codec import check_version
from tidegate.errors import TidegateError
from tidegate.pool.ledger import UPDATE_VERSION, Acknowledged, Shares, check_update
from tidegate.settings.values import is_whole, quoted

#: Where it is noted which orders were followed; hidden from the query that reads the folder.
_NOTE = ".followed"
#: Which pool writes in a folder: the last that was opened there.
_OWNER = ".owner"


def latest(folder: Path, memory: int) -> tuple[int, Shares] | None:
    """The last order that was sent, and its number."""
    updates = read(folder, memory)
    return (max(updates), updates[max(updates)]) if updates else None


def write(folder: Path, number: int, shares: Shares, memory: int) -> None:
    """Send an order, whole or not at all, that divides so much memory of a pool."""
    update = {"version": UPDATE_VERSION, "number": number, "shares": shares, "memory": memory}
    _replace(folder / f"{number:08d}.json", update)


def note(folder: Path, followed: Acknowledged) -> None:
    """Write down which orders shards have followed, so that earlier ones are done with."""
    _replace(folder / _NOTE, {"version": UPDATE_VERSION, "followed": followed})


def noted(folder: Path) -> Acknowledged:
    """Which orders shards have followed."""
    path = folder / _NOTE
    if not path.exists():
        return ()
    try:
        found = tuple((number, allowed) for number, allowed in _content(path, "followed"))
    except (TypeError, ValueError):
        found = ()
    if not found or not all(is_whole(number) and number >= 0 for pair in found for number in pair):
        raise _damaged(path, "must be pairs of whole numbers, [[order, share], ...]")
    return found


def _loaded(path: Path) -> Any:
    """Read a file of the pool."""
    try:
        return json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__}: {error})") from None


def _content(path: Path, name: str) -> Any:
    """Read the content of a file of the pool; in version 0 it is the whole file."""
    found = _loaded(path)
    if not isinstance(found, dict):
        return found
    instead = "give the pool another folder"
    check_version(found.get("version", 0), UPDATE_VERSION, quoted(str(path)), instead)
    return found.get(name)


def _damaged(path: Path, why: str) -> TidegateError:
    return TidegateError(
        f"{quoted(str(path))} is no order of a pool, or was cut short or changed: it {why}; give "
        "the pool a folder of its own, or remove the file if it is not the pool's"
    )


def _replace(path: Path, content: object) -> None:
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(json.dumps(content) + "\n")
    os.replace(hidden, path)


def home(folder: object) -> Path:
    """The folder of a pool, made if there is none; refused if no orders can be kept there."""
    said = "folder must be a path that driver and executors see, where the pool may write"
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise TidegateError(f"{said}, not {quoted(folder)}")
    raw = os.fspath(folder)
    if "://" in str(raw):
        raise TidegateError(
            f"{said}, not {quoted(raw)}: orders are files of a file system that is mounted "
            "everywhere; "
            "give a plain path, without a scheme"
        )
    try:
        path = Path(os.fsdecode(raw)).resolve()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise TidegateError(f"{said}, and {quoted(raw)} is not: {error.strerror}") from error
    except ValueError as error:  # letters that no path has
        raise TidegateError(f"{said}, and {quoted(raw)} is not: {error}") from None
    return path


def own(folder: Path, pool: str) -> None:
    """Have a pool be the one that writes in its folder."""
    _replace(folder / _OWNER, {"version": UPDATE_VERSION, "pool": pool})


def owner(folder: Path) -> str:
    """The pool that writes in a folder."""
    path = folder / _OWNER
    found = _content(path, "pool")
    if not isinstance(found, str):
        raise _damaged(path, f"must be the name of a pool, not {quoted(found)}")
    return found


def joins(folder: Path, memory: int) -> dict[str, dict[int, Shares]]:
    """The joins that have orders in the folder of a pool, and these."""
    found = {path.name: read(path, memory) for path in sorted(folder.iterdir()) if path.is_dir()}
    return {name: updates for name, updates in found.items() if updates}


def read(folder: Path, memory: int) -> dict[int, Shares]:
    """The orders that were ever sent, each of no more than the memory of a pool."""
    found = {}
    for path in sorted(folder.glob("[0-9]*.json")):
        update = _loaded(path)
        try:
            number, shares = check_update(update, memory)
        except TidegateError as error:
            raise _damaged(path, f"is refused, as {error}") from None
        found[number] = shares
    if len({len(shares) for shares in found.values()}) > 1:
        raise _damaged(folder, "has orders for different numbers of shards")
    return found
