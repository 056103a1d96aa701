"""Effects of synthesis inputs (5.8.3): allgather on two DGX-2, one input varied at a time.

By default: the links of dgx2-sk-1 (odd GPUs send between nodes, each to the even one
beside it), one chunk a rank, searched by matching; the paper's costs of links (Table 5.1), full
cost model. Every algorithm is proven; sizes are those of the output, 32 chunks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.harness import Report
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.matching import match
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Internode,
    Intranode,
    Policy,
    Sketch,
    Strategy,
)
from headrace.collectives.plan.generators.taccl.synthesize import guided_synthesis
from headrace.collectives.plan.ir.chunks import Sends, realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.synthesis import NativeSearch
from headrace.topology import BYTES_PER_MB, Topology, presets, subgraph
from headrace.units import size

KB, MB, GIB = 1_000, 1_000_000, 1 << 30
CHUNKS = {"1 KB": KB, "32 KB": 32 * KB, "1 MB": MB}
OUTPUTS = {"1 KB": "32 KB", "32 KB": "1024 KB", "1 MB": "32 MB"}
CONNECTIONS = (1, 2, 4, 8)
INSTANCES = (1, 2, 4, 8)
SIZES = tuple((1 << 10) * 4**k for k in range(11))
QUICK_SIZES = ((1 << 10), (1 << 20), GIB)

_NODE, _RANKS = 16, 32
_ENGINE = NativeSearch()
_SK_1 = NAMED["dgx2-sk-1"](2)

NOTES = (
    "ablation, connections: allowed_us is the best found when a sender may use up to n "
    "connections; it uses one or two, for a second is a second alpha at the NIC, and small "
    "differences are the search's. In forced_us every sender sends to n receivers, which pass it "
    "on to 16/n GPUs each, as the paper's connections do (Figure 5.9): many save messages "
    "through the receivers' switch ports and help small chunks, one is best for large ones (there "
    "the best n is 8 at 1 KB, 4 at 32 KB and 1 at 1 MB).",
    "ablation, chunk size: an algorithm is best near the size that it was made for (Figure "
    "5.10): made for small chunks it has few, joined messages, made for large ones it forwards "
    "early.",
    "ablation, partitions: two chunks a rank gain at 1 GiB by forwarding sooner what has crossed, "
    "as the paper's partitions do (Figure 5.11), and lose at small sizes by twice the alphas; us "
    "has 8 instances, one_instance_us one.",
    "ablation, hyperedge policy: neighbours is to how many GPUs of its node one may send, 1 being "
    "the ring that uc-min comes down to, 15 what uc-max may use; rows named after policies are "
    "the sketch-guided pipeline's. Few connections lose at small sizes (Figure 5.12). That "
    "they win at large ones does not show: it is congestion at the switch (Figure 5.2), which the "
    "model does not charge; from two neighbours on they merely cost nothing there.",
    "ablation, instances: each chunk becomes n on the same way, so n messages for one, each with "
    "its alpha at every port and NIC: the paper's loss at small sizes (Figure 5.13), though "
    "harsher than on hardware, where instances run side by side. The gain at large sizes is "
    "earlier forwarding alone: that one threadblock cannot keep a V100's NVLinks busy, the paper's "
    "reason, is not in the model, where every message has the whole link.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A proven algorithm, to be timed at any size."""

    demand: Demand
    sends: Sends

    @classmethod
    def of(cls, demand: Demand, sends: Sends) -> "Made":
        """Prove and return an algorithm; raises VerificationError."""
        verify(lower(realize(demand, sends)))
        return cls(demand=demand, sends=sends)

    def us(self, topology: Topology, total_bytes: float) -> float:
        """Time under the full cost model."""
        chunk_mb = total_bytes / (_RANKS * self.demand.chunks) / BYTES_PER_MB
        return _ENGINE.retime(topology, self.sends, chunk_mb).total_us

    def connections(self) -> tuple[float, float]:
        """Mean receivers a rank within its node, and receivers a sender between nodes."""
        pairs = set(zip(self.sends.src.tolist(), self.sends.dst.tolist(), strict=True))
        apart = [pair for pair in pairs if pair[0] // _NODE != pair[1] // _NODE]
        senders = len({src for src, _ in apart})
        return (len(pairs) - len(apart)) / _RANKS, len(apart) / max(1, senders)


def bars() -> dict[str, str]:
    """Return no bars: the claim is the curves."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Add one table an input, and the effects beyond the model."""
    machine = presets.dgx2(2)
    made = {name: _searched(_logical(machine, 1), chunk) for name, chunk in CHUNKS.items()}
    sizes = QUICK_SIZES if quick else SIZES
    _connections(report, machine, CONNECTIONS[:: 3 if quick else 1])
    _chunk_sizes(report, machine, made, sizes)
    _partitions(report, machine, sizes)
    _policies(report, machine, ("normal" if not quick else "quick"))
    _instances(report, machine, made["1 MB"], sizes)
    for note in NOTES:
        report.note(note)


def _connections(report: Report, machine: Topology, counts: Sequence[int]) -> None:
    forced = {n: _forced(n) for n in counts}
    for name, chunk in CHUNKS.items():
        for n in counts:
            found, total = _searched(_logical(machine, n), chunk), _RANKS * chunk
            report.row(
                "ablation: connections a sender (5.9)",
                size=OUTPUTS[name],
                chunk_kb=chunk / KB,
                connections=f"at most {n}",
                allowed_us=found.us(machine, total),
                used=found.connections()[1],
                allowed_gb_per_s=total / found.us(machine, total) / 1e3,
                forced_us=forced[n].us(machine, total),
                forced_gb_per_s=total / forced[n].us(machine, total) / 1e3,
            )


def _chunk_sizes(
    report: Report, machine: Topology, made: Mapping[str, Made], sizes: Sequence[int]
) -> None:
    for total in sizes:
        times = {name: found.us(machine, total) for name, found in made.items()}
        for name, us in times.items():
            report.row(
                "ablation: chunk size that an algorithm was made for (5.10)",
                made_for=name,
                size=size(total),
                us=us,
                algorithm_gb_per_s=total / us / 1e3,
                over_best=us / min(times.values()),
            )


def _partitions(report: Report, machine: Topology, sizes: Sequence[int]) -> None:
    made: dict[int, Made] = {}
    for parts in (1, 2):
        sketch = replace(_SK_1, chunkup=parts)
        made[parts] = _guided(machine, sketch, GIB // _RANKS // parts, "quick")
    for parts, found in made.items():
        eight = instanced(found, 8)
        for total in sizes:
            report.row(
                "ablation: chunks a rank, uc-min, 8 instances (5.11)",
                chunks=f"{parts} a rank",
                size=size(total),
                algorithm_gb_per_s=total / eight.us(machine, total) / 1e3,
                us=eight.us(machine, total),
                one_instance_us=found.us(machine, total),
            )


def _policies(report: Report, machine: Topology, effort: str) -> None:
    for name, chunk in CHUNKS.items():
        rows: dict[str, Made] = {}
        for neighbours, offsets in _NEIGHBOURS.items():
            found = _searched(_logical(_thinned(machine, offsets), 1, switched=False), chunk)
            rows[f"{neighbours} neighbours"] = found
        for policy in (Policy.MIN, Policy.MAX):
            intranode = replace(_SK_1.intranode, policies=(policy,))
            sketch = replace(_SK_1, chunkup=1, intranode=intranode)
            rows[f"pipeline, {policy.value}"] = _guided(machine, sketch, chunk, effort)
        for way, found in rows.items():
            us = found.us(machine, _RANKS * chunk)
            report.row(
                "ablation: connections through the NVSwitch (5.12)",
                size=OUTPUTS[name],
                chunk_kb=chunk / KB,
                way=way,
                used=found.connections()[0],
                us=us,
                algorithm_gb_per_s=_RANKS * chunk / us / 1e3,
            )


def _instances(report: Report, machine: Topology, made: Made, sizes: Sequence[int]) -> None:
    for n in INSTANCES:
        copies = instanced(made, n)
        for total in sizes:
            us = copies.us(machine, total)
            report.row(
                "ablation: instances (5.13)",
                instances=f"{n} instances",
                size=size(total),
                us=us,
                algorithm_gb_per_s=total / us / 1e3,
            )


def instanced(made: Made, instances: int) -> Made:
    """Divide every chunk: its parts take its way, each message becoming `instances` messages."""
    if instances == 1:
        return made
    chunks, sends = made.demand.chunks, made.sends
    block, k = np.divmod(sends.chunk, chunks)
    parts = [block * chunks * instances + j * chunks + k for j in range(instances)]
    message = np.concatenate([sends.message * instances + j for j in range(instances)])
    order = np.argsort(message, kind="stable")
    repeated = {
        name: np.tile(getattr(sends, name), instances)[order] for name in ("src", "dst", "reduce")
    }
    return Made.of(
        replace(made.demand, chunks=chunks * instances),
        Sends(
            chunk=np.concatenate(parts)[order].astype(np.int32),
            message=message[order].astype(np.int32),
            start_us=np.empty(0),
            **repeated,
        ),
    )


_NEIGHBOURS = {1: (1,), 2: (1, 2), 4: (1, 2, 4, 8), 8: (1, 2, 3, 4, 6, 8, 10, 12), 15: range(1, 16)}
"""Number of neighbours -> offsets around the node of a GPU's permitted receivers."""


def _searched(logical: Topology, chunk: int) -> Made:
    found = match(
        logical,
        Collective.ALLGATHER,
        _RANKS * chunk,
        _ENGINE,
        chunk_counts=(1,),
        effort="quick",
        max_seconds=5.0,
    )
    return Made.of(found.demand, found.sends)


def _guided(machine: Topology, sketch: Sketch, chunk: int, effort: str) -> Made:
    found = guided_synthesis(
        machine, sketch, Collective.ALLGATHER, chunk_bytes=chunk, effort=effort, engine=_ENGINE
    )
    return Made.of(found.demand, found.sends)


def _logical(machine: Topology, connections: int, *, switched: bool = True) -> Topology:
    """Return the links of dgx2-sk-1, with several receivers a sender."""
    internode = Internode(
        connections={
            gpu: tuple((gpu - 1 + 2 * k) % _NODE for k in range(connections))
            for gpu in range(1, _NODE, 2)
        }
    )
    sketch = replace(_SK_1, internode=internode, chunkup=1)
    if not switched:
        sketch = replace(sketch, intranode=Intranode(strategy=Strategy.NONE))
    return apply_sketch(sketch, machine).topology


def _thinned(machine: Topology, offsets: Sequence[int]) -> Topology:
    kept = [
        index
        for index, link in enumerate(machine.links)
        if link.src // _NODE != link.dst // _NODE or (link.dst - link.src) % _NODE in offsets
    ]
    return subgraph(machine, kept)


def _forced(connections: int) -> Made:
    """Send pairs of chunks once to each of n receivers, which forward them to 16/n GPUs each."""
    rows: list[tuple[int, int, int, int]] = []  # chunk, src, dst, message

    def message(chunks: Sequence[int], src: int, dst: int) -> None:
        number = rows[-1][3] + 1 if rows else 0
        rows.extend((chunk, src, dst, number) for chunk in chunks)

    for gpu in range(0, _RANKS, 2):
        message([gpu], gpu, gpu + 1)
    for k in range(connections):
        for gpu in range(1, _RANKS, 2):
            base = (gpu // _NODE + 1) % 2 * _NODE
            message([gpu - 1, gpu], gpu, base + (gpu - 1 + 2 * k * 8 // connections) % _NODE)
    for gpu in range(1, _RANKS, 2):
        message([gpu], gpu, gpu - 1)
    for shift in range(1, _NODE):
        for gpu in range(_RANKS):
            dst = gpu // _NODE * _NODE + (gpu + shift) % _NODE
            if dst // 2 != gpu // 2:
                message([gpu], gpu, dst)
    for step in range(1, _NODE // connections):
        for k in range(connections):
            for gpu in range(1, _RANKS, 2):
                base = (gpu // _NODE + 1) % 2 * _NODE
                first = gpu - 1 + 2 * k * 8 // connections
                message([gpu - 1, gpu], base + first % _NODE, base + (first + step) % _NODE)
    columns = np.array(rows, dtype=np.int32)
    chunk, src, dst, number = (columns[:, k].copy() for k in range(4))
    return Made.of(
        Demand(collective=Collective.ALLGATHER, ranks=_RANKS),
        Sends(
            chunk=chunk,
            src=src,
            dst=dst,
            reduce=np.zeros(len(chunk), dtype=bool),
            message=number,
            start_us=np.empty(0),
        ),
    )
