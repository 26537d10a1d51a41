"""Run the notebooks of `examples/` and show them as pages, with what their cells give."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Notebook:
    """A notebook and the page that it becomes."""

    path: Path

    @property
    def page(self) -> str:
        """The page's place in the site."""
        return f"examples/{self.path.stem}.md"

    @property
    def title(self) -> str:
        """The first line of the notebook, a heading."""
        return self._cells()[0][1].splitlines()[0].removeprefix("# ")

    def run(self) -> str:
        """Run all cells in one namespace. Return them and what they give as Markdown."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        parts = []
        for kind, text in self._cells():
            if kind == "markdown":
                parts.append(text)
            elif kind == "code":
                parts.append(f"```python\n{text}\n```")
                parts += _run(text, f"{self.path.name}, cell {len(parts)}", namespace)
        return "\n\n".join(parts) + "\n"

    def _cells(self) -> list[tuple[str, str]]:
        book = json.loads(self.path.read_text())
        return [(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]]


def find(folder: Path) -> list[Notebook]:
    """Return the notebooks of a folder."""
    return [Notebook(path) for path in sorted(folder.glob("*.ipynb"))]


def _run(text: str, name: str, namespace: dict[str, Any]) -> list[str]:
    """Run a cell. Return what it printed and, as a notebook does, its last expression."""
    tree = ast.parse(text, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    shown = [f"```text\n{printed.getvalue().rstrip()}\n```"] if printed.getvalue() else []
    if hasattr(value, "_repr_html_"):
        shown.append(f'<div class="notebook-table">\n{value._repr_html_()}\n</div>')
    elif value is not None:
        shown.append(f"```text\n{value!r}\n```")
    return shown
