"""Scales of features that are numbers."""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from headrace.facades import offered_by


@offered_by("headrace.embeddings")
class DenseScale(Enum):
    """Scale of numbers whose range is wide.

    LOG is ln(x + 1), of negative ones 0, as in DLRM's code. LOG_PLUS_3 is ln(x + 3), of those
    below -2 0, as in TorchRec's code. LOG_SQUARED is the integer part of ln(x) squared where x is
    above 2, else x, as in solutions of Kaggle's competition. NONE leaves numbers as they are.
    """

    LOG = "log"
    LOG_PLUS_3 = "log-plus-3"
    LOG_SQUARED = "log-squared"
    NONE = "none"

    def apply(self, numbers: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the scaled numbers."""
        if self is DenseScale.LOG:
            # A logarithm of 32 bits is several times as fast, and the result has no more.
            return np.log(np.maximum(numbers + 1, 1).astype(np.float32))
        if self is DenseScale.LOG_PLUS_3:
            return np.log(np.maximum(numbers + 3, 1).astype(np.float32))
        if self is DenseScale.LOG_SQUARED:
            # In 64 bits: an error of the last place could change the integer part.
            logs = np.log(np.maximum(numbers, 1).astype(np.float64))
            return np.where(numbers > 2, np.floor(logs**2), numbers).astype(np.float32)
        return numbers.astype(np.float32)
