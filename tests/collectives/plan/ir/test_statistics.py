"""Counts of rounds and bytes: by hand, and against the templates' laws."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.statistics import ProgramStatistics, program_statistics
from headrace.collectives.program import Op, Program, Schedule, Transfer


def of(
    collective: str, ranks: int, transfers: list[Transfer], chunks: int = 1, scratch: int = 0
) -> Program:
    demand = Demand(collective=Collective(collective), ranks=ranks, chunks=chunks)
    return lower(Schedule.of(demand, transfers, scratch))


def test_a_chain_counts_its_links_and_a_star_one_round() -> None:
    chain = [Transfer(k, k + 1, 0, 0) for k in range(4)]
    star = [Transfer(0, k, 0, 0) for k in range(1, 5)]
    across = ((0, 1), (2, 3, 4))
    assert program_statistics(of("broadcast", 5, chain), across) == ProgramStatistics(
        rounds=4, messages=4, wire=4.0, across=1.0
    )
    assert program_statistics(of("broadcast", 5, star), across) == ProgramStatistics(
        rounds=1, messages=4, wire=4.0, across=3.0
    )
    assert program_statistics(of("broadcast", 5, star)).across == 0.0


def test_waiting_for_a_turn_is_no_round() -> None:
    """Ten chunks over one link are ten messages, none of which carries what another brought."""
    transfers = [Transfer(0, 1, k, k) for k in range(10)]
    found = program_statistics(of("broadcast", 2, transfers, chunks=10))
    assert (found.rounds, found.messages, found.wire) == (1, 10, 1.0)


def test_waiting_for_a_slot_is_no_round_but_its_data_are() -> None:
    """Rank 0 sends its value before the other's arrives on top of it; scratch passes data on."""
    swap = [
        Transfer(0, 1, 0, 1),
        Transfer(1, 0, 0, 0, True),
        Transfer(1, 1, 1, 0, True),
    ]
    assert program_statistics(of("allreduce", 2, swap, scratch=1)).rounds == 1
    on = [*swap, Transfer(1, 2, 0, 0, True), Transfer(2, 0, 0, 0), Transfer(2, 1, 0, 0)]
    assert program_statistics(of("allreduce", 3, on, scratch=1)).rounds == 3


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_templates_keep_their_laws(ranks: int) -> None:
    def count(name: str, chunks: int) -> ProgramStatistics:
        demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks)
        return program_statistics(lower(getattr(templates, name)(demand)))

    least = 2.0 * (ranks - 1)
    ring = count("ring", ranks)
    assert (ring.rounds, ring.wire) == (2 * (ranks - 1), least)
    direct = count("direct", ranks)
    assert (direct.rounds, direct.wire) == (2, least)
    exchange = count("full_exchange", 1)
    assert (exchange.rounds, exchange.wire) == (1, ranks * (ranks - 1))
    if ranks & (ranks - 1) == 0:
        assert count("recursive_doubling", 1).rounds == math.log2(ranks)


def test_an_unproven_cycle_is_named() -> None:
    """Both sends wait for what the other brings."""
    program = of("broadcast", 2, [Transfer(0, 1, 0, 0), Transfer(1, 0, 0, 0)])
    op = program.steps["op"]
    waits = {"step": np.flatnonzero(op == Op.SEND), "on": np.flatnonzero(op == Op.RECV)}
    dependencies = {name: column.astype(np.int32) for name, column in waits.items()}
    with pytest.raises(ProgramError, match="wait for each other"):
        program_statistics(replace(program, dependencies=dependencies))
