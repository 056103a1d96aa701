"""Expansion of one rank's sends to all ranks': for small groups, tests and the executor."""

import numpy as np

from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.collectives.plan.generators.orbits.simulate import OrbitSimulation
from headrace.collectives.plan.ir.chunks import Sends, realize
from headrace.collectives.program import Schedule

MAX_SENDS = 20_000_000
"""Largest number of sends that is expanded."""


def expand(plan: OrbitPlan, simulation: OrbitSimulation | None = None) -> Sends:
    """Return the sends of all ranks; chunks have the numbers of the demand's items.

    Message m of rank x comes after all messages of lower number of any rank.

    Parameters
    ----------
    simulation : of `plan`: the order among messages of one number, and the times of all. None:
        lower ranks come first, and there are no times.

    Raises
    ------
    ProgramError : if there are more than `MAX_SENDS`.
    """
    n, rows = plan.demand.ranks, len(plan.sends["dst"])
    if n * rows > MAX_SENDS:
        raise ProgramError(
            f"{rows} sends for each of {n} ranks are more than {MAX_SENDS}: keep the plan as orbits"
        )
    table = RegularGroup(generators=plan.generators).table
    turn = np.arange(n)
    start_us = arrive_us = np.empty(0)
    if simulation is not None:
        turn = np.argsort(simulation.order, kind="stable")
    columns, c = plan.sends, plan.block_chunks
    message = columns["message"].astype(np.int64)
    first = np.searchsorted(message, np.arange(plan.messages + 1))
    # For every message, for every rank, the rows of the message.
    row = np.concatenate(
        [np.empty(0, np.int64), *(np.tile(np.arange(a, b), n) for a, b in _pairs(first))]
    )
    rank = np.concatenate(
        [np.empty(0, np.int64), *(np.repeat(turn, b - a) for a, b in _pairs(first))]
    )
    place = np.empty(n, dtype=np.int64)
    place[turn] = np.arange(n)
    chunk = table[rank, columns["block"][row]].astype(np.int64) * c + columns["chunk"][row]
    if simulation is not None:
        times = (simulation.start_us, simulation.finish_us)
        start_us, arrive_us = (time[message[row], simulation.label[rank]] for time in times)
    if plan.demand.collective is Collective.ALL_TO_ALL:
        chunk += table[rank, columns["origin"][row]].astype(np.int64) * n * c
    return Sends.of(
        chunk,
        rank,
        table[rank, columns["dst"][row]],
        reduce=columns["reduce"][row] != 0,
        message=message[row] * n + place[rank],
        start_us=start_us,
        arrive_us=arrive_us,
    )


def _pairs(first: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(first[:-1].tolist(), first[1:].tolist(), strict=True))


def expanded_schedule(plan: OrbitPlan, simulation: OrbitSimulation | None = None) -> Schedule:
    """Return the schedule of all ranks, for `lower`; raises ProgramError like `expand`."""
    return realize(plan.demand, expand(plan, simulation))
