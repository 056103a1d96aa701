"""The memory of gradients: vectors of it, and those that follow each other in it."""

from collections.abc import Sequence

from torch import Tensor

from headrace.compression.errors import CompressionError


def flat(tensor: Tensor) -> Tensor:
    """Return a dense tensor's memory as a vector, in whatever order its dimensions are stored.

    For what works element by element; its order is not that of residuals and states.

    Raises
    ------
    CompressionError : its elements do not lie side by side.
    """
    if not is_dense(tensor):
        raise CompressionError(
            f"a gradient of shape {tuple(tensor.shape)} has strides {tensor.stride()}, "
            "needs elements side by side"
        )
    return tensor.as_strided((tensor.numel(),), (1,))


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie side by side in memory, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    step = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1:
            if stride != step:
                return False
            step *= length
    return True


def joined_runs(vectors: Sequence[Tensor]) -> list[Tensor]:
    """Return vectors with runs that follow each other in memory joined.

    The order stays: it is the order of the exchanges, and addresses differ among ranks.
    """
    runs: list[Tensor] = []
    for vector in vectors:
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.dtype == vector.dtype
            and last.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
            and last.storage_offset() + last.numel() == vector.storage_offset()
        ):
            runs[-1] = last.as_strided((last.numel() + vector.numel(),), (1,))
        else:
            runs.append(vector)
    return runs
