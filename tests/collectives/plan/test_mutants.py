"""The verifier against 10,000 programs with one mistake each.

A mutant counts as non-equivalent if the dynamic interpreter (`chaos`) sees it misbehave in some
interleaving. Of those the verifier must reject at least 99%; we hold it to all. Mutants that no
run makes misbehave are equivalent, or hide their fault well: those that the verifier accepts are
run more often, so that a hole would show. ``pytest -s`` prints the count of each kind.
"""

import random
from collections import Counter

import pytest

from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program
from headrace.errors import ProgramError, VerificationError
from tests.collectives.plan.chaos import misbehaves
from tests.collectives.plan.handmade import Draft, all_drafts
from tests.collectives.plan.mutate import MUTATIONS

_NEEDED = 10_000
_RUNS_IF_REJECTED = 16
_RUNS_IF_ACCEPTED = 60


def _rejected(program: Program) -> bool:
    try:
        verify(program)
    except VerificationError:
        return True
    return False


def _mutant(original: Draft, kind: str, rng: random.Random) -> Program | None:
    """Return the mutant, or None where there is nothing to mutate or nothing has changed."""
    draft = original.copy()
    if not MUTATIONS[kind](draft, rng):
        return None
    try:
        program = draft.build()
    except ProgramError:
        return None  # refused by the type already
    return None if program.digest == original.build().digest else program


def _summary(counts: dict[str, Counter[str]]) -> str:
    columns = ("caught", "MISSED", "refused, seen well", "equivalent")
    lines = [f"{'':36}" + "".join(f"{column:>20}" for column in columns)]
    total: Counter[str] = sum(counts.values(), Counter())
    for kind, count in [*counts.items(), ("all", total)]:
        lines.append(f"{kind:36}" + "".join(f"{count[column]:20}" for column in columns))
    return "\n".join(lines)


def test_correct_programs_are_accepted_and_behave() -> None:
    for name, draft in all_drafts().items():
        program = draft.build()
        assert verify(program).program_digest == program.digest, name
        assert misbehaves(program, seed=1, runs=20) == "", name


@pytest.mark.timeout(300)
def test_mutants_that_misbehave_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(20240901)
    drafts = list(all_drafts().values())
    counts = {kind: Counter[str]() for kind in MUTATIONS}
    missed: list[str] = []
    seed = 0
    while sum(count["caught"] + count["MISSED"] for count in counts.values()) < _NEEDED:
        for kind, count in counts.items():
            seed += 1
            program = _mutant(rng.choice(drafts), kind, rng)
            if program is None:
                continue
            rejected = _rejected(program)
            problem = misbehaves(program, seed, _RUNS_IF_REJECTED if rejected else _RUNS_IF_ACCEPTED)
            if rejected:
                count["caught" if problem else "refused, seen well"] += 1
            else:
                count["MISSED" if problem else "equivalent"] += 1
                if problem:
                    missed.append(f"{kind}: {problem} (seed {seed})")
    with capsys.disabled():
        print(f"\n{_summary(counts)}")  # noqa: T201
    assert not missed, missed[:10]
