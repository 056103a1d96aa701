"""Checks of PyTorch: its version and build, devices, and entry points that break its import."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.doctor.finding import CheckFinding
from headrace.doctor.installation import check_version
from headrace.doctor.probing import ProbeResult, probe
from headrace.extras import dependency

_GROUP = "torch.backends"
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")

_TORCH = """
import json, torch, torch.distributed as distributed
has_distributed = distributed.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "hip": torch.version.hip,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available() else [],
    "distributed": has_distributed,
    "registered": has_distributed and "headrace" in distributed.Backend.backend_list,
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFindings:
    """The findings on PyTorch: the package, its entry points, the devices that it can use."""

    torch: CheckFinding
    entry_points: CheckFinding
    devices: CheckFinding


def check_torch() -> TorchFindings:
    """Check PyTorch; it is imported in a process of its own, if its version serves."""
    entry_points = _check_entry_points()
    absent = check_version(dependency("torch"))
    if absent is not None:
        return TorchFindings(torch=absent, entry_points=entry_points, devices=_devices(None))
    result = probe(_TORCH)
    if result.problem or not result.answers:
        package = _not_imported(result, entry_points)
        return TorchFindings(torch=package, entry_points=entry_points, devices=_devices(None))
    build = result.answers[-1]
    return TorchFindings(torch=_built(build), entry_points=entry_points, devices=_devices(build))


def _not_imported(result: ProbeResult, entry_points: CheckFinding) -> CheckFinding:
    requirement = dependency("torch").requirement
    remedy = entry_points.remedy or f"pip install --force-reinstall '{requirement}'"
    return CheckFinding.missing(
        "torch",
        f"{metadata.version('torch')} is installed, and cannot be imported: "
        f"{result.problem or 'it printed nothing'}",
        remedy=remedy,
    )


def _built(build: dict[str, Any]) -> CheckFinding:
    variant = next(
        (
            f"for {name} {build[key]}"
            for name, key in (("CUDA", "cuda"), ("ROCm", "hip"))
            if build[key]
        ),
        "for the CPU",
    )
    text = f"{build['version']}, built {variant}"
    if not build["distributed"]:
        return CheckFinding.missing(
            "torch",
            f"{text}, without torch.distributed",
            remedy="install a build of PyTorch that has torch.distributed",
        )
    if not build["registered"]:
        return CheckFinding.limited(
            "torch",
            f"{text}; it does not know the backend headrace without import headrace.torch",
            remedy="install headrace, and leave TORCH_DEVICE_BACKEND_AUTOLOAD unset",
        )
    return CheckFinding.ok("torch", text)


def _devices(build: dict[str, Any] | None) -> CheckFinding:
    """Return the finding on GPUs; with no answer of torch, from the drivers' files alone."""
    files = [file.name for pattern in _DEVICE_FILES for file in sorted(Path("/dev").glob(pattern))]
    if build is not None and build["devices"]:
        return CheckFinding.ok("devices", ", ".join(build["devices"]))
    if not files:
        return CheckFinding.ok("devices", "no GPU: work is done on the CPU")
    usable = "PyTorch cannot be asked" if build is None else "PyTorch can use none"
    return CheckFinding.limited(
        "devices",
        f"a GPU's driver is installed (/dev/{files[0]}), and {usable}",
        remedy="install a build of PyTorch for the driver; see CUDA_VISIBLE_DEVICES, too",
    )


def _check_entry_points() -> CheckFinding:
    """Check the modules that torch loads at the end of its own import."""
    name = "torch-backends"
    leftovers = list(_leftovers())
    if leftovers:
        named = ", ".join(f"{value} of {owner}" for value, owner in leftovers)
        return CheckFinding.missing(
            name,
            f"import torch fails: it loads {named}, which is not installed",
            remedy=f"pip uninstall {' '.join(sorted({owner for _, owner in leftovers}))}",
        )
    loaded = [entry.name for entry in metadata.entry_points(group=_GROUP)]
    return CheckFinding.ok(name, ", ".join(loaded) or "none")


def _leftovers() -> Iterator[tuple[str, str]]:
    """Yield (module, distribution) of entry points whose package is gone."""
    for entry in metadata.entry_points(group=_GROUP):
        if find_spec(entry.module.partition(".")[0]) is None:
            owner = entry.dist.name if entry.dist is not None else entry.name
            yield entry.module, owner
