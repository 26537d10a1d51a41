"""Folders of this user that outlive a process, and that nobody else can write to."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folders() -> Iterator[Path]:
    """Yield the folders that may hold tidegate's cached files, best first. They may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(base):
        yield Path(base) / "tidegate"
    yield Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}"


def make_private(base: Path, *below: str) -> Path:
    """Create folders below `base` that only this user can write to; raise OSError if that fails.

    Files in them are executed, so nobody else may be able to put a file there.
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    folder = base
    for folder in [base, *(base.joinpath(*below[: i + 1]) for i in range(len(below)))]:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{str(folder)!r} can be written to by others")
    return folder


def write_private(folder: Path, path: Path, content: bytes, mode: int) -> None:
    """Write a file below a folder atomically, in folders that nobody else can write to.

    Any number of processes may do this at once.
    """
    make_private(folder, *path.relative_to(folder).parts[:-1])
    if path.is_file() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
        return
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(draft, mode)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
