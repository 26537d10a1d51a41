"""Checks of the project as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked() -> list[Path]:
    """Return the files that Git knows, or all files if this is a plain copy of the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]


def texts() -> dict[Path, str]:
    found = {}
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data:
            found[path.relative_to(ROOT)] = data.decode()
    return found


def test_no_package_registry_and_no_path_of_a_machine_is_named() -> None:
    registry = re.compile(
        r"files\.pythonhosted\.org|pypi\.(org|python)|--(extra-)?index-url|--find-links"
        r"|\b(?:https?|file)://[^\s/]*(?:pypi|artifactory|nexus|devpi)"
    )
    home = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|opt)/[\w.]")
    this = Path(__file__).resolve().relative_to(ROOT)
    found = {
        f"{path}: {match[0]}"
        for path, text in texts().items()
        if path != this
        for pattern in (registry, home)
        for match in pattern.finditer(text)
    }
    assert texts()
    assert found == set()


def test_importing_tidegate_imports_neither_spark_nor_plots() -> None:
    program = "import sys, tidegate; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tidegate" in loaded
    assert not loaded & {"pyspark", "py4j", "matplotlib"}


def test_the_same_version_everywhere() -> None:
    import tomllib

    import tidegate

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == tidegate.__version__


def test_requirements_are_pinned_and_within_the_ranges() -> None:
    import tomllib

    from packaging.requirements import Requirement

    pins = {}
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text().splitlines():
            if line and not line.startswith(("#", "-r ")):
                package, version = line.split("==")
                pins[re.sub("[-_.]+", "-", package).lower()] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for wanted in [*project["dependencies"], *(text for extra in extras for text in extra)]:
        requirement = Requirement(wanted)
        if requirement.name == project["name"]:  # an extra that has others in it
            continue
        assert requirement.specifier.contains(pins[requirement.name]), wanted
