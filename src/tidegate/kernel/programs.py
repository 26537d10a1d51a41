"""Run a condition on a pair of rows: a short program of a stack machine.

`tidegate.sql.pair_programs` writes programs. An instruction is an operation and an argument: the
column of a row, or the place of a number. A row's values are floating point numbers, in which a NaN
with a negative sign is a null. Values behave as in `tidegate.sql.conditions`: a null makes a
comparison null, NaN equals itself and is larger than any number.
"""

from __future__ import annotations

import math

from tidegate.kernel.compiling import Array, inlined, inner

#: Operations that push a value: of the left row, of the right row, or a number.
LEFT, RIGHT, NUMBER = 0, 1, 2
#: Operations that replace the last value.
NEGATE, ABSOLUTE, NOT, IS_NULL = 3, 4, 5, 6
#: Operations that replace the last two values.
ADD, SUBTRACT, MULTIPLY, DIVIDE, EQUAL, LESS, MORE, AND, OR = 7, 8, 9, 10, 11, 12, 13, 14, 15


@inlined
def _less(one: float, other: float) -> bool:
    return bool(one < other or (other != other and one == one))


@inner
def meets(
    program: Array, numbers: Array, stack: Array, missing: Array, left: Array, right: Array
) -> bool:
    """Return True if the values of a left and a right row meet the condition.

    `stack` and `missing` (whether a value is null) are scratch memory. An empty program is true.
    """
    top = -1
    for at in range(program.shape[0]):
        operation, argument = program[at, 0], program[at, 1]
        if operation <= NUMBER:
            top += 1
            if operation == LEFT:
                stack[top] = left[argument]
            elif operation == RIGHT:
                stack[top] = right[argument]
            else:
                stack[top] = numbers[argument]
            value = stack[top]
            missing[top] = value != value and math.copysign(1.0, value) < 0.0
        elif operation <= IS_NULL:
            if operation == NEGATE:
                stack[top] = -stack[top]
            elif operation == ABSOLUTE:
                stack[top] = abs(stack[top])
            elif operation == NOT:
                stack[top] = 1.0 - stack[top]
            else:
                stack[top] = 1.0 if missing[top] else 0.0
                missing[top] = False
        else:
            top -= 1
            one, other = stack[top], stack[top + 1]
            unknown = missing[top] or missing[top + 1]
            if operation == ADD:
                stack[top] = one + other
            elif operation == SUBTRACT:
                stack[top] = one - other
            elif operation == MULTIPLY:
                stack[top] = one * other
            elif operation == DIVIDE:
                unknown = unknown or other == 0.0
                stack[top] = one / (1.0 if other == 0.0 else other)
            elif operation == EQUAL:
                stack[top] = 1.0 if one == other or (one != one and other != other) else 0.0
            elif operation == LESS:
                stack[top] = 1.0 if _less(one, other) else 0.0
            elif operation == MORE:
                stack[top] = 1.0 if _less(other, one) else 0.0
            else:
                # A part that decides alone makes the whole known.
                decides = 0.0 if operation == AND else 1.0
                decided = (not missing[top] and one == decides) or (
                    not missing[top + 1] and other == decides
                )
                unknown = unknown and not decided
                stack[top] = decides if decided else 1.0 - decides
            missing[top] = unknown
    return bool(top < 0 or (not missing[top] and stack[top] == 1.0))
