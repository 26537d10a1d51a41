"""What MkDocs does for this site beside rendering pages: see `mkdocs.yml`."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

sys.path.insert(0, str(Path(__file__).parent))

import notebooks
import reference

ROOT = Path(__file__).parents[2]
MERMAID = "javascripts/mermaid.js"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the notebooks to the navigation."""
    pages = [{book.title: book.page} for book in notebooks.find(ROOT / "examples")]
    if pages and config.nav is not None:
        config.nav.insert(2, {"Examples": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and the program that draws diagrams."""
    made = {
        "reference/api.md": reference.api(),
        "reference/counters.md": reference.counters(),
        "reference/errors.md": reference.errors(ROOT / "src"),
        "reference/support.md": reference.support(ROOT / "docs"),
        "changelog.md": _from_root("CHANGELOG.md"),
        "contributing.md": _from_root("CONTRIBUTING.md"),
    }
    made |= {book.page: book.run() for book in notebooks.find(ROOT / "examples")}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, MERMAID, content=_mermaid().read_bytes()))
    return files


def _from_root(name: str) -> str:
    """Return a page that is kept beside `docs`, with its links as seen from there."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def _mermaid() -> Path:
    """Return the program that draws diagrams. It comes with an installed package."""
    [folder] = find_spec("mermaidx").submodule_search_locations  # type: ignore[union-attr, misc]
    return Path(folder) / "assets" / "mermaid.js"


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Load the program that draws diagrams on pages that have one.

    The theme would otherwise fetch it from another host.
    """
    if '<pre class="mermaid">' not in output:
        return output
    script = f'<script src="{get_relative_url(MERMAID, page.url)}"></script>'
    before = re.search(r"<script src=\"[^\"]*assets/javascripts/bundle", output)
    assert before is not None
    return output[: before.start()] + script + output[before.start() :]
