"""Detection of a GPU without initialising CUDA.

The backend is registered inside of `import torch`. There `torch.cuda.is_available` would call
``cuInit``, after which CUDA cannot be used in a forked child. The driver's device files tell
whether there is a GPU: as with `torch.cuda.device_count`, a broken driver is not detected.
"""

from pathlib import Path

_CUDA_FILES = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu", "dxg")
"""Device files of NVIDIA GPUs: of cards, of two kinds of Jetson modules, of Linux on Windows."""
_ROCM_FILES = ("kfd",)


def has_gpu(dev: Path = Path("/dev")) -> bool:
    """Return whether this process can use a GPU that torch calls "cuda", as far as files tell.

    Parameters
    ----------
    dev : folder of the device files.
    """
    import torch  # it is this module's caller at import

    if not torch.backends.cuda.is_built():
        return False
    patterns = _ROCM_FILES if torch.version.hip else _CUDA_FILES
    if not any(file for pattern in patterns for file in dev.glob(pattern)):
        return False
    return bool(torch.cuda._parse_visible_devices())  # pyright: ignore[reportPrivateUsage]
