"""Every example runs, and ends with the line that its docstring promises."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def promised(script: Path) -> str:
    """Return the line at the end of a script's docstring."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    assert "It ends with the line" in text
    return text.splitlines()[-1].strip()


def test_there_are_six_scripts_and_two_notebooks() -> None:
    assert len(SCRIPTS) == 6
    assert len(NOTEBOOKS) == 2
    # Each is short enough to read at once.
    assert all(30 <= len(script.read_text().splitlines()) <= 75 for script in SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_ends_with_the_line_it_promises(
    script: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if "pyspark" in script.read_text():
        request.getfixturevalue("spark")  # its session serves the example as well
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == promised(script)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_ends_as_its_script_does(
    notebook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert codes
    assert not any(cell["outputs"] or cell["execution_count"] for cell in codes)
    names: dict[str, object] = {}
    for cell in codes:
        exec("".join(cell["source"]), names)
    script = notebook.with_suffix(".py")
    assert capsys.readouterr().out.splitlines()[-1] == promised(script)
