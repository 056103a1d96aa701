"""A device by the figures of its data sheet, for plans on another; imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from headrace import fields
from headrace.fields import Field
from headrace.files import parse_json, read_text

_LEAST = {"flops_per_s": 1, "bytes_per_s": 1, "launch_us": 0, "host_bytes_per_s": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A device that is not at hand, by three figures of its data sheet.

    Attributes
    ----------
    name : for tables.
    flops_per_s : of matrix products and convolutions.
    bytes_per_s : of memory.
    launch_us : of one operator, at least.
    host_bytes_per_s : between it and the host's memory, in one direction; 0: not stated.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    launch_us: float
    host_bytes_per_s: float = 0.0


UNNAMED_DEVICE = Roofline(
    name="a roofline", flops_per_s=1e12, bytes_per_s=1e11, launch_us=5.0, host_bytes_per_s=1e10
)
"""Of round figures, where only the ratio of flops to bytes matters, or whether a step fits."""


def load_roofline(path: str | Path) -> Roofline:
    """Read a device: a JSON object of the fields of `Roofline`, the last of which may be missing.

    Raises
    ------
    InputError : naming the file and the field.
    """
    table = Field(parse_json(read_text(path), str(path)), str(path)).read(fields.table)
    device = Field({"host_bytes_per_s": 0.0, **table}, str(path))
    device.allow("name", *_LEAST)
    figures = {name: device.at(name).read(fields.number) for name in _LEAST}
    for name, figure in figures.items():
        if not _LEAST[name] <= figure <= 1e24:
            raise device.at(name).wrong(f"{_LEAST[name]} to 1e24")
    return Roofline(name=device.at("name").text(), **figures)
