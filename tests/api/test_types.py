"""The installed package carries types: a user's program is checked by them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
from typing import assert_type

import pandas as pd
from pyspark.sql import DataFrame

import tidegate as tg


def right(frame: DataFrame, data: pd.DataFrame) -> None:
    on_spark = tg.join(
        frame, frame, on="k", time="t", within="2 hours", memory="64 MB", policy=tg.Prob(), shards=4
    )
    assert_type(on_spark, DataFrame)
    found = tg.join(
        data,
        {"k": [1], "t": [1]},
        on={"k": "k"},
        time=("t", "t"),
        within={"left": tg.Rows(5), "right": None},
        closed=True,
        memory=[(0, 300), (9, "300 rows")],
        shed_when="before-probe",
        keep_shed=True,
    )
    assert_type(found, tg.Result)
    share = tg.MemoryPool(memory=100).share("a")
    assert_type(tg.join(frame, frame, on="k", time="t", within=5, memory=share), DataFrame)
    through = tg.star_join([frame, frame], frame, on=["a", "b"], time="t", within=(5, 9))
    assert_type(through, DataFrame)
    assert_type(tg.star_join({"a": data}, data, on="k", time="t"), tg.Result)
    known = tg.RIDS("a -> b", k=3)
    two = {"a": data, "b": data}
    many = tg.constrained_join(two, joins="a.k -> b.k", time="t", constraints=known)
    assert_type(many, tg.Result)
    assert_type(tg.cql("Select", [frame], time="t", unique="b.k", shed_to="folder"), DataFrame)
    assert_type(tg.repair({"a": data}, many, joins="a.k -> b.k", time="t"), tg.Result)
    sample = tg.sample_join(data, data, on="k", time="t", within=5, fraction=0.1)
    assert_type(tg.estimate(sample, value="v", per="5 minutes", time="t"), tg.Result)
    assert_type(tg.truncated_join(frame, frame, on="k", keep=5), DataFrame)
    assert_type(tg.optimal(data, data, on="k", time="t", within=5, memory=2), tg.Optimal)
    assert_type(tg.optimal_star([data, data], data, on="k", time="t", within=5), tg.OSSJ)


def wrong(frame: DataFrame, data: pd.DataFrame) -> None:
    tg.join(data, data, on="k", time="t", within=5, memry=3)  # wrong: there is no such keyword
    tg.join(data, data, on="k", time="t")  # wrong: within is missing
    tg.join(data, data, on="k", time="t", within=5, shards=2)  # wrong: shards is for Spark
    tg.join(frame, frame, on="k", time="t", within=5, closed=3)  # wrong: no boolean
    tg.join(data, data, on="k", time="t", within=5, shed_when="later")  # wrong: no such value
    tg.star_join([data], data, on="k", time="t", memory=[(0, 5)])  # wrong: no schedule
    tg.constrained_join([data], joins="a", time="t", windows=5)  # wrong: it is within
    tg.optimal(data, data, on="k", time="t", within=5, policy="prob")  # wrong: no policy
    tg.Monitor(c="much")  # wrong: no number
    tg.local  # wrong: there is no such name
"""


def test_a_program_is_checked_against_the_installed_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    install = ["install", "--no-deps", "--no-index", "--quiet", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    assert (site / "tidegate" / "py.typed").is_file()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(tmp_path / "c"),
            str(program),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", checked.stdout)}
    lines = PROGRAM.split("\n")
    wanted = {at for at, line in enumerate(lines, 1) if "# wrong: " in line}
    assert found == wanted, checked.stdout + checked.stderr
