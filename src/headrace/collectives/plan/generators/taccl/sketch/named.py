"""The dissertation's sketches by name (TACCL 5.8.2.1 and 5.8.2.2), for any number of nodes."""

from collections.abc import Callable, Mapping

from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Internode,
    Intranode,
    Policy,
    RelayMap,
    Sketch,
    Strategy,
    Symmetry,
)

_DGX2, _NDV2 = 16, 8  # GPUs a node


def dgx2_sk_1(nodes: int = 2) -> Sketch:
    """Odd GPUs send between DGX-2 nodes, even ones receive; 2 MB chunks, two a GPU, `uc-min`."""
    return _dgx2(
        "dgx2-sk-1",
        nodes,
        Policy.MIN,
        Internode(
            connections={gpu: (gpu - 1,) for gpu in range(1, _DGX2, 2)},
            beta_split=dict.fromkeys(range(1, _DGX2, 2), 1.0),
            relay=RelayMap(group=2, place=1),
        ),
        chunkup=2,
        chunk_bytes=2_000_000,
    )


def dgx2_sk_2(nodes: int = 2) -> Sketch:
    """GPU i of a DGX-2 sends to GPU i of others, at twice the beta; 1 KB chunks, `uc-max`."""
    gpus = range(_DGX2)
    internode = Internode(
        connections="direct-map",
        beta_split=dict.fromkeys(gpus, 2.0),
        senders={gpu: (gpu,) for gpu in gpus},
    )
    return _dgx2("dgx2-sk-2", nodes, Policy.MAX, internode, chunkup=1, chunk_bytes=1_000)


def dgx2_sk_3(nodes: int = 2) -> Sketch:
    """Every GPU of a DGX-2 sends to every GPU of others; 1 KB chunks."""
    internode = Internode(connections="fully-connected")
    return _dgx2("dgx2-sk-3", nodes, Policy.MAX, internode, chunkup=1, chunk_bytes=1_000)


def ndv2_sk_1(nodes: int = 2) -> Sketch:
    """GPU 0 of an NDv2 sends to GPU 1 of others, both next to the NIC; 1 MB chunks."""
    return _ndv2("ndv2-sk-1", nodes, Internode(connections={0: (1,)}), 1_000_000)


def ndv2_sk_2(nodes: int = 2) -> Sketch:
    """Every GPU of an NDv2 sends to every GPU of others; 1 KB chunks."""
    return _ndv2("ndv2-sk-2", nodes, Internode(connections="fully-connected"), 1_000)


NAMED: Mapping[str, Callable[[int], Sketch]] = {
    "dgx2-sk-1": dgx2_sk_1,
    "dgx2-sk-2": dgx2_sk_2,
    "dgx2-sk-3": dgx2_sk_3,
    "ndv2-sk-1": ndv2_sk_1,
    "ndv2-sk-2": ndv2_sk_2,
}
"""Name -> function of the number of nodes."""


def _dgx2(
    name: str, nodes: int, policy: Policy, internode: Internode, *, chunkup: int, chunk_bytes: int
) -> Sketch:
    symmetries = (Symmetry(offset=2, group=_DGX2), Symmetry(offset=_DGX2, group=_DGX2 * nodes))
    return Sketch(
        name=name,
        nodes=nodes,
        intranode=Intranode(
            strategy=Strategy.SWITCH, switches=(tuple(range(_DGX2)),), policies=(policy,)
        ),
        internode=internode if nodes > 1 else None,
        symmetries=symmetries if nodes > 1 else symmetries[:1],
        chunkup=chunkup,
        input_bytes=chunkup * chunk_bytes,
    )


def _ndv2(name: str, nodes: int, internode: Internode, chunk_bytes: int) -> Sketch:
    return Sketch(
        name=name,
        nodes=nodes,
        intranode=Intranode(),
        internode=internode if nodes > 1 else None,
        symmetries=(Symmetry(offset=_NDV2, group=_NDV2 * nodes),) if nodes > 1 else (),
        input_bytes=chunk_bytes,
    )
