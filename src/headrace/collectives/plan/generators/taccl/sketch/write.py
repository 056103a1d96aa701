"""Writer of sketch files; `parse` reads them back as equal sketches."""

import json
from typing import Any

from headrace.collectives.plan.generators.taccl.sketch.sketch import Internode, Sketch

_WIDTH = 100


def sketch_to_json(sketch: Sketch) -> str:
    """Return the text of a sketch file (appendix B.1) from which `parse_sketch` makes `sketch`.

    Rotations stand before other symmetries in a file, and are read in that order.
    """
    fields: dict[str, Any] = {"name": sketch.name, "nnodes": sketch.nodes}
    intranode = sketch.intranode
    fields["intranode_sketch"] = {"strategy": intranode.strategy.value}
    if intranode.switches:
        fields["intranode_sketch"] |= {
            "switches": intranode.switches,
            "switch_hyperedge_strategy": [policy.value for policy in intranode.policies],
        }
    if sketch.internode is not None:
        fields["internode_sketch"] = _internode(sketch.internode)
    offsets = [[s.offset, s.group] for s in sketch.symmetries if not s.automorphism]
    general = [
        {"automorphism": s.automorphism} | ({"partition": s.partition} if s.partition else {})
        for s in sketch.symmetries
        if s.automorphism
    ]
    fields |= {"symmetry_offsets": offsets} if offsets else {}
    fields |= {"symmetries": general} if general else {}
    fields["hyperparameters"] = {"input_chunkup": sketch.chunkup}
    if sketch.input_bytes is not None:
        fields["hyperparameters"]["input_size"] = sketch.input_bytes
    return _text(fields, 0) + "\n"


def _internode(internode: Internode) -> dict[str, Any]:
    conn = internode.connections
    fields: dict[str, Any] = {"strategy": "relay"}
    fields["internode_conn"] = conn if isinstance(conn, str) else _by_gpu(conn)
    if internode.beta_split:
        fields["beta_split"] = _by_gpu(internode.beta_split)
    if internode.relay is not None:
        fields["chunk_to_relay_map"] = [internode.relay.group, internode.relay.place]
    if internode.senders:
        fields["gpus_to_sender_rev_map"] = _by_gpu(internode.senders)
    if internode.enforce_ordering:
        fields["enforce_ordering"] = True
    return fields


def _by_gpu(table: Any) -> dict[str, Any]:
    return {str(gpu): entry for gpu, entry in table.items()}


def _text(value: Any, depth: int) -> str:
    """JSON with short tables on one line, as sketches are edited by users."""
    line = json.dumps(value)
    if not isinstance(value, dict) or (depth and len(line) + 2 * depth < _WIDTH):
        return line
    inner = "  " * (depth + 1)
    rows = [f"{inner}{json.dumps(key)}: {_text(entry, depth + 1)}" for key, entry in value.items()]
    return "{\n" + ",\n".join(rows) + "\n" + "  " * depth + "}"
