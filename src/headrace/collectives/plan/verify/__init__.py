"""Proof that a program delivers its collective: always, without deadlock, without data races.

An interpreter written from the semantics of programs alone (the docstring of
`headrace.collectives.program`); it shares no code with generators or executors. In order:

1. `structure`: every send lane has its receive lane and both agree step by step; steps fit their
   lanes, buffers and each other; a message is a run of steps, alike at both ends; dependencies
   stay within a rank.
2. `order`: with the sends and receives of a message as one rendezvous (nothing is buffered), the
   wait-for graph of the steps has no cycle.
3. `races`: any two conflicting accesses of a slot at one rank are ordered by that rank's lanes
   and dependencies; through messages by way of other ranks only if all messages have bytes.
4. `values`: the program, executed once over ``(item, mask, expression)`` values, never reads
   undefined slots, never adds a contribution twice, and ends in the demand's postcondition.

One execution stands for all: by 3 each byte of each slot sees its accesses in the same
order however ranks and lanes interleave, so it takes the same values; by 2 each execution ends.
Both hold for executors that move the parts of a message apart, and for those that move a message
as one: the latter only wait for more.

Requirements on the executor for the proof to hold
--------------------------------------------------
- A send's byte is done once the slot may be overwritten (copied out, not merely queued).
- A step that covers no bytes (a vector shorter than its chunks) still waits for all of its
  dependencies to end, and still takes its turn in its lane: order is transitive through it.
- How much a step moves follows from its slots alone, alike at both ends: scratch slot s is as
  large as chunk s % chunks of a block (`values` lets chunks lie only in slots made for them).
- Lanes do not block each other: a wait for the receiver on one lane, or in one collective, must
  not delay the bytes of another (connections shared by lanes need credits or buffers).
- Combining is commutative bit by bit (sum, product, minimum, ... of NaN included); it need not be
  associative.
- The buffers of concurrent collectives do not overlap.
"""

from dataclasses import dataclass, field
from typing import Any

from headrace.collectives.errors import UnverifiedPlanError
from headrace.collectives.plan.verify.history import Writes, histories
from headrace.collectives.plan.verify.order import running_order
from headrace.collectives.plan.verify.races import check_races
from headrace.collectives.plan.verify.structure import Structure
from headrace.collectives.plan.verify.values import SymbolicExecution
from headrace.collectives.program import Program

__all__ = ["VERIFIER_VERSION", "Proof", "verify"]

VERIFIER_VERSION = 2
"""Increased whenever the verifier starts to reject programs that it accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of `verify`: this very program was proven by this version of the verifier.

    Attributes
    ----------
    program : the value that was proven, of which the digest then need not be computed again; None
        where only its digest is known. Neither compared nor stored.
    """

    program_digest: str
    verifier_version: int
    program: Program | None = field(default=None, repr=False, compare=False)

    def check(self, digest: str) -> None:
        """Check that this proves the program of that digest.

        Raises
        ------
        UnverifiedPlanError : it is of another program, or by another version of the verifier.
        """
        if self.program_digest != digest or self.verifier_version != VERIFIER_VERSION:
            raise UnverifiedPlanError(
                f"the proof is of program {self.program_digest[:12]} by verifier "
                f"{self.verifier_version}; this is program {digest[:12]} and verifier "
                f"{VERIFIER_VERSION}: verify the plan again"
            )

    def digest_of(self, program: Program) -> str:
        """Return the digest of `program`, at no cost for the one that was proven."""
        return self.program_digest if program is self.program else program.digest

    def to_head(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"program_digest": self.program_digest, "verifier_version": self.verifier_version}


def verify(program: Program, *, full_messages: bool = False) -> Proof:
    """Prove that `program` delivers its demand however its steps interleave.

    Parameters
    ----------
    program : all ranks' lanes, steps and dependencies.
    full_messages : every message has bytes in every call, so that its receive is evidence of its
        send: then messages order steps, by way of other ranks too.

    Returns
    -------
    Proof : names the program by its digest, taken before the proof began.

    Raises
    ------
    VerificationError : naming rank, lane, step and slot, what was found and what is needed.

    Notes
    -----
    Time is linear in dependencies plus steps times their chunks, sorting them aside. Only a rank
    where paths of several dependencies order accesses takes vector clocks: one row operation over
    its lanes per step and dependency.
    """
    digest = program.digest
    structure = Structure.of(program)
    order = running_order(structure)
    writes = Writes.of(structure)
    values = SymbolicExecution(structure, order, writes)
    for history in histories(structure, order, writes):
        check_races(structure, order, history, messages=full_messages)
        values.read(history)
    values.check()
    return Proof(program_digest=digest, verifier_version=VERIFIER_VERSION, program=program)
