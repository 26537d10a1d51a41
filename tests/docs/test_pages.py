"""Run the Python blocks of the README and of every page of the documentation.

All blocks of one page share a namespace and an empty working folder. If a block is followed
directly by a block of text, it must print that text.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```\n"
    r"(?:\n*(?P=indent)```text\n(?P<text>.*?)^(?P=indent)```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of Python, its line on the page, and the text it must print, if the page says so."""

    line: int
    code: str
    printed: str | None


def blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        printed = found["text"]
        yield Block(
            text[: found.start("code")].count("\n"),
            textwrap.dedent(found["code"]),
            None if printed is None else textwrap.dedent(printed),
        )


def run(
    page: Path, found: list[Block], namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for block in found:
        # Empty lines before the block make the line numbers of a failure those of the page.
        program = compile("\n" * block.line + block.code, os.fspath(page), "exec")
        capsys.readouterr()
        exec(program, namespace)
        if block.printed is not None:
            printed = capsys.readouterr().out
            assert _plain(printed) == _plain(block.printed), f"{page.name}, line {block.line}"


def _plain(text: str) -> str:
    """Return a text without the spaces at the ends of its lines."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: os.fspath(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(
    page: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = page.read_text()
    found = list(blocks(text))
    assert len(found) == len(re.findall(r"^ *```python", text, re.MULTILINE))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if any(re.search(r"\bspark\b", block.code) for block in found):
        namespace["spark"] = request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    run(page, found, namespace, capsys)


PAGE = """
```python
x = 2
print(x)
```

```text
{first}
```

=== "tab"

    ```python
    if x:
        print(x * 3)
    ```
    ```text
    6
    ```

```python
print("not compared")
```
Words between.
```text
other
```
"""


def test_blocks_are_found_with_what_they_print(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path("page.md")
    good = list(blocks(PAGE.format(first="2")))
    assert [block.line for block in good] == [2, 13, 21]
    assert [block.printed for block in good] == ["2\n", "6\n", None]
    run(page, good, {}, capsys)
    with pytest.raises(AssertionError, match=r"page\.md, line 2"):
        run(page, list(blocks(PAGE.format(first="3"))), {}, capsys)
