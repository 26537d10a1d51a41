"""Continuous queries as text: `tg.cql`."""

from __future__ import annotations

from tidegate.cql.call import cql

__all__ = ["cql"]
