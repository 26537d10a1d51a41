"""Compiled loops over arrays and scalars: no policy names, no Arrow, nothing of tidegate.

Functions that call each other share one file, because numba's cache on disk watches only the
file of the function that is called from Python.
"""
