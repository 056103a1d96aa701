"""Registry of presets by name, for commands and tests."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    example: Mapping[str, Any] = field(default_factory=dict)

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
_NO_COPY = "no multicast"
_BESIDE = "NIC traffic off the NVSwitch's ports"

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="ndv2",
            make=ndv2,
            facts=f"{_MESH}; {_NO_COPY}; one NIC a node over PCIe, off the NVLinks; measured costs",
        ),
        Preset(
            name="ndv2_taccl_1mb",
            make=ndv2_taccl_1mb,
            facts=f"{_MESH}; {_NO_COPY}; one NIC a node, off the NVLinks; TACCL's 1 MB costs",
        ),
        Preset(
            name="dgx1",
            make=dgx1,
            facts=f"{_MESH}; {_NO_COPY}; four NICs a node, each for two GPUs, off the NVLinks",
        ),
        Preset(
            name="dgx2",
            make=dgx2,
            facts=f"16 V100 on an NVSwitch; {_NO_COPY}; a NIC for two GPUs; {_BESIDE}",
        ),
        Preset(
            name="dgx2_taccl_1mb",
            make=dgx2_taccl_1mb,
            facts=f"dgx2 with TACCL's 1 MB costs; {_NO_COPY}; a NIC for two GPUs; {_BESIDE}",
        ),
        Preset(
            name="dgx_a100",
            make=dgx_a100,
            facts=f"8 A100 on an NVSwitch, 300 GB/s; {_NO_COPY}; 25 GB/s NIC a GPU; {_BESIDE}",
        ),
        Preset(
            name="dgx_h100",
            make=dgx_h100,
            facts=f"8 H100 on an NVSwitch, 450 GB/s; multicast; 50 GB/s NIC a GPU; {_BESIDE}",
        ),
        Preset(
            name="mi250",
            make=mi250,
            facts=f"16 GPU dies in 8 packages, irregular fabric, no switch; {_NO_COPY}; "
            "25 GB/s NIC a package, off the fabric",
        ),
        Preset(
            name="ring",
            make=ring,
            facts=f"ranks in a cycle; no switch, {_NO_COPY}, no NICs",
            example={"n": 5},
        ),
        Preset(
            name="mesh",
            make=mesh,
            facts=f"grid of ranks; no switch, {_NO_COPY}, no NICs",
            example={"shape": (3, 4)},
        ),
        Preset(
            name="torus",
            make=torus,
            facts=f"grid that wraps around; no switch, {_NO_COPY}, no NICs",
            example={"shape": (2, 3, 4)},
        ),
        Preset(
            name="hub_and_spoke",
            make=hub_and_spoke,
            facts=f"one rank linked with all others; no switch, {_NO_COPY}, no NICs",
            example={"n": 5},
        ),
        Preset(
            name="fat_tree",
            make=fat_tree,
            facts=f"hosts below oversubscribed switches; {_NO_COPY}; all traffic uses the NICs",
            example={"shape": (3, 2, 2), "oversubscription": 2.0},
        ),
        Preset(
            name="uniform",
            make=uniform,
            facts=f"one rank a host, any to any; {_NO_COPY}; all traffic uses the NICs",
            example={"ranks": 4},
        ),
        Preset(
            name="racks",
            make=racks,
            facts=f"racks of hosts behind uplinks; {_NO_COPY}; all traffic uses the NICs",
            example={
                "hosts_per_rack": (2, 3),
                "host_bytes_per_s": 50e6,
                "uplink_bytes_per_s": 12.5e6,
            },
        ),
    )
}
