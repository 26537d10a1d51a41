"""Continuous queries as text: `tidegate.cql` is the function in `call`."""
