"""Compiled loops over arrays and scalars: no policy names, no Arrow, nothing of tidegate."""
