"""Every stored format carries a version; newer ones are refused, older ones are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate import TidegateError
from tidegate.engine.archive import ARCHIVE_VERSION, archive_label, check_archive
from tidegate.pool.ledger import UPDATE_VERSION, check_update
from tidegate.spark import budget_updates


def test_updates_carry_the_version_of_their_format() -> None:
    update = {"number": 3, "shares": [4, 5], "memory": 9}
    assert check_update(update, 9) == (3, (4, 5))
    assert check_update(update | {"version": UPDATE_VERSION}, 9) == (3, (4, 5))
    with pytest.raises(TidegateError, match=r"version 8 of its format.*up to 1.*another folder"):
        check_update(update | {"version": 8}, 9)


def test_files_of_a_pool_carry_their_version(tmp_path: Path) -> None:
    budget_updates.write(tmp_path, 1, (4, 5), 9)
    budget_updates.save_confirmed(tmp_path, ((1, 4), (1, 5)))
    budget_updates.take_ownership(tmp_path, "mine")
    names = ("00000001.json", ".followed", ".owner")
    files = [json.loads((tmp_path / name).read_text()) for name in names]
    assert [file["version"] for file in files] == [UPDATE_VERSION] * 3
    for _ in range(2):
        assert budget_updates.latest(tmp_path, 9) == (1, (4, 5))
        assert budget_updates.load_confirmed(tmp_path) == ((1, 4), (1, 5))
        assert budget_updates.owner(tmp_path) == "mine"
        # Version 0 had the content alone.
        (tmp_path / ".followed").write_text("[[1, 4], [1, 5]]")
        (tmp_path / ".owner").write_text('"mine"')
    (tmp_path / ".owner").write_text('{"version": 2, "pool": "mine"}')
    with pytest.raises(TidegateError, match=r"owner' has version 2.*newer tidegate"):
        budget_updates.owner(tmp_path)


def test_archives_carry_their_version() -> None:
    settings = {"joins": ["A.x -> B.x"]}
    label = archive_label(settings, query="q")
    assert json.loads(label) == {"version": ARCHIVE_VERSION, "query": "q", "settings": settings}
    check_archive(label, settings)
    check_archive(json.dumps({"settings": settings}), settings)
    newer = label.replace(f'"version": {ARCHIVE_VERSION}', '"version": 6')
    with pytest.raises(TidegateError, match=r"shed has version 6 of its format.*up to 1"):
        check_archive(newer, settings)
