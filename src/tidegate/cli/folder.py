"""The output folder of a command, in which it replaces only its own files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tidegate.errors import TidegateError


class OutFolder:
    """An output folder with a record that says which command wrote its files.

    Parameters
    ----------
    path
        The folder; created if it does not exist.
    names
        The files that the command writes.
    record
        The name of the record among them: a JSON file whose entry `"made_by"` allows the command
        to replace the other files.
    made_by
        The value of that entry.
    """

    def __init__(self, path: Path, names: Sequence[str], *, record: str, made_by: str) -> None:
        self.path = path
        self._record = path / record
        self._made_by = made_by
        if path.exists() and not path.is_dir():
            raise TidegateError(f'--out must name a folder, and "{path}" is a file')
        foreign = [name for name in names if os.path.lexists(path / name)]
        if foreign and not self._is_ours():
            raise TidegateError(
                f'"{path / foreign[0]}" exists already and was not written by {made_by}; '
                "choose another folder with --out"
            )
        present = path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise TidegateError(f'cannot write to "{path}": {error.strerror}') from error
        self._new = not present

    def _is_ours(self) -> bool:
        try:
            content = json.loads(self._record.read_text())
        except (OSError, ValueError):
            return False
        return isinstance(content, dict) and content.get("made_by") == self._made_by

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file; it appears under its name only when complete."""
        with self.replacing(name) as draft:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_record(self, content: dict[str, Any]) -> None:
        """Write the record: from now on, the command may replace its files."""
        self.write(self._record.name, json.dumps({"made_by": self._made_by, **content}, indent=2))

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Yield a path to write to, which becomes the file of this name if no error occurs."""
        draft = self.path / f".{name}.writing"
        try:
            yield draft
            os.replace(draft, self.path / name)
        finally:
            draft.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Remove the folder if this command created it and it is empty."""
        if self._new:
            with suppress(OSError):
                self.path.rmdir()
