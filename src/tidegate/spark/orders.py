"""Orders of a pool as files: a folder for each join, which its query reads beside its inputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tidegate.memory.books import Shares


def latest(folder: Path) -> tuple[int, Shares] | None:
    """The last order that was sent, and its number."""
    orders = read(folder)
    return (max(orders), orders[max(orders)]) if orders else None


def write(folder: Path, number: int, shares: Shares) -> None:
    """Send an order: whole, or not at all."""
    hidden, name = folder / f".{number:08d}", folder / f"{number:08d}.json"
    hidden.write_text(json.dumps({"number": number, "shares": shares}) + "\n")
    os.replace(hidden, name)


def read(folder: Path) -> dict[int, Shares]:
    """The orders that were ever sent."""
    orders = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    return {order["number"]: tuple(order["shares"]) for order in orders}
