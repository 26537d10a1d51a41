"""Store the budget updates of a pool as files, one folder per join.

An update is a small JSON file, `00000001.json` and so on. It holds the update's number, the budget
of each shard and the pool's memory. The join's query reads the folder as a stream beside its
inputs. Two hidden files, which the query does not read, let a pool resume: `.followed` holds the
updates that shards have confirmed, and `.owner` the id of the pool that may write.
"""

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

#: The file with the updates that shards have confirmed. The query skips hidden files.
_CONFIRMED = ".followed"
#: The file with the id of the pool that may write here: the one opened last.
_OWNER = ".owner"


def latest(folder: Path, memory: int) -> tuple[int, Shares] | None:
    """Return the latest update and its number, or None."""
    updates = read(folder, memory)
    return (max(updates), updates[max(updates)]) if updates else None


def write(folder: Path, number: int, shares: Shares, memory: int) -> None:
    """Write an update, atomically. `memory` is the whole memory of the pool."""
    update = {"version": UPDATE_VERSION, "number": number, "shares": shares, "memory": memory}
    _write_json(folder / f"{number:08d}.json", update)


def save_confirmed(folder: Path, confirmed: Acknowledged) -> None:
    """Record which updates shards have confirmed: earlier ones no longer matter."""
    _write_json(folder / _CONFIRMED, {"version": UPDATE_VERSION, "followed": confirmed})


def load_confirmed(folder: Path) -> Acknowledged:
    """Return the updates that shards have confirmed."""
    path = folder / _CONFIRMED
    if not path.exists():
        return ()
    try:
        found = tuple((number, allowed) for number, allowed in _content(path, "followed"))
    except (TypeError, ValueError):
        found = ()
    if not found or not all(is_whole(number) and number >= 0 for pair in found for number in pair):
        raise _damaged(path, "must be pairs of whole numbers, [[update, share], ...]")
    return found


def _load_json(path: Path) -> Any:
    """Read one JSON file of the pool."""
    try:
        return json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__}: {error})") from None


def _content(path: Path, name: str) -> Any:
    """Read the content of a file of the pool; in version 0 it is the whole file."""
    found = _load_json(path)
    if not isinstance(found, dict):
        return found
    instead = "give the pool another folder"
    check_version(found.get("version", 0), UPDATE_VERSION, quoted(str(path)), instead)
    return found.get(name)


def _damaged(path: Path, why: str) -> TidegateError:
    return TidegateError(
        f"{quoted(str(path))} is no budget update of a pool, or was cut short or changed: it "
        f"{why}; give the pool a folder of its own, or remove the file if it is not the pool's"
    )


def _write_json(path: Path, content: object) -> None:
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(json.dumps(content) + "\n")
    os.replace(hidden, path)


def prepare_folder(folder: object) -> Path:
    """Return the folder of a pool. Create it if needed; refuse it if it cannot be written."""
    expected = "folder must be a path that driver and executors see, where the pool may write"
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise TidegateError(f"{expected}, not {quoted(folder)}")
    raw = os.fspath(folder)
    if "://" in str(raw):
        raise TidegateError(
            f"{expected}, not {quoted(raw)}: budget updates are files of a file system that is "
            "mounted everywhere; give a plain path, without a scheme"
        )
    try:
        path = Path(os.fsdecode(raw)).resolve()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise TidegateError(f"{expected}, and {quoted(raw)} is not: {error.strerror}") from error
    except ValueError as error:  # letters that no path has
        raise TidegateError(f"{expected}, and {quoted(raw)} is not: {error}") from None
    return path


def take_ownership(folder: Path, pool: str) -> None:
    """Make a pool the owner of its folder."""
    _write_json(folder / _OWNER, {"version": UPDATE_VERSION, "pool": pool})


def owner(folder: Path) -> str:
    """Return the id of the pool that owns a folder."""
    path = folder / _OWNER
    found = _content(path, "pool")
    if not isinstance(found, str):
        raise _damaged(path, f"must be the name of a pool, not {quoted(found)}")
    return found


def joins(folder: Path, memory: int) -> dict[str, dict[int, Shares]]:
    """Return the joins that have updates in the folder of a pool, with these updates."""
    found = {path.name: read(path, memory) for path in sorted(folder.iterdir()) if path.is_dir()}
    return {name: updates for name, updates in found.items() if updates}


def read(folder: Path, memory: int) -> dict[int, Shares]:
    """Return all updates in a join's folder. None may exceed the memory of the pool."""
    found = {}
    for path in sorted(folder.glob("[0-9]*.json")):
        update = _load_json(path)
        try:
            number, shares = check_update(update, memory)
        except TidegateError as error:
            raise _damaged(path, f"is refused, as {error}") from None
        found[number] = shares
    if len({len(shares) for shares in found.values()}) > 1:
        raise _damaged(folder, "has updates for different numbers of shards")
    return found
