"""Made clicks whose skew of accesses is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.data.criteo import HASHES, INTEGERS
from headrace.embeddings.data.skew import Skew
from headrace.embeddings.errors import EmbeddingError

KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of the 26 columns of Kaggle's data set."""

TERABYTE_ROWS = (
    *(227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10),
    *(2209, 11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36),
)
"""Distinct values of the 26 columns of the Terabyte data set."""

AVAZU_ROWS = (
    *(7, 7, 4737, 7745, 26, 8552, 559, 36, 2686408, 6729486, 8251, 5, 4),
    *(2626, 8, 9, 435, 4, 68, 172, 60),
)
"""Distinct values of the 21 columns of Avazu's data set."""

_SPREAD = 2_654_435_761
"""A prime of 32 bits, so that multiplication by it permutes ids and, below it, rows."""

_PART = 1 << 14


class Clicks(NamedTuple):
    """Some examples.

    Attributes
    ----------
    first : number of the first one.
    labels : [examples].
    integers : [examples, integers].
    ranks, hashes : of every table, [examples]: rows by their frequency, and 32 bits for each row.
    missing : [integers, then tables, examples]: fields that are empty.
    """

    first: int
    labels: NDArray[np.bool_]
    integers: NDArray[np.int64]
    ranks: list[NDArray[np.int64]]
    hashes: list[NDArray[np.int64]]
    missing: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickSource:
    """Makes clicks that depend on an example's rows and numbers, so that a model can learn them.

    Attributes
    ----------
    later : skew of the second half of the examples; None: the same.
    rows : of every table.
    integers : numbers of an example.
    missing : share of empty fields.
    """

    skew: Skew
    later: Skew | None = None
    rows: tuple[int, ...] = KAGGLE_ROWS
    integers: int = INTEGERS
    missing: float = 0.03
    seed: int = 0
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.rows or not 1 <= min(self.rows) <= max(self.rows) <= 1 << 32:
            raise EmbeddingError("a table's rows need 1 to 4294967296")
        object.__setattr__(self, "_generator", np.random.default_rng(self.seed))

    def clicks(self, examples: int) -> Iterator[Clicks]:
        """Yield so many examples, some thousands at once."""
        half = examples if self.later is None else examples // 2
        for start, stop, skew in ((0, half, self.skew), (half, examples, self.later or self.skew)):
            for first in range(start, stop, _PART):
                yield self._clicks(first, min(_PART, stop - first), skew)

    def _clicks(self, first: int, count: int, skew: Skew) -> Clicks:
        generator = self._generator
        integers = generator.lognormal(1.5, 1.5, (count, self.integers)).astype(np.int64)
        logit = 0.2 * (np.log1p(integers).sum(1) - self.integers * 1.7) - 1.0
        ranks: list[NDArray[np.int64]] = []
        hashes: list[NDArray[np.int64]] = []
        for table, rows in enumerate(self.rows):
            ranks.append(skew.draw(rows, count, generator))
            hashes.append(self.hashes(table, ranks[-1]))
            # Half of a hash's bits are a row's effect.
            logit += 0.6 * ((hashes[-1] & 0xFFFF) / 0x8000 - 1.0)
        labels = generator.random(count) < 1 / (1 + np.exp(-logit))
        fields = self.integers + len(self.rows)
        missing = np.array([generator.random(count) < self.missing for _ in range(fields)])
        return Clicks(first, labels, integers, ranks, hashes, missing)

    def lines(self, examples: int) -> Iterator[bytes]:
        """Yield lines of Criteo's format, of so many examples, some thousands at once.

        Raises
        ------
        EmbeddingError : there are other numbers of tables and integers than in that format.
        """
        if (len(self.rows), self.integers) != (HASHES, INTEGERS):
            raise EmbeddingError(f"rows are of {len(self.rows)} tables, needs {HASHES}")
        for clicks in self.clicks(examples):
            columns = [list(map(str, clicks.labels.astype(int).tolist()))]
            columns += [list(map(str, column)) for column in clicks.integers.T.tolist()]
            columns += [[f"{hash_:08x}" for hash_ in column.tolist()] for column in clicks.hashes]
            for column, missing in zip(columns[1:], clicks.missing, strict=True):
                for place in np.flatnonzero(missing):
                    column[place] = ""
            lines = map("\t".join, zip(*columns, strict=True))
            yield ("\n".join(lines) + "\n").encode()

    def hashes(self, table: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return distinct hashes of 32 bits for a table's rows, which are numbered by frequency."""
        return (ranks * _SPREAD + table * 0x9E3779B1) & 0xFFFF_FFFF


def row_counts(rows: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Return the rows of tables, each at most `most`."""
    return tuple(rows) if most is None else tuple(min(count, most) for count in rows)
