"""Times as numbers, and back as text."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.settings.times import shown, time_unit, times


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), -7, "-7"),
        (pa.float64(), 2.5, "2.5"),
        (pa.decimal128(9, 2), Decimal("12.50"), "12.5"),
        (pa.date32(), date(2026, 3, 1), "2026-03-01 00:00:00"),
        (pa.timestamp("s"), datetime(2026, 3, 1, 10, 0, 0), "2026-03-01 10:00:00"),
        (
            pa.timestamp("us", "UTC"),
            datetime(9999, 1, 1, 0, 0, 0, 50, UTC),
            "9999-01-01 00:00:00.00005Z",
        ),
        (pa.timestamp("ns"), datetime(1970, 1, 1, 0, 0, 20), "1970-01-01 00:00:20"),
    ],
)
def test_a_time_is_shown_as_a_person_reads_it(kind: pa.DataType, value: Any, text: str) -> None:
    schema = pa.schema([("t", kind)])
    unit = time_unit(schema, schema, "t", "t")
    assert shown(times(pa.array([value], kind), unit)[0], unit) == text
