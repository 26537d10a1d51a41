"""Compute the best that any policy could have done on archived streams (`tidegate.optimal`).

`sides` reads both streams onto one timeline of ticks. `groups` turns their rows into `chains`:
groups of interchangeable rows, each with the ticks at which it earns results. `plan` solves these
as a minimum-cost flow (`flow`), and `delivered` turns the plan into results. `shedding` and
`admission` handle ``shed_when="before-arrival"``, which is not a flow. `star` does the same for
star joins.
"""
