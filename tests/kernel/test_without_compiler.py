"""Every loop also runs as plain Python, for a debugger and for line coverage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tidegate

ROOT = Path(__file__).parents[2]
SOURCES = Path(tidegate.__file__).parent
#: The part of a file's lines, in percent, that the twin tests must run.
LEAST = {
    "kernel/hash_table.py": 70,
    "kernel/heap.py": 80,
    "kernel/order.py": 80,
    "kernel/windows.py": 90,
    "learning/ghosts.py": 80,
    "learning/outlook.py": 80,
    "learning/rates.py": 80,
    "learning/scores.py": 80,
    "joins/window/held_rows.py": 90,
    "joins/window/keys.py": 70,
    "joins/window/loop.py": 90,
    "joins/window/queue_loop.py": 90,
    "joins/window/slices.py": 90,
    "joins/window/ticks.py": 90,
    "joins/window/victims.py": 65,
    "joins/sampled/loop.py": 80,
    "joins/star/held_rows.py": 70,
    "joins/star/loop.py": 70,
    "joins/star/match.py": 70,
    "joins/constrained/loop.py": 80,
    "joins/constrained/synopses.py": 80,
}


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_loops_run_as_plain_python_and_most_of_their_lines(tmp_path: Path) -> None:
    data, report = f"--data-file={tmp_path / 'data'}", tmp_path / "report.json"
    files = "--include=" + ",".join(str(SOURCES / name) for name in LEAST)
    options = ("-q", "-x", "-p", "no:cacheprovider", "tests/kernel/plain_python.py")
    command = ("coverage", "run", data, files, "-m", "pytest", *options)
    assert "passed" in run(*command, NUMBA_DISABLE_JIT="1", CI="true")
    run("coverage", "json", data, "-o", str(report))
    found = {
        str(Path(name).resolve().relative_to(SOURCES.resolve())): file["summary"]["percent_covered"]
        for name, file in json.loads(report.read_text())["files"].items()
    }
    print("\n".join(f"{name}: {share:.0f} %" for name, share in found.items()))
    assert {name for name in LEAST if found.get(name, 0) < LEAST[name]} == set()
