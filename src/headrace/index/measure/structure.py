"""The rank-and-residual encoding: how far keys are from linear, at several scales.

A key's position among the keys (its rank) stands in place of its value, so that a few extreme
outliers change a few windows only, where they would leave an image with one column.
"""

import numpy as np

from headrace.artifact import Table

SCALES = (16, 64, 256, 1024, 4096, 16384, 65536)
"""Keys of a window."""

QUANTILES = (0.1, 0.5, 0.9, 1.0)
GAP_BINS = 64
CHANGE_BINS = 16
SLOT_KEYS = 16
"""Keys of a slot, on average, in the measure of evenness: about a small fragment."""

_WINDOWS = 256
_ELEMENTS = 1 << 20


def key_structure(codes: np.ndarray) -> dict[str, Table]:
    """Return the encoding of distinct codes, ascending.

    "fits" has a row for each of `SCALES`: quantiles over windows of log2(1 + the root mean square
    residual, in positions, of the line through the window's keys), and the tenth and the half of
    the evenness, which is 1 if a linear model fills slots of `SLOT_KEYS` keys alike. "gaps" has the
    shares of distances to the next key by their log2; "changes" of the change of that log2 from
    one distance to the next, by quarters.
    """
    return {
        "fits": _fits(codes),
        "gaps": {"share": _gap_shares(codes)},
        "changes": {"share": _change_shares(codes)},
    }


def _fits(codes: np.ndarray) -> Table:
    rows = [_fit(codes, scale) for scale in SCALES]
    names = [f"residual{round(100 * quantile)}" for quantile in QUANTILES] + ["even10", "even50"]
    table = {"scale": np.array(SCALES, dtype=np.int32)}
    return table | {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def _fit(codes: np.ndarray, scale: int) -> list[float]:
    keys = min(scale, len(codes))
    if keys < 3:
        return [0.0] * len(QUANTILES) + [1.0, 1.0]
    windows = _windows(codes, keys)
    residual = _residuals(windows)
    even = _evenness(windows)
    return [
        *np.quantile(np.log2(1 + residual), QUANTILES).tolist(),
        *np.quantile(even, (0.1, 0.5)).tolist(),
    ]


def _windows(codes: np.ndarray, keys: int) -> np.ndarray:
    """Return windows of adjoining keys at even steps, each from 0 to 1 (windows, keys)."""
    count = max(min(_WINDOWS, _ELEMENTS // keys, len(codes) // keys), 1)
    starts = np.linspace(0, len(codes) - keys, count).astype(np.int64)
    picked = codes[starts[:, None] + np.arange(keys)]
    offsets = (picked - picked[:, :1]).astype(np.float64)
    return offsets / offsets[:, -1:]


def _residuals(windows: np.ndarray) -> np.ndarray:
    """Return the root mean square residual of each window's ranks from their regression line."""
    keys = windows.shape[1]
    rank = np.arange(keys) - (keys - 1) / 2
    centred = windows - windows.mean(axis=1, keepdims=True)
    slope = (centred @ rank) / np.square(centred).sum(axis=1)
    return np.sqrt(np.square(rank - slope[:, None] * centred).mean(axis=1))


def _evenness(windows: np.ndarray) -> np.ndarray:
    """Return keys^2 / (slots x sum of the squares of the slots' keys) of each window."""
    count, keys = windows.shape
    slots = max(keys // SLOT_KEYS, 2)
    slot = (windows * slots).astype(np.int64).clip(0, slots - 1)
    cells = np.bincount((slot + slots * np.arange(count)[:, None]).ravel(), minlength=count * slots)
    squares = np.square(cells.reshape(count, slots).astype(np.float64)).sum(axis=1)
    return keys**2 / (slots * squares)


def _log_gaps(codes: np.ndarray) -> np.ndarray:
    return np.log2(np.diff(codes).astype(np.float64))


def _gap_shares(codes: np.ndarray) -> np.ndarray:
    logs = _log_gaps(codes)
    counts = np.bincount(logs.astype(np.int64).clip(0, GAP_BINS - 1), minlength=GAP_BINS)
    return counts / max(len(logs), 1)


def _change_shares(codes: np.ndarray) -> np.ndarray:
    changes = np.abs(np.diff(_log_gaps(codes))) * 4
    counts = np.bincount(changes.astype(np.int64).clip(0, CHANGE_BINS - 1), minlength=CHANGE_BINS)
    return counts / max(len(changes), 1)
