"""Every published policy cites its source, and the examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import tidegate as tg
from tidegate.policies import exports

PUBLISHED = [kind for kind in vars(exports).values() if inspect.isclass(kind)]
MODULES = [kind.__module__ for kind in PUBLISHED]


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.name)
def test_every_published_policy_cites_its_source_and_has_an_example(kind: type[tg.Policy]) -> None:
    assert isinstance(kind.__doc__, str)
    assert "References\n" in kind.__doc__
    assert f"tg.{kind.__name__}(" in kind.__doc__ or f'"{kind.name}"' in kind.__doc__


@pytest.mark.parametrize(
    "module", [*MODULES, "tidegate.policies.base", "tidegate.conformance", "tidegate.quality"]
)
def test_examples_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
