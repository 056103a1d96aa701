"""Traffic of all connections of a job in a window of time, as matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Matrices over (from, to), of shape (ranks, ranks).

    Attributes
    ----------
    sent_bytes : in the window.
    rate_bytes_per_s : effective: bytes acknowledged over the time in which the connection was
        busy; nan where it was not.
    rtt_us : smoothed round-trip time; nan where not known.
    """

    sent_bytes: np.ndarray
    rate_bytes_per_s: np.ndarray
    rtt_us: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "Traffic":
        """Assemble the ranks' reports: by rank, lists over `peer`."""
        n = len(rows)
        sent = np.zeros((n, n))
        rate, rtt = np.full((n, n), np.nan), np.full((n, n), np.nan)
        for rank, row in enumerate(rows):
            peers = np.array(row["peer"], np.int64)
            sent[rank, peers] = row["sent_bytes"]
            rate[rank, peers] = row["rate_bytes_per_s"]
            rtt[rank, peers] = row["rtt_us"]
        return cls(sent_bytes=sent, rate_bytes_per_s=rate, rtt_us=rtt)


def typical_rates(windows: Sequence[Traffic]) -> np.ndarray:
    """Return the median rates of several windows, nan where none has any."""
    rates = np.stack([window.rate_bytes_per_s for window in windows])
    medians = np.full(rates.shape[1:], np.nan)
    seen = np.isfinite(rates).any(axis=0)
    medians[seen] = np.nanmedian(rates[:, seen], axis=0)
    return medians
