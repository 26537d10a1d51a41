"""Arrow tables from local data; hashes, sizes and equality of the values of columns.

Functions import compiled code when they are called. The process that Spark starts for each query,
to ask which state a join declares, imports this module and should not import the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted

_NULL = np.uint64(0xA5B35705F46C1B2D)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a chunked column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def as_floats(column: pa.Array) -> NDArray[np.float64]:
    """Return a column of numbers or decimals as the nearest floating point numbers."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def decoded(table: pa.Table) -> pa.Table:
    """Return the table with encoded columns (dictionary, run-end, view) as plain ones."""
    for at, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_run_end_encoded(kind):
            runs = [pc.run_end_decode(chunk) for chunk in table.column(at).chunks]
            kind = kind.value_type
            field = field.with_type(kind)
            table = table.set_column(at, field, pa.chunked_array(runs, kind))
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_string_view(kind):
            kind = pa.string()
        elif pa.types.is_binary_view(kind):
            kind = pa.binary()
        if kind != field.type:
            table = table.set_column(at, field.with_type(kind), table.column(at).cast(kind))
    return table


def plain(array: pa.Array) -> pa.Array:
    """Return the values without encodings that may differ between sources."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage)
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(array))
    if pa.types.is_dictionary(kind):
        return plain(array.cast(kind.value_type))
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    return array


def _fixed_words(array: pa.Array, exact: bool) -> NDArray[np.uint64] | None:
    """Return the values as 64-bit words, [rows, words]; None if they have no fixed width."""
    kind = array.type
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if pa.types.is_floating(kind):
        values: NDArray[np.float64] = np.asarray(
            array.fill_null(0).to_numpy(zero_copy_only=False), np.float64
        )
        if not exact:
            values = values + 0.0  # a copy, in which -0.0 is 0.0
            values[np.isnan(values)] = np.nan
        return values.view(np.uint64).reshape(-1, 1)
    try:
        width = kind.bit_width // 8
    except ValueError:
        return None
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_nested(kind) or width == 0:
        return None
    raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    raw = raw[array.offset * width : (array.offset + len(array)) * width]
    if width >= 8:
        return raw.view(np.uint64).reshape(len(array), width // 8)
    return raw.view(f"i{width}").astype(np.int64).view(np.uint64).reshape(-1, 1)


def _runs(array: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the items of a column of lists, and the offsets of the lists."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        items = array.values.slice(array.offset * size, len(array) * size)
        return items, np.arange(len(array) + 1, dtype=np.int64) * size
    offsets = array.offsets.to_numpy().astype(np.int64)
    if pa.types.is_map(kind):
        keys, values = array.keys, array.items
        items = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    else:
        items = array.values
    start = int(offsets[0]) if len(offsets) else 0
    stop = int(offsets[-1]) if len(offsets) else 0
    return items.slice(start, stop - start), offsets - start


def _bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """Return the bytes and offsets of a column of strings or binaries; None for other types."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        width = kind.byte_width
        data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        return data, (np.arange(len(array) + 1, dtype=np.int64) + array.offset) * width
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not (large or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return None
    if len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, where, data = array.buffers()
    offsets: NDArray[Any] = np.frombuffer(where, np.int64 if large else np.int32)
    wanted = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return np.frombuffer(data or b"", np.uint8), wanted


def hash_column(array: pa.Array, *, exact: bool = False) -> NDArray[np.uint64]:
    """Return a hash of each value; equal values have equal hashes.

    For keys, -0.0 equals 0.0 and all NaNs are equal. With `exact`, values with different bits
    differ, so that rows can be put in a fixed order.
    """
    from tidegate.kernel.hashing import fold, hash_bytes, hash_lists

    array = plain(array)
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    strings = _bytes_of(array)
    if strings is not None:
        out = hash_bytes(*strings)
    elif pa.types.is_struct(kind):
        out = hash_columns(array.flatten(), len(array), exact=exact)
    elif pa.types.is_nested(kind) and not pa.types.is_union(kind):
        items, offsets = _runs(array)
        out = hash_lists(hash_column(items, exact=exact), offsets)
    else:
        words = _fixed_words(array, exact)
        if words is None:
            raise TidegateError(
                f"a column of type {kind} cannot be joined or carried; cast it to a string, a "
                "number or a list of them"
            )
        out = np.zeros(len(array), np.uint64)
        for i in range(words.shape[1]):
            fold(out, np.ascontiguousarray(words[:, i]))
    if array.null_count:
        out[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return out


def hash_columns(arrays: list[pa.Array], rows: int, *, exact: bool = False) -> NDArray[np.uint64]:
    """Return a hash of each row."""
    from tidegate.kernel.hashing import fold

    out = np.zeros(rows, np.uint64)
    for array in arrays:
        fold(out, hash_column(array, exact=exact))
    return out


def numbered(columns: list[pa.Array], rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the distinct rows by first appearance.

    Return the number of each row, and the position of the first row of each number.
    """
    hashes = hash_columns(columns, rows)
    _, first, kind = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[kind], first[order]


def row_bytes(array: pa.Array) -> NDArray[np.int64]:
    """Return the bytes of each value in Arrow's layout, without validity bits."""
    array = plain(array)
    kind = array.type
    rows = len(array)
    if pa.types.is_null(kind):
        return np.zeros(rows, np.int64)
    strings = _bytes_of(array)
    if strings is not None:
        fixed = pa.types.is_fixed_size_binary(kind)
        return np.diff(strings[1]) + (0 if fixed else 4)
    if pa.types.is_struct(kind):
        total = np.zeros(rows, np.int64)
        for child in array.flatten():
            total += row_bytes(child)
        return total
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        from tidegate.kernel.hashing import sum_runs

        items, offsets = _runs(array)
        return sum_runs(row_bytes(items), offsets) + 4
    return np.full(rows, max(kind.bit_width // 8, 1), np.int64)


def row_bits(array: pa.Array) -> int | NDArray[np.int64]:
    """Return the bits of each value in Arrow's layout, validity bits included.

    The result is one number if all values have the same size.
    """
    array = plain(array)
    kind = array.type
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind):
        total: int | NDArray[np.int64] = 1
        for child in array.flatten():
            total = total + row_bits(child)
        return total
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        from tidegate.kernel.hashing import sum_runs

        items, offsets = _runs(array)
        own = 65 if pa.types.is_large_list(kind) else 33
        each = row_bits(items)
        if isinstance(each, int) and pa.types.is_fixed_size_list(kind):
            return each * int(kind.list_size) + 1
        if isinstance(each, int):
            return each * np.diff(offsets) + own
        return sum_runs(each, offsets) + own
    if not pa.types.is_fixed_size_binary(kind):
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        strings = _bytes_of(array)
        if strings is not None:
            return 8 * np.diff(strings[1]) + (65 if wide else 33)
    return int(kind.bit_width) + 1


def equal(a: pa.Array, b: pa.Array) -> NDArray[np.bool_]:
    """Compare values as join keys are compared: a null equals a null."""
    a, b = plain(a), plain(b)
    kind = a.type
    rows = len(a)
    if pa.types.is_null(kind):
        return np.ones(rows, np.bool_)
    null_a = a.is_null().to_numpy(zero_copy_only=False)
    null_b = b.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_struct(kind):
        same = np.ones(rows, np.bool_)
        for x, y in zip(a.flatten(), b.flatten(), strict=True):
            same &= equal(x, y)
    elif pa.types.is_nested(kind):
        same = _equal_lists(a, b)
    else:
        verdict: Any = pc.equal(a, b).fill_null(False)
        same = verdict.to_numpy(zero_copy_only=False)
        if pa.types.is_floating(kind):
            nans: Any = pc.and_(pc.is_nan(a), pc.is_nan(b)).fill_null(False)
            same = same | nans.to_numpy(zero_copy_only=False)
    result: NDArray[np.bool_] = np.where(null_a | null_b, null_a & null_b, same)
    return result


def _equal_lists(a: pa.Array, b: pa.Array) -> NDArray[np.bool_]:
    (items_a, at_a), (items_b, at_b) = _runs(a), _runs(b)
    sizes = np.diff(at_a)
    same: NDArray[np.bool_] = sizes == np.diff(at_b)
    rows = np.flatnonzero(same)
    lengths = sizes[rows]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    x = items_a.take(pa.array(np.repeat(at_a[:-1][rows], lengths) + within))
    y = items_b.take(pa.array(np.repeat(at_b[:-1][rows], lengths) + within))
    wrong = ~equal(x, y)
    same[np.repeat(rows, lengths)[wrong]] = False
    return same


def as_table(data: Any) -> pa.Table:
    """Convert Arrow, pandas, a mapping of columns or an Arrow C stream to an Arrow table."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return _of_columns(data)
    if type(data).__module__.startswith("pyspark."):
        raise TidegateError(
            "this is a Spark DataFrame, and local data is needed here: give it with .toArrow()"
        )
    if type(data).__module__.startswith("pandas.") and hasattr(data, "columns"):
        try:
            return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TidegateError(
                f"this DataFrame does not fit into Arrow: {error}; give each column one type and "
                "a name of its own"
            ) from None
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TidegateError(
                f"this {type(data).__name__} is no Arrow table: {error}; give one with columns"
            ) from None
    raise TidegateError(
        f"expected an Arrow table, a pandas DataFrame or a mapping of columns, not "
        f"{type(data).__name__}"
    )


def _of_columns(data: Mapping[Any, Any]) -> pa.Table:
    """Build a table from a mapping of column names to values."""
    columns = {}
    for name, values in data.items():
        if not isinstance(name, str):
            raise TidegateError(f"a column must have a text as its name, not {quoted(name)}")
        try:
            columns[name] = pa.table({name: values}).column(0)
        except Exception as error:
            raise TidegateError(
                f'column "{name}" does not fit into Arrow ({error}); give each column values of '
                f"one type in a list or an array, not {quoted(values)}"
            ) from None
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f'"{name}" has {length:,}' for name, length in lengths.items())
        raise TidegateError(f"columns must have as many values as each other: {listed}")
    return pa.table(columns)


def is_table(data: Any) -> bool:
    """True if the data can be converted to an Arrow table."""
    return isinstance(data, pa.Table | pa.RecordBatch | Mapping) or hasattr(
        data, "__arrow_c_stream__"
    )
