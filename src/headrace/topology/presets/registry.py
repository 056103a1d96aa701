"""Registry of presets by name, for commands and tests."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import TopologyError
from headrace.facades import offered_by
from headrace.topology.presets.amd import mi250
from headrace.topology.presets.fat_tree import fat_tree
from headrace.topology.presets.lattice import hub_and_spoke, mesh, ring, torus
from headrace.topology.presets.nvidia import (
    dgx1,
    dgx2,
    dgx2_taccl_1mb,
    dgx_a100,
    dgx_h100,
    ndv2,
    ndv2_taccl_1mb,
)
from headrace.topology.presets.racks import racks, uniform
from headrace.topology.topology import Topology


@offered_by("headrace.topology.presets")
@dataclass(frozen=True, slots=True)
class Preset:
    """A function that returns topologies.

    Attributes
    ----------
    make : the function; its docstring has the model and the sources of the figures.
    facts : one line: multicast support, and the ports that NIC traffic uses.
    """

    make: Callable[..., Topology]
    facts: str

    @property
    def name(self) -> str:
        """Name for users."""
        return self.make.__name__

    @property
    def parameters(self) -> Mapping[str, tuple[Any, Any]]:
        """Name -> (type, default) of every parameter; `inspect.Parameter.empty` if it has none."""
        return {
            name: (parameter.annotation, parameter.default)
            for name, parameter in inspect.signature(self.make).parameters.items()
        }

    def __call__(self, **arguments: Any) -> Topology:
        """Make the topology; raises TopologyError for parameters that it does not have."""
        unknown = sorted(set(arguments) - set(self.parameters))
        if unknown:
            raise TopologyError(
                f"preset {self.name} has no parameter '{unknown[0]}', "
                f"needs some of: {', '.join(self.parameters)}"
            )
        if missing := self.missing(arguments):
            raise TopologyError(f"preset {self.name} needs parameter '{missing[0]}'")
        return self.make(**arguments)

    def missing(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the parameters that have no default and are not among `arguments`."""
        return [
            name
            for name, (_, default) in self.parameters.items()
            if default is inspect.Parameter.empty and name not in arguments
        ]


_MESH = "8 V100 in an NVLink mesh, no switch inside"
_SWITCH = "on an NVSwitch"
_NO_COPY = "no multicast"
_BESIDE = "NIC traffic off the NVSwitch's ports"
_ALL = "all traffic uses the NICs"

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            ndv2, f"{_MESH}; {_NO_COPY}; one NIC a node over PCIe, off the NVLinks; measured costs"
        ),
        Preset(
            ndv2_taccl_1mb,
            f"{_MESH}; {_NO_COPY}; one NIC a node, off the NVLinks; TACCL's 1 MB costs",
        ),
        Preset(dgx1, f"{_MESH}; {_NO_COPY}; four NICs a node, each for two GPUs, off the NVLinks"),
        Preset(dgx2, f"16 V100 {_SWITCH}; {_NO_COPY}; a NIC for two GPUs; {_BESIDE}"),
        Preset(
            dgx2_taccl_1mb,
            f"dgx2 with TACCL's 1 MB costs; {_NO_COPY}; a NIC for two GPUs; {_BESIDE}",
        ),
        Preset(dgx_a100, f"8 A100 {_SWITCH}, 300 GB/s; {_NO_COPY}; 25 GB/s NIC a GPU; {_BESIDE}"),
        Preset(dgx_h100, f"8 H100 {_SWITCH}, 450 GB/s; multicast; 50 GB/s NIC a GPU; {_BESIDE}"),
        Preset(
            mi250,
            f"16 GPU dies in 8 packages, irregular fabric, no switch; {_NO_COPY}; "
            "25 GB/s NIC a package, off the fabric",
        ),
        Preset(ring, f"ranks in a cycle; no switch, {_NO_COPY}, no NICs"),
        Preset(mesh, f"grid of ranks; no switch, {_NO_COPY}, no NICs"),
        Preset(torus, f"grid that wraps around; no switch, {_NO_COPY}, no NICs"),
        Preset(hub_and_spoke, f"one rank linked with all others; no switch, {_NO_COPY}, no NICs"),
        Preset(fat_tree, f"hosts below oversubscribed switches; {_NO_COPY}; {_ALL}"),
        Preset(uniform, f"one rank a host, any to any; {_NO_COPY}; {_ALL}"),
        Preset(racks, f"racks of hosts behind uplinks; {_NO_COPY}; {_ALL}"),
    )
}
"""Topologies of machines by the names that ``headrace topology preset`` takes."""
