"""Against NCCL, simulated: its best template at every size beside what is synthesized.

Both are timed by the one simulator under the full cost model and proven by the one verifier; costs
are those of Table 5.1. The paper measured on hardware; the notes say what that changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.harness import ROOT, Report
from benchmarks.synthesis.books import Plans, best_of, draw, plans_of, save_book
from benchmarks.synthesis.nccl_templates import DGX2, NDV2, Wiring, generators
from headrace.cli.format import size
from headrace.collectives.demand import Collective
from headrace.collectives.plan.cost_model import FULL, CostModel
from headrace.collectives.plan.generators import GENERATORS, Method
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.plan.synthesizers import SYNTHESIZERS
from headrace.collectives.run.search import NativeSearch
from headrace.report.page import Page
from headrace.topology import Topology, presets

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = tuple(4**k * KIB for k in range(11))
QUICK_SIZES = (KIB, MIB, GIB)
COLLECTIVES = (Collective.ALLGATHER, Collective.ALL_TO_ALL, Collective.ALLREDUCE)

_LEFT_OUT = ("packing", "exact", "full_exchange", "hierarchical_even")
OURS = tuple(g for g in (*GENERATORS, *SYNTHESIZERS) if g.name not in _LEFT_OUT)
"""Templates, and the two synthesizers that need seconds here; more effort would gain some."""

OVERLAPPING = CostModel(name="alpha overlaps", streaming=True, alpha_occupies=False)
"""Alpha delays a message but holds nothing: to see what of a ratio comes from counting messages."""

_SMALL = 64 * KIB
_RESULTS = ROOT / "synthesis" / "results"

Claim = tuple[int, int, float, float]
"""(from bytes, to bytes, least, most) times as fast as NCCL; "up to x" has 1 for the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster of 5.8.2 or B.2, how NCCL wires it, and what the paper measured there."""

    make: Callable[[], Topology]
    wiring: Wiring
    claims: Mapping[Collective, tuple[Claim, ...]]


MACHINES = {
    "dgx2-x2": Machine(
        make=lambda: presets.dgx2(2),
        wiring=DGX2,
        claims={
            Collective.ALLGATHER: (
                (KIB, MIB, 4.9, 6.7),
                (2 * MIB, 64 * MIB, 1.1, 3.8),
                (256 * MIB, GIB, 1.2, 1.25),
            ),
            Collective.ALL_TO_ALL: ((KIB, 16 * KIB, 1.0, 1.55), (2 * MIB, GIB, 1.0, 1.15)),
            Collective.ALLREDUCE: (
                (KIB, 4 * MIB, 1.49, 6.4),
                (16 * MIB, 256 * MIB, 1.02, 1.37),
                (512 * MIB, GIB, 0.91, 1.0),
            ),
        },
    ),
    "ndv2-x2": Machine(
        make=lambda: presets.ndv2(2),
        wiring=NDV2,
        claims={
            Collective.ALLGATHER: ((KIB, MIB, 1.12, 1.35), (2 * MIB, GIB, 1.61, 3.4)),
            Collective.ALL_TO_ALL: ((KIB, 128 * KIB, 1.0, 1.12), (16 * MIB, GIB, 1.53, 1.66)),
            Collective.ALLREDUCE: ((KIB, MIB, 1.0, 1.28), (2 * MIB, GIB, 1.28, 2.7)),
        },
    ),
    "ndv2-x4": Machine(
        make=lambda: presets.ndv2(4),
        wiring=NDV2,
        claims={
            Collective.ALLGATHER: ((KIB, GIB, 1.1, 2.2),),
            Collective.ALL_TO_ALL: ((2 * MIB, GIB, 1.0, 1.46),),
            # "Small" and "larger" have no bound there; that of two nodes is taken.
            Collective.ALLREDUCE: ((KIB, MIB, 1.0, 1.34), (2 * MIB, GIB, 1.9, 2.1)),
        },
    ),
}

NOTES = (
    "against NCCL: sizes are those of the output buffer, algorithm bandwidth is size over time; "
    "over_nccl is NCCL's time over ours, paper_from and paper_to the same as measured by the paper "
    "on hardware. NCCL has its best of ring, tree and peer-to-peer, of 1 to 8 channels and of 1 to "
    "32 slices at every size; ours is the best of templates, matching and orbits at little effort, "
    "made for 1 KiB, 1 MiB and 1 GiB and used at all sizes.",
    "against NCCL, small sizes: ours is further ahead than in the paper. In the full model alpha "
    "holds the NIC, so n messages through it cost n alphas: a ring of 32 GPUs pays 31 x 1.7 us "
    "however small its slices, and grouped sends of 16 or 32 messages a NIC pay for each. A real "
    "NIC has several messages under way. over_nccl_overlapping has the same programs with alpha as "
    "mere delay. Hardware also adds to both what no schedule changes (launching the kernel, "
    "synchronising with the proxy), which pulls ratios towards 1, and NCCL's LL and LL128 "
    "protocols, with a smaller alpha, favour it at these sizes.",
    "against NCCL, allgather, large: NCCL's rings carry (n-1)/n of the output over every node "
    "boundary, though only the other nodes' share has to cross: 31/16 of the least on two DGX-2, "
    "15/8 on two NDv2 and 31/24 on four. Where links attain Table 5.1's rates nothing else counts, "
    "so ratios end there (the paper: 1.2 to 1.25 on DGX-2, up to 3.4 on NDv2). On DGX-2 the paper's "
    "own algorithm was held back by what the model lacks: relaying GPU and NIC share a PCIe switch, "
    "threadblocks do not saturate links, no fusion. On NDv2 NCCL was: without GPUDirect all of its "
    "traffic crosses host memory over PCIe links whose layout it could not see, which TACCL found "
    "out and avoided; in this topology every GPU reaches the NIC alike.",
    "against NCCL, all-to-all, large: every byte has to cross once, and grouped sends do that "
    "already, so the model leaves next to nothing to gain; what is left on DGX-2 is messages "
    "waiting for two NICs at once. The paper's 1.15 (DGX-2) and 1.53 to 1.66 (NDv2) come from fewer "
    "and larger connections (Figure 5.2: bandwidth falls with the number of connections) and from "
    "relays beside the NIC in place of contended PCIe paths; the model charges neither.",
    "against NCCL, allreduce, large: on two nodes NCCL's trees cross as little as any algorithm and "
    "lose only by filling the pipeline and, on DGX-2, at the NVSwitch ports, which a chain passes "
    "twice (2 x 8 us/MB against 106/8 at the NICs); on four nodes a ring crosses 31/24 of the least. "
    "TACCL's loss of 9% from 512 MB on does not appear: it came from missing fused receive-reduce-"
    "copy-send, which here costs nothing on either side, nor does reduction.",
)


def bars() -> dict[str, str]:
    """Return none: promised are the curves beside the paper's claims, with every difference."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Add a table for each machine, the notes, a plan book of each and a page of all curves."""
    sizes = QUICK_SIZES if quick else SIZES
    page = Page("Against NCCL", "Simulated under the full cost model; costs of Table 5.1.")
    for name, machine in MACHINES.items():
        if quick and name == "ndv2-x4":
            continue
        topology = machine.make()
        method = Method(model=FULL, engine=NativeSearch(), effort="quick")
        everybody: dict[Collective, Plans] = {}
        for collective in COLLECTIVES:
            ours = plans_of(topology, collective, sizes, OURS, method)
            theirs = plans_of(topology, collective, sizes, generators(machine.wiring), method)
            for at, mine in enumerate(best_of(ours)):
                overlapping = None
                if mine.total_bytes <= _SMALL:
                    overlapping = _overlapping_us(theirs, at) / _overlapping_us(ours, at)
                _row(report, name, machine, mine, best_of(theirs)[at], overlapping)
            everybody[collective] = {**theirs, **ours}
        draw(page, name, everybody)
        save_book(topology, everybody, _RESULTS / f"{name}.book")
    for note in NOTES:
        report.note(note)
        page.note(note)
    (_RESULTS / "against-nccl.html").write_text(page.html())


def _overlapping_us(plans: Plans, at: int) -> float:
    """The least of all makers where alpha holds nothing."""
    return min(
        predict_us(p[at].program, p[at].topology, p[at].total_bytes, OVERLAPPING)
        for p in plans.values()
    )


def _row(
    report: Report,
    name: str,
    machine: Machine,
    ours: Plan,
    theirs: Plan,
    overlapping: float | None,
) -> None:
    total, collective = ours.total_bytes, ours.program.demand.collective
    claim = next((c for c in machine.claims[collective] if c[0] <= total <= c[1]), None)
    report.row(
        f"against NCCL on {name}, full model",
        collective=collective.value,
        size=size(total),
        nccl_us=theirs.predicted_us,
        ours_us=ours.predicted_us,
        nccl_gb_per_s=total / theirs.predicted_us / 1e3,
        ours_gb_per_s=total / ours.predicted_us / 1e3,
        gap=ours.gap,
        over_nccl=theirs.predicted_us / ours.predicted_us,
        over_nccl_overlapping=overlapping,
        paper_from=claim and claim[2],
        paper_to=claim and claim[3],
        note=f"{theirs.maker}, {theirs.program.demand.chunks} chunks; ours {ours.maker}",
    )
