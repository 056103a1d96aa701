"""The verifier against 10,000 programs with one mistake each, a sample of 300 in the fast tier.

A mutant counts as non-equivalent if the dynamic interpreter (`chaos`) sees it misbehave in some
interleaving. Of those the verifier must reject at least 99%; we hold it to all. Mutants that no
run makes misbehave are equivalent, or hide their fault well: those that the verifier accepts are
run more often, so that a hole would show. ``pytest -s`` prints the count of each kind.
"""

import random
from collections import Counter

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.sends import concatenated
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program, Schedule
from headrace.errors import VerificationError
from tests.collectives.plan.chaos import misbehaves
from tests.collectives.plan.handmade import Draft, all_drafts
from tests.collectives.plan.mutate import MUTATIONS
from tests.collectives.plan.random_sends import random_sends, random_topology
from tests.collectives.plan.reversal import reversed_sends
from tests.tiers import Sample

_NEEDED = 10_000
_NEEDED_OF_A_SAMPLE = 300
_RUNS_IF_REJECTED = 16
_RUNS_IF_ACCEPTED = 24


def _originals() -> dict[str, Draft]:
    """Hand-made programs, and some that the planner makes."""
    ranks, groups = 5, ((0, 3), (1, 2, 4))
    allreduce = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=4)
    broadcast = Demand(collective=Collective.BROADCAST, ranks=ranks, chunks=2, root=3)
    gather = Demand(collective=Collective.ALLGATHER, ranks=ranks)
    scatter = Demand(collective=Collective.REDUCE_SCATTER, ranks=ranks)
    schedules = {
        "hierarchical allreduce": templates.hierarchical(allreduce, groups),
        "hierarchical allgather": templates.hierarchical(gather, groups),
        "hierarchical reduce-scatter": templates.hierarchical(scatter, groups),
        "hierarchical broadcast": templates.hierarchical(broadcast, groups),
        "exchange": templates.exchange(allreduce, groups),
        "double binary tree": templates.double_binary_tree(allreduce),
        "recursive doubling": templates.recursive_doubling(allreduce),
        "full exchange": templates.full_exchange(allreduce),
    }
    schedules |= _in_messages()
    lowered = {name: Draft.of(lower(schedule)) for name, schedule in schedules.items()}
    return {**all_drafts(), **lowered}


def _in_messages() -> dict[str, Schedule]:
    """Random routes in messages of up to four chunks, relays and demands of one's own included."""
    rng = random.Random(5)
    topology = random_topology(rng, 4)
    item = (0, 1, 2, 3)
    custom = (
        Demand.custom(  # every rank's slot moves on by one, in place; slot 1 is broadcast from 2
            ranks=4,
            slots=2,
            before=[*((r, 0, r, (r,)) for r in item), (2, 1, 4, (2,))],
            after=[*(((r + 1) % 4, 0, r, (r,)) for r in item), *((r, 1, 4, (2,)) for r in item)],
            chunks=2,
        )
    )
    demands = {
        "allgather": Demand(collective=Collective.ALLGATHER, ranks=4, chunks=2),
        "all-to-all": Demand(collective=Collective.ALL_TO_ALL, ranks=4, chunks=2),
        "all-to-all-v": Demand.all_to_all_v(
            [[1, 0, 2, 1], [0, 1, 3, 0], [1, 1, 0, 0], [2, 0, 1, 1]]
        ),
        "allreduce": Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=8),
        "custom": custom,
    }
    made: dict[str, Schedule] = {}
    for name, demand in demands.items():
        sends = random_sends(rng, topology, deliveries_of(demand), largest=4)
        if demand.collective is Collective.ALLREDUCE:
            sends = concatenated(reversed_sends(sends), sends)
        made[f"{name} in messages"] = realize(demand, sends)
    return made


def _rejected(program: Program) -> bool:
    try:
        verify(program)
    except VerificationError:
        return True
    return False


def _mutant(original: Draft, digest: str, kind: str, rng: random.Random) -> Program | None:
    """Return the mutant, or None where there is nothing to mutate or nothing has changed."""
    draft = original.copy()
    if not MUTATIONS[kind](draft, rng):
        return None
    try:
        program = draft.build()
    except ProgramError:
        return None  # refused by the type already
    return None if program.digest == digest else program


def _summary(counts: dict[str, Counter[str]]) -> str:
    columns = ("caught", "MISSED", "refused, seen well", "equivalent")
    lines = [f"{'':36}" + "".join(f"{column:>20}" for column in columns)]
    total: Counter[str] = sum(counts.values(), Counter())
    for kind, count in [*counts.items(), ("all", total)]:
        lines.append(f"{kind:36}" + "".join(f"{count[column]:20}" for column in columns))
    return "\n".join(lines)


def test_correct_programs_are_accepted_and_behave() -> None:
    for name, draft in _originals().items():
        program = draft.build()
        assert verify(program).program_digest == program.digest, name
        assert misbehaves(program, seed=1, runs=20) == "", name


def test_mutants_that_misbehave_are_rejected(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = _NEEDED if sample.seed is None else _NEEDED_OF_A_SAMPLE
    rng = random.Random(20240901 if sample.seed is None else sample.seed)
    drafts = [(draft, draft.build().digest) for draft in _originals().values()]
    counts = {kind: Counter[str]() for kind in MUTATIONS}
    missed: list[str] = []
    seed = sample.seed or 0
    while sum(count["caught"] + count["MISSED"] for count in counts.values()) < needed:
        for kind, count in counts.items():
            seed += 1
            program = _mutant(*rng.choice(drafts), kind, rng)
            if program is None:
                continue
            rejected = _rejected(program)
            problem = misbehaves(
                program, seed, _RUNS_IF_REJECTED if rejected else _RUNS_IF_ACCEPTED
            )
            if rejected:
                count["caught" if problem else "refused, seen well"] += 1
            else:
                count["MISSED" if problem else "equivalent"] += 1
                if problem:
                    missed.append(f"{kind}: {problem} (seed {seed})")
    with capsys.disabled():
        print(f"\n{_summary(counts)}")
    assert not missed, missed[:10]


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_mutation_changes_some_program(kind: str) -> None:
    rng = random.Random(1)
    drafts = [(draft, draft.build().digest) for draft in _originals().values()]
    assert any(_mutant(*drafts[k % len(drafts)], kind, rng) for k in range(20 * len(drafts)))
