"""A tiny interpreter of programs, for tests only: an oracle independent of the verifier.

It runs the steps of a lowered program one whole step at a time, in an order drawn at random from
all that lanes and dependencies allow, on symbolic values. A program with a race gives a wrong
value under some order; one that can deadlock gets stuck.
"""

import random
from typing import Any

from headrace.collectives.demand import Collective
from headrace.collectives.program import Direction, Op, Program


class StuckError(Exception):
    """No step can run, and some have not."""


def run(program: Program, seed: int) -> list[dict[int, Any]]:
    """Run `program` once; returns every rank's slots -> (item, mask, expression)."""
    demand = program.demand
    memory: list[dict[int, Any]] = [
        {slot: (item, mask, (rank,)) for slot, item, mask in demand.initial(rank)}
        for rank in range(demand.ranks)
    ]
    rows = [
        dict(zip(program.steps, (int(v) for v in row), strict=True))
        for row in zip(*program.steps.values(), strict=True)
    ]
    lanes = [
        tuple(int(program.lanes[name][i]) for name in ("rank", "direction", "peer", "channel"))
        for i in range(len(program.lanes["rank"]))
    ]
    queues: list[list[int]] = [[] for _ in lanes]
    for index, row in enumerate(rows):
        queues[row["lane"]].append(index)
    waits: dict[int, list[int]] = {}
    for step, on in zip(*(program.dependencies[n].tolist() for n in ("step", "on")), strict=True):
        assert lanes[rows[step]["lane"]][0] == lanes[rows[on]["lane"]][0]
        waits.setdefault(step, []).append(on)
    number = {lane: i for i, lane in enumerate(lanes)}
    position = [0] * len(lanes)
    done: set[int] = set()
    pick = random.Random(seed)

    def head(lane: int) -> int | None:
        if position[lane] == len(queues[lane]):
            return None
        step = queues[lane][position[lane]]
        return step if all(on in done for on in waits.get(step, ())) else None

    def finish(lane: int) -> None:
        done.add(queues[lane][position[lane]])
        position[lane] += 1

    while len(done) < len(rows):
        ready = []
        for i, (rank, direction, peer, channel) in enumerate(lanes):
            if direction == Direction.LOCAL and head(i) is not None:
                ready.append((i, i))
            elif direction == Direction.RECV and head(i) is not None:
                sender = number[(peer, int(Direction.SEND), rank, channel)]
                if head(sender) is not None:
                    ready.append((sender, i))
        if not ready:
            raise StuckError(f"{len(rows) - len(done)} steps left")
        source_lane, target_lane = pick.choice(ready)
        source, target = rows[head(source_lane)], rows[head(target_lane)]
        src, dst = lanes[source_lane][0], lanes[target_lane][0]
        assert source["count"] == target["count"]
        first = source["slot"] if source_lane != target_lane else target["src_slot"]
        for k in range(target["count"]):
            value = memory[src][first + k]
            slot = target["slot"] + k
            if target["op"] in (Op.RECV_REDUCE, Op.REDUCE):
                value = _combine(memory[dst][slot], value)
            memory[dst][slot] = value
        finish(target_lane)
        if source_lane != target_lane:
            finish(source_lane)
    return memory


def _combine(a: Any, b: Any) -> Any:
    assert a[0] == b[0], f"item {a[0]} combined with {b[0]}"
    assert a[1] & b[1] == 0, "a contribution is reduced twice"
    return a[0], a[1] | b[1], tuple(sorted([a[2], b[2]], key=repr))


def check(program: Program, seeds: int = 2) -> None:
    """Assert that `program` delivers its demand under a few random orders."""
    demand = program.demand
    for seed in range(seeds):
        memory = run(program, seed)
        for rank in range(demand.ranks):
            for slot, item, mask in demand.final(rank):
                assert memory[rank].get(slot, (None, None))[:2] == (item, mask), (rank, slot)
        if demand.collective is Collective.ALLREDUCE:
            for slot in range(demand.slots):
                # The same expression, up to commutativity, so the same bits.
                assert len({memory[rank][slot][2] for rank in range(demand.ranks)}) == 1
