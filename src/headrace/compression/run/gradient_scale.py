"""The scale of a job's gradients, which residuals of earlier steps follow."""

from typing import Any

from headrace.compression.errors import CompressionError


def check_scaler(scaler: Any) -> None:
    """Raise a `CompressionError` unless this is a gradient scaler, or None."""
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise CompressionError(f"scaler is {scaler!r}, needs a torch.amp.GradScaler")


class GradientScale:
    """The factor of a job's gradients by a gradient scaler, 1 without one.

    Attributes
    ----------
    factor : of the gradients whose residuals are kept.
    """

    def __init__(self, scaler: Any) -> None:
        check_scaler(scaler)
        self._scaler = scaler
        self.factor = self._current()

    def load(self, factor: float | None) -> float:
        """Return by what saved residuals are to be multiplied; None: no scaler had scaled them."""
        self.factor = factor or 1.0
        return self.follow()

    def follow(self) -> float:
        """Return by what residuals are to be multiplied for the gradients of the next step."""
        before, self.factor = self.factor, self._current()
        # a scaler that halved its factor at every step reaches 0
        return self.factor / before if before else 1.0

    def _current(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())
