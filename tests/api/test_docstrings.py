"""Every public name has a docstring with an example, and examples run."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest

import tidegate as tg


@pytest.mark.parametrize("name", getattr(tg, "__all__"))  # noqa: B009
def test_examples_of_public_names_run(name: str) -> None:
    public: Any = getattr(tg, name)
    text = inspect.getdoc(public) or ""
    first, _, rest = text.partition("\n")
    assert first.endswith((".", ":")), f"{name}: the first line is no sentence: {first!r}"
    assert ">>>" in rest, f"{name} has no example"
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    example = doctest.DocTestParser().get_doctest(text, {}, f"tidegate.{name}", None, None)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=flags).run(example, out=said.append)
    assert not said, "".join(said)


def test_signatures_list_every_keyword() -> None:
    """Help and editors show the keywords; those of overloads are the same."""
    from tidegate.api import keywords

    calls: dict[Any, tuple[Any, ...]] = {
        tg.join: (keywords.SparkJoin, keywords.LocalJoin),
        tg.star_join: (keywords.SparkStarJoin, keywords.LocalStarJoin),
        tg.sample_join: (keywords.SparkSampleJoin, keywords.LocalSampleJoin),
        tg.estimate: (keywords.Estimate,),
        tg.constrained_join: (keywords.SparkConstrainedJoin, keywords.LocalConstrainedJoin),
        tg.cql: (keywords.SparkCql, keywords.LocalCql),
        tg.repair: (keywords.SparkRepair, keywords.LocalRepair),
        tg.profile: (keywords.Profile,),
        tg.truncated_join: (keywords.SparkTruncatedJoin, keywords.LocalTruncatedJoin),
    }
    for call, sets in calls.items():
        parameters = inspect.signature(call).parameters.values()
        own = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
        typed: dict[str, Any] = {}
        for one in sets:
            hints = {name: hint.__forward_arg__ for name, hint in one.__annotations__.items()}
            needed = {name for name, p in own.items() if p.default is p.empty}
            assert needed == {n for n, hint in hints.items() if hint.startswith("Required[")}
            typed |= hints
        assert set(own) == set(typed), call
        documented = inspect.getdoc(call) or ""
        for name in own:
            assert name in documented.partition("Returns\n")[0], f"{call}: {name}"
