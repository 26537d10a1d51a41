"""The warning about rows that are too large for Java's heap."""

from __future__ import annotations

import pytest

from tidegate.spark.heap import COPIES, Heap, heap_of

MB = 1 << 20


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"spark.master": "local[2]", "spark.driver.memory": "512m"}, 256),
        ({"spark.master": "local[4, 3]"}, 256),
        ({"spark.master": "local", "spark.driver.memory": "3G"}, 3072),
        ({"spark.master": "yarn", "spark.executor.memory": "2048", "spark.executor.cores": 4}, 512),
        ({"spark.master": "spark://host:7077", "spark.executor.memory": "2g"}, None),
        ({"spark.master": "local[2]", "spark.driver.memory": "much"}, None),
    ],
)
def test_the_heap_of_a_task_follows_from_settings(
    settings: dict[str, str], size: int | None
) -> None:
    found = heap_of(settings.get)
    assert found == (None if size is None else Heap(size * MB, found.setting if found else ""))
    if found is not None:
        local = settings["spark.master"].startswith("local")
        assert found.setting == ("spark.driver.memory" if local else "spark.executor.memory")


def test_rows_and_batches_that_do_not_fit_are_named_with_what_to_do() -> None:
    heap = Heap(80 * MB, "spark.driver.memory")
    assert heap.warning(80 * MB // COPIES, 80 * MB) is None
    row = heap.warning(80 * MB // COPIES + 1, 0)
    assert row is not None
    assert "a row of 10 MB arrived" in row
    assert "Raise spark.driver.memory" in row
    batch = heap.warning(0, 81 * MB)
    assert batch is not None
    assert "rows of 81 MB to one shard" in batch
    assert "maxFilesPerTrigger" in batch
