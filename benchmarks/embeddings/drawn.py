"""Batches of Kaggle's shape, drawn in memory: the same ones in every process."""

from collections.abc import Iterator

import numpy as np

from headrace.embeddings import Examples
from headrace.embeddings.data.generate import KAGGLE_ROWS, Skew

BATCH = 16_384
SKEW = Skew(kind="zipf", parameter=1.05)


def capped(most: int) -> tuple[int, ...]:
    """Return the rows of Kaggle's tables, each at most `most`."""
    return tuple(min(rows, most) for rows in KAGGLE_ROWS)


def drawn_batches(
    counts: tuple[int, ...], batch: int = BATCH, seed: int = 0, skew: Skew = SKEW
) -> Iterator[Examples]:
    """Yield batches without end; their labels say nothing."""
    random = np.random.default_rng(seed)
    while True:
        yield Examples(
            labels=random.integers(0, 2, batch).astype(np.float32),
            dense=random.standard_normal((batch, 13), dtype=np.float32),
            ids=tuple(skew.draw(rows, batch, random) * 2_654_435_761 % rows for rows in counts),
            lengths=(None,) * len(counts),
        )
