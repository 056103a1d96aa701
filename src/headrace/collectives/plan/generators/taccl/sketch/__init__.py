"""Communication sketches (TACCL 5.4.1 and B.1), and the logical topologies that they define.

A `Sketch` is read from a file (`load_sketch`) or taken by name (`NAMED`), and written by
`sketch_to_json`; `apply_sketch` turns it and a topology into the `LogicalTopology` that synthesis
works on. `enumerate` derives sketches from a topology.
"""

from headrace.collectives.plan.generators.taccl.sketch.logical import (
    Hyperedge,
    LogicalTopology,
    apply_sketch,
    whole,
)
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.sketch.parse import load_sketch, parse_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Internode,
    Intranode,
    Policy,
    RelayMap,
    Sketch,
    Strategy,
    Symmetry,
)
from headrace.collectives.plan.generators.taccl.sketch.write import sketch_to_json

__all__ = [
    "NAMED",
    "Hyperedge",
    "Internode",
    "Intranode",
    "LogicalTopology",
    "Policy",
    "RelayMap",
    "Sketch",
    "Strategy",
    "Symmetry",
    "apply_sketch",
    "load_sketch",
    "parse_sketch",
    "sketch_to_json",
    "whole",
]
