"""A policy is one file: its class registers itself, and everything else finds it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import tidegate as tg
from tidegate.policies import POLICIES, exports, policy_of
from tidegate.policies.base import ByFrequency, Ranks

ROOT = Path(__file__).parents[2]

#: The only file that a contributor writes.
TOP_VALUE = '''
"""TOP-VALUE: keep the rows with the largest importance, scaled by the frequency of their key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.policies.base import ByFrequency, Ranks


@dataclass(frozen=True)
class TopValue(ByFrequency):
    """Rank a row by its importance times how often its key arrives on the other stream."""

    name: ClassVar[str] = "top-value"
    ranks: ClassVar[Ranks] = "key"
'''


def with_one_more_file(folder: Path, name: str, text: str) -> Path:
    """Make a copy of tidegate, by links, whose policies have one more file."""
    source = Path(inspect.getfile(tg)).parent
    package = folder / "tidegate"
    (package / "policies").mkdir(parents=True)
    for inside in (Path(), Path("policies")):
        for path in (source / inside).iterdir():
            if path.name not in ("policies", "__pycache__"):
                (package / inside / path.name).symlink_to(path)
    (package / "policies" / name).write_text(text)
    return folder


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.fspath(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_policy_added_as_one_file_is_picked_up_everywhere(tmp_path: Path) -> None:
    """It is known by name, as a public class, to conformance, to the slow twin and to tests."""
    folder = with_one_more_file(tmp_path, "top_value.py", TOP_VALUE)
    program = """
        import tidegate as tg
        from tidegate.joins.window.spec import window_join
        import pyarrow as pa

        assert "TopValue" in tg.__all__
        schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("price", pa.float64())])
        join = {"on": "k", "time": "t", "within": 9, "memory": 5, "importance": "price"}
        assert window_join(schema, schema, **join, policy="top-value").policy == tg.TopValue()
    """
    run(folder, "-c", textwrap.dedent(program))
    tests = ("test_conformance.py", "joins/window/test_window_engine.py", "api/test_odd_values.py")
    wanted = "top-value and (conforms or equals_its_twin or raw_error)"
    said = run(folder, "-m", "pytest", "-q", "-k", wanted, *(f"tests/{test}" for test in tests))
    assert re.search(r"^4 passed", said, re.MULTILINE), said


def test_every_policy_of_the_docs_is_listed_for_editors() -> None:
    page = (ROOT / "docs" / "howto" / "pick_a_policy.md").read_text()
    table = re.search(r"^\| policy \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None
    rows = [line.split("|")[1] for line in table[1].splitlines()]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    kinds = {kind.__name__: kind for kind in POLICIES.values()}
    listed = {name: kind for name, kind in vars(exports).items() if inspect.isclass(kind)}
    assert named
    assert named <= set(listed), "add the missing lines to tidegate/policies/exports.py"
    assert listed.items() <= kinds.items()


def test_every_policy_is_a_public_name() -> None:
    for kind in POLICIES.values():
        assert getattr(tg, kind.__name__) is kind
        assert kind.__name__ in getattr(tg, "__all__")  # noqa: B009
        assert kind.__name__ in dir(tg)
    with pytest.raises(AttributeError, match="no attribute 'Best'"):
        getattr(tg, "Best")  # noqa: B009
    assert not hasattr(tg, "ByFrequency")


def test_ones_own_policy_is_known_by_its_name() -> None:
    @dataclass(frozen=True)
    class Mine(tg.Policy):
        name: ClassVar[str] = "known-by-name"
        ranks: ClassVar[Ranks] = "row"
        order_weight: ClassVar[float] = 1.0

    table = pa.table({"k": [1, 2, 3], "t": [1, 2, 3]})
    assert policy_of("known-by-name") == Mine()
    assert "known-by-name" not in POLICIES
    tg.join(table, table, on="k", time="t", within=2, memory=2, policy="known-by-name")


def test_spark_sends_a_policy_without_the_others() -> None:
    """Workers may be unable to import another one, even if the query does not use it."""

    @dataclass(frozen=True)
    class Mine(tg.Policy):
        name: ClassVar[str] = "sent-alone"
        ranks: ClassVar[Ranks] = "row"

    dumps: Any = cloudpickle.dumps
    sent = dumps(Mine())
    assert b"sent-alone" in sent
    assert b"tidegate.policies.rand" not in sent


def test_a_policy_that_needs_settings_is_not_made_from_its_name() -> None:
    @dataclass(frozen=True)
    class Mine(tg.Policy):
        much: float
        name: ClassVar[str] = "with-settings"
        ranks: ClassVar[Ranks] = "row"
        order_weight: ClassVar[float] = 1.0

    with pytest.raises(tg.TidegateError, match='"with-settings" needs settings; pass an instance'):
        policy_of("with-settings")


@pytest.mark.parametrize("name", [None, "", 7, "two words", "-x", "x-", "a--b", "é", "a\n"])
def test_a_name_that_is_no_word_is_refused(name: Any) -> None:
    with pytest.raises(tg.TidegateError, match="policy Mine must have a name of letters and"):
        type("Mine", (tg.Policy,), {"name": name})


def test_a_name_that_is_taken_is_refused() -> None:
    says = 'policy Mine has the name "prob", which Prob of tidegate.policies.prob has already'
    with pytest.raises(tg.TidegateError, match=says):
        type("Mine", (ByFrequency,), {"name": "prob"})
    assert POLICIES["prob"] is tg.Prob
    assert tg.Policy.registered["prob"] is tg.Prob


def test_a_class_may_be_defined_again() -> None:
    """A cell of a notebook may run twice; the later class counts."""
    for _ in range(2):
        kind = type("Again", (ByFrequency,), {"name": "again", "ranks": "key"})
    assert type(policy_of("again")) is kind


def test_a_class_without_a_name_of_its_own_is_not_registered() -> None:
    type("Other", (tg.Prob,), {})
    assert tg.Policy.registered["prob"] is tg.Prob
