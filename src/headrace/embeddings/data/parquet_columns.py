"""Columns of Arrow as numbers and ids, and which of their values are neither."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace._native import text_ids
from headrace.embeddings.errors import ExampleError

MISSING = (1 << 63) - 1
"""Id of a missing value, where tables have no fixed number of rows."""

_MOST_NUMBER = float(np.finfo(np.float32).max)


class NumberColumn(NamedTuple):
    """Numbers of some rows.

    Attributes
    ----------
    wrong : [rows]: which are no finite numbers of 32 bits, as examples have them.
    """

    numbers: NDArray[np.float64]
    wrong: NDArray[np.bool_]
    expected: str


class IdColumn(NamedTuple):
    """Ids of some rows.

    Attributes
    ----------
    lengths : [rows]: number of each row's ids; None: one each.
    wrong : [rows]: which have a value that is no id of the table.
    """

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64] | None
    wrong: NDArray[np.bool_]
    expected: str


def check_schema(source: str, schema: Any, numbers: Sequence[str], ids: Sequence[str]) -> None:
    """Check that a file has some columns, of types that are numbers and ids.

    Raises
    ------
    ExampleError : names the file, the column, and its type or the columns that there are.
    """
    for name in (*numbers, *ids):
        places = schema.get_all_field_indices(name)
        if len(places) > 1:
            raise ExampleError(f"{source}: has {len(places)} columns {name!r}, needs one")
        if not places:
            raise ExampleError(
                f"{source}: has no column {name!r}, has {', '.join(schema.names) or 'none'}"
            )
    for name in numbers:
        kind = schema.field(name).type
        if not _is_number(kind):
            raise ExampleError(f"{source}: column {name!r} is of type {kind}, needs numbers")
    for name in ids:
        kind = schema.field(name).type
        if not _is_id(kind) and not (_is_list(kind) and _is_id(kind.value_type)):
            raise ExampleError(
                f"{source}: column {name!r} is of type {kind}, "
                "needs integers, texts, or lists of these"
            )


class _IdForm(NamedTuple):
    """Form of a file's column of ids.

    Attributes
    ----------
    values : "integers" or "texts"; None: the column has no value.
    """

    source: str
    lists: bool
    values: str | None

    def __str__(self) -> str:
        values = self.values or "missing values"
        return f"lists of {values}" if self.lists else values


class IdForms:
    """Forms of columns of ids, in which the files of some data agree.

    An integer and the text of it are different ids, and a model looks up bags by another form.
    """

    def __init__(self) -> None:
        self._forms: dict[str, _IdForm] = {}

    def check(self, source: str, schema: Any, ids: Sequence[str]) -> None:
        """Check a file's columns, which `check_schema` has checked, against those of earlier files.

        Raises
        ------
        ExampleError : names both files, the column, and what it has in them.
        """
        for name in ids:
            form = _id_form(source, schema.field(name).type)
            earlier = self._forms.setdefault(name, form)
            if earlier.lists != form.lists or (
                None not in (earlier.values, form.values) and earlier.values != form.values
            ):
                raise ExampleError(
                    f"{source}: column {name!r} has {form}, in {earlier.source} it has {earlier}: "
                    "write all files with one type"
                )
            if earlier.values is None:
                self._forms[name] = form


def number_column(column: Any, missing: float | None) -> NumberColumn:
    """Return numbers; missing ones are `missing`, or wrong where that is None."""
    import pyarrow as pa

    filled: Any = column.cast(pa.float64(), safe=False).fill_null(
        np.nan if missing is None else missing
    )
    numbers = filled.to_numpy(zero_copy_only=False)
    wrong = ~(np.abs(numbers) <= _MOST_NUMBER)  # of NaN, too
    return NumberColumn(numbers, wrong, "a finite number of 32 bits")


def id_column(column: Any, rows: int | None) -> IdColumn:
    """Return ids, of a table of `rows`; None: of any number of rows."""
    if not _is_list(column.type):
        return _ids(column, rows)
    import pyarrow.compute as compute

    counts: Any = compute.call_function("list_value_length", [column])
    lengths = counts.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ids, _, wrong_values, expected = _ids(column.flatten(), rows)
    wrong = np.zeros(len(column), np.bool_)
    if wrong_values.any():
        wrong[np.repeat(np.arange(len(column)), lengths)[wrong_values]] = True
    return IdColumn(ids, lengths, wrong, expected)


def _ids(values: Any, rows: int | None) -> IdColumn:
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        return _of_dictionary(values, rows)
    if pa.types.is_integer(values.type):
        return _of_integers(values, rows)
    if pa.types.is_null(values.type):
        return _of_integers(values.cast(pa.int64()), rows)
    return _of_texts(values, rows)


def _of_dictionary(values: Any, rows: int | None) -> IdColumn:
    """Return the ids of values that are places in a dictionary."""
    import pyarrow as pa

    if len(values.dictionary) > len(values):
        # That of a row group, of which these rows use a part.
        return _ids(values.dictionary_decode(), rows)
    null = pa.nulls(1, values.dictionary.type)
    # A missing value's place is behind the dictionary, at a value that is missing.
    places = values.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        places = np.where(missing, len(values.dictionary), places)
    entries = _ids(pa.concat_arrays([values.dictionary, null]), rows)
    return IdColumn(entries.ids[places], None, entries.wrong[places], entries.expected)


def _of_integers(values: Any, rows: int | None) -> IdColumn:
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    most = MISSING if rows is None else rows - 1
    wrong = (numbers < 0) | (numbers > most)
    ids = numbers.astype(np.int64)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        if rows is None:
            ids = np.where(missing, MISSING, ids)
        else:
            wrong |= missing
    return IdColumn(ids, None, wrong, f"an id of 0 to {most}")


def _of_texts(values: Any, rows: int | None) -> IdColumn:
    import pyarrow as pa

    is_binary = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    texts = values.cast(pa.large_binary() if is_binary else pa.large_string())
    _, offsets, content = (memoryview(buffer or b"") for buffer in texts.buffers())
    count = len(texts)
    ids = np.empty(count, np.int64)
    if count:
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + count + 1]
        text_ids(np.frombuffer(content, np.uint8), ends, ids)
    if rows is not None:
        ids = 1 + ids % (rows - 1)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        ids = np.where(missing, MISSING if rows is None else 0, ids)
    return IdColumn(ids, None, np.zeros(count, np.bool_), "a text")


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    # A column without a single value is written without a type.
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return types.is_null(kind) or any(is_kind(kind) for is_kind in numeric)


def _is_id(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_id(kind.value_type)
    texts = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_binary, types.is_large_binary),
    )
    others = types.is_integer(kind) or types.is_null(kind)
    return others or any(is_kind(kind) for is_kind in texts)


def _id_form(source: str, kind: Any) -> _IdForm:
    from pyarrow import types

    lists = _is_list(kind)
    kind = kind.value_type if lists else kind
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_null(kind):
        return _IdForm(source, lists, None)
    return _IdForm(source, lists, "integers" if types.is_integer(kind) else "texts")


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
