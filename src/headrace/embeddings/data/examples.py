"""Examples that a recommendation model is trained on, as columns."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.errors import EmbeddingError
from headrace.facades import public_value


@public_value("headrace.embeddings", eq=False, repr=False)
class Examples:
    """Some examples.

    Attributes
    ----------
    labels : [examples], or [examples, labels] as a loader has them: 1 of a click, else 0; None:
        unlabelled.
    dense : [examples, features]: features that are numbers.
    ids : of every table, the rows that the examples use, one example's after the other's.
    lengths : of every table, [examples]: the number of each example's ids; None: one each.
    """

    labels: NDArray[np.float32] | None
    dense: NDArray[np.float32]
    ids: tuple[NDArray[np.int64], ...]
    lengths: tuple[NDArray[np.int64] | None, ...]

    def __post_init__(self) -> None:
        check_ids(len(self), self.ids, self.lengths)
        if self.labels is not None and len(self.labels) != len(self):
            raise EmbeddingError(f"{len(self)} examples have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.dense)

    def __repr__(self) -> str:
        return (
            f"<Examples: {len(self)}, of {self.dense.shape[1]} numbers and {len(self.ids)} tables>"
        )

    def __getitem__(self, part: slice) -> "Examples":
        """Return consecutive examples, which share memory with these."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise EmbeddingError(f"a part of examples has a step of {step}, needs 1")
        ids = tuple(
            rows[start:stop] if lengths is None else rows[slice(*_ends(lengths, start, stop))]
            for rows, lengths in zip(self.ids, self.lengths, strict=True)
        )
        return Examples(
            labels=None if self.labels is None else self.labels[start:stop],
            dense=self.dense[start:stop],
            ids=ids,
            lengths=tuple(
                None if lengths is None else lengths[start:stop] for lengths in self.lengths
            ),
        )

    def id_ends(self, parts: int) -> NDArray[np.int64]:
        """Return where the ids of each of `parts` consecutive shares of the examples end.

        The first shares have one example more where they are not equally large: [tables, parts].
        """
        ends = share_ends(len(self), parts)
        return np.array([id_ends(lengths, ends) for lengths in self.lengths], np.int64).reshape(
            len(self.ids), parts
        )


def is_count(number: object) -> bool:
    """Return whether a number is an int, of 1 or more."""
    return isinstance(number, int) and number >= 1


def _ends(lengths: NDArray[np.int64], start: int, stop: int) -> tuple[int, int]:
    before = int(lengths[:start].sum())
    return before, before + int(lengths[start:stop].sum())


def check_ids(
    examples: int,
    ids: Sequence[NDArray[np.int64]],
    lengths: Sequence[NDArray[np.int64] | None],
) -> None:
    """Check columns of ids, one for each table, and of their lengths.

    Raises
    ------
    EmbeddingError : they are not those of so many examples; names the table.
    """
    if len(ids) != len(lengths):
        raise EmbeddingError(f"{len(ids)} tables have {len(lengths)} columns of lengths")
    for table, (column, counts) in enumerate(zip(ids, lengths, strict=True)):
        rows, count = (len(column),) * 2 if counts is None else (len(counts), counts.sum())
        if rows != examples or count != len(column):
            raise EmbeddingError(f"table {table}: its ids are not those of {examples} examples")


def id_ends(lengths: NDArray[np.int64] | None, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where a table's ids of each share end, of shares that end at the examples `ends`."""
    return ends if lengths is None else np.concatenate([[0], np.cumsum(lengths)])[ends]


def share_ends(
    examples: int, parts: int, shares: Sequence[float] | None = None
) -> NDArray[np.int64]:
    """Return where each of `parts` consecutive shares of some examples ends: [parts].

    Parameters
    ----------
    shares : of the examples, rounded; they add up to 1. None: equal ones, of which the first have
        one example more where they are not equally large.
    """
    if shares is not None:
        ends = np.rint(np.cumsum(shares) * examples).astype(np.int64)
        ends[-1] = examples
        return ends
    size, larger = divmod(examples, parts)
    numbers = np.arange(1, parts + 1)
    return size * numbers + np.minimum(numbers, larger)


def merged_examples(parts: Sequence[Examples]) -> Examples:
    """Return several parts' examples as one; the parts have the same tables, and labels or none."""
    if len(parts) == 1:
        return parts[0]
    labels = [part.labels for part in parts if part.labels is not None]
    lengths = zip(*(part.lengths for part in parts), strict=True)
    return Examples(
        labels=np.concatenate(labels) if labels else None,
        dense=np.concatenate([part.dense for part in parts]),
        ids=tuple(
            np.concatenate(columns) for columns in zip(*(part.ids for part in parts), strict=True)
        ),
        lengths=tuple(
            None
            if all(column is None for column in columns)
            else np.concatenate(
                [
                    np.ones(len(part), np.int64) if column is None else column
                    for part, column in zip(parts, columns, strict=True)
                ]
            )
            for columns in lengths
        ),
    )


def in_batches(
    parts: Iterable[Examples], size: int, *, drop_last: bool = False
) -> Iterator[Examples]:
    """Yield batches of `size` examples, in order; the last one may be shorter, or is left out.

    Raises
    ------
    EmbeddingError : `size` is below 1.
    """
    if size < 1:
        raise EmbeddingError(f"a batch has {size} examples, needs 1 or more")
    pending: list[Examples] = []
    count = 0
    for part in parts:
        pending.append(part)
        count += len(part)
        if count < size:
            continue
        examples = merged_examples(pending)
        full = count - count % size
        for start in range(0, full, size):
            yield examples[start : start + size]
        pending, count = [examples[full:]], count - full
    if count and not drop_last:
        yield merged_examples(pending)
