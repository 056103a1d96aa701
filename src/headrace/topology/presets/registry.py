"""Registry of presets by name, for commands and tests."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import TopologyError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A function that returns topologies.

    Attributes
    ----------
    name : for users.
    make : the function; its docstring has the model and the sources of the figures.
    facts : one line: multicast support, and the ports that NIC traffic uses.
    example : arguments of a small instance.
    """

    name: str
    make: Callable[..., Topology]
    facts: str
    example: Mapping[str, Any]

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


def _preset(make: Callable[..., Topology], facts: str, **example: Any) -> Preset:
    return Preset(name=make.__name__, make=make, facts=facts, example=example)


_MESH = "8 V100 in an NVLink mesh, no switch inside"
_SWITCH = "on an NVSwitch"
_NO_COPY = "no multicast"
_BESIDE = "NIC traffic off the NVSwitch's ports"
_ALL = "all traffic uses the NICs"

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            ndv2, f"{_MESH}; {_NO_COPY}; one NIC a node over PCIe, off the NVLinks; measured costs"
        ),
        _preset(
            ndv2_taccl_1mb,
            f"{_MESH}; {_NO_COPY}; one NIC a node, off the NVLinks; TACCL's 1 MB costs",
        ),
        _preset(dgx1, f"{_MESH}; {_NO_COPY}; four NICs a node, each for two GPUs, off the NVLinks"),
        _preset(dgx2, f"16 V100 {_SWITCH}; {_NO_COPY}; a NIC for two GPUs; {_BESIDE}"),
        _preset(
            dgx2_taccl_1mb,
            f"dgx2 with TACCL's 1 MB costs; {_NO_COPY}; a NIC for two GPUs; {_BESIDE}",
        ),
        _preset(dgx_a100, f"8 A100 {_SWITCH}, 300 GB/s; {_NO_COPY}; 25 GB/s NIC a GPU; {_BESIDE}"),
        _preset(dgx_h100, f"8 H100 {_SWITCH}, 450 GB/s; multicast; 50 GB/s NIC a GPU; {_BESIDE}"),
        _preset(
            mi250,
            f"16 GPU dies in 8 packages, irregular fabric, no switch; {_NO_COPY}; "
            "25 GB/s NIC a package, off the fabric",
        ),
        _preset(ring, f"ranks in a cycle; no switch, {_NO_COPY}, no NICs", n=5),
        _preset(mesh, f"grid of ranks; no switch, {_NO_COPY}, no NICs", shape=(3, 4)),
        _preset(torus, f"grid that wraps around; no switch, {_NO_COPY}, no NICs", shape=(2, 3, 4)),
        _preset(
            hub_and_spoke, f"one rank linked with all others; no switch, {_NO_COPY}, no NICs", n=5
        ),
        _preset(
            fat_tree,
            f"hosts below oversubscribed switches; {_NO_COPY}; {_ALL}",
            shape=(3, 2, 2),
            oversubscription=2.0,
        ),
        _preset(uniform, f"one rank a host, any to any; {_NO_COPY}; {_ALL}", ranks=4),
        _preset(
            racks,
            f"racks of hosts behind uplinks; {_NO_COPY}; {_ALL}",
            hosts_per_rack=(2, 3),
            host_bytes_per_s=50e6,
            uplink_bytes_per_s=12.5e6,
        ),
    )
}
