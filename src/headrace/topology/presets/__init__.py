"""Topologies by name or by a few numbers, for any number of nodes."""

from headrace.topology.presets.amd import mi250
from headrace.topology.presets.boxes import Inter
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
from headrace.topology.presets.registry import PRESETS, Preset

__all__ = [
    "Inter",
    "PRESETS",
    "Preset",
    "dgx1",
    "dgx2",
    "dgx2_taccl_1mb",
    "dgx_a100",
    "dgx_h100",
    "fat_tree",
    "hub_and_spoke",
    "mesh",
    "mi250",
    "ndv2",
    "ndv2_taccl_1mb",
    "racks",
    "ring",
    "torus",
    "uniform",
]
