"""A dynamic interpreter: runs a program on integers under one random interleaving.

It decides, independently of the verifier, whether a program really misbehaves. It knows nothing
of masks, graphs or clocks: it moves units of a chunk (two make one, so that chunks stream) from
lane to lane whenever the rules of `headrace.collectives.program` allow it, in an order drawn to
be nasty (some lanes run ahead, others starve), and compares the buffers in the end. Runs differ:

- nothing waits between sender and receiver (deadlocks show), or all can (stale data shows);
- where nothing waits, messages may begin as a whole: all of their steps can, or none does;
- all chunks are of one size, or cut from a vector that they do not divide, some of them empty;
- a local step streams behind what covers the same `slot`, or the same `src_slot` as well.
"""

import random
from collections import deque

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.program import Direction, Op, Program

UNITS = 2
_PRIME = (1 << 61) - 1
_SEND, _RECV, _RECV_REDUCE, _COPY, _REDUCE = (int(op) for op in Op)

_Unit = tuple[int, int]
"""(sum, expression): the latter tells apart in which order a sum was made."""


def misbehaves(program: Program, seed: int, runs: int) -> str:
    """Return what went wrong in the first bad one of `runs` runs, or "" if none was bad."""
    machine = Machine(program, seed)
    for run in range(runs):
        problem = machine.run(run) or machine.compare()
        if problem:
            return problem
    return ""


def _mix(a: int, b: int) -> int:
    """Commutative, not associative: like a float's sum, but told apart for certain."""
    return (a * b * 0x1234567 + (a + b) * 0x7654321 + 0x5555) % _PRIME


def _ranks_of(mask: int) -> list[int]:
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


class Machine:
    """One program and its contributions; `run` as often as wanted."""

    def __init__(self, program: Program, seed: int) -> None:
        steps, lanes = program.steps, program.lanes
        self.seed = seed
        self.demand: Demand = program.demand
        self.slots = program.demand.slots + program.scratch_slots
        self.op = steps["op"].tolist()
        self.slot = steps["slot"].tolist()
        self.src = steps["src_slot"].tolist()
        self.count = steps["count"].tolist()
        self.message = steps["message"].tolist()
        self.rank = lanes["rank"][steps["lane"]].tolist()
        self.lanes: list[list[int]] = [[] for _ in lanes["rank"]]
        for step, lane in enumerate(steps["lane"].tolist()):
            self.lanes[lane].append(step)
        self.parts = self._parts()
        columns = [lanes[c].tolist() for c in ("rank", "direction", "peer", "channel")]
        self.keys = {key: lane for lane, key in enumerate(zip(*columns, strict=True))}
        rng = random.Random(7)
        self.data: list[list[_Unit]] = [
            [(rng.getrandbits(60), rng.getrandbits(60)) for _ in range(self.slots * UNITS)]
            for _ in range(self.demand.ranks)
        ]
        self.parts_of: dict[tuple[int, int, int], _Unit] = {}  # item, contributor, unit
        for rank in range(self.demand.ranks):
            for slot, item, mask in self.demand.initial(rank):
                for unit in range(UNITS):
                    shares = [self._share(item, by, unit, rng) for by in _ranks_of(mask)]
                    total = (sum(sum_ for sum_, _ in shares), sum(way for _, way in shares))
                    self.data[rank][slot * UNITS + unit] = total
        on = program.dependencies
        self.edges = list(zip(on["step"].tolist(), on["on"].tolist(), strict=True))
        self.needs = [self._needs(wide) for wide in (False, True)]
        self.layouts = [self._layout(uneven) for uneven in (False, True)]

    def _share(self, item: int, by: int, unit: int, rng: random.Random) -> _Unit:
        """A rank's contribution to an item, in any slot."""
        share = (rng.getrandbits(60), rng.getrandbits(60))
        return self.parts_of.setdefault((item, by, unit), share)

    def _parts(self) -> list[list[int]]:
        """By step, the steps of its lane that are one message with it."""
        parts: list[list[int]] = [[] for _ in self.op]
        for lane in self.lanes:
            for k, step in enumerate(lane):
                joined = k and self.message[lane[k - 1]] == self.message[step]
                parts[step] = parts[lane[k - 1]] if joined else []
                parts[step].append(step)
        return parts

    def _needs(self, wide: bool) -> list[list[tuple[int, bool]]]:
        """By step, (step that it depends on, whether byte by byte)."""
        needs: list[list[tuple[int, bool]]] = [[] for _ in self.op]
        for step, on in self.edges:
            same = self.slot[step] == self.slot[on]
            if wide:
                starts = {self.slot[on], self.src[on]}
                same |= bool(({self.slot[step], self.src[step]} & starts) - {-1})
            needs[step].append((on, same and self.count[step] == self.count[on]))
        return needs

    def _layout(self, uneven: bool) -> tuple[list[int], list[list[int]], list[list[int]]]:
        """(units of each slot, addresses of `slot` and of `src_slot` by step)."""
        sizes, chunks = [UNITS] * self.slots, self.demand.chunks
        if uneven:
            elements = self.seed % (UNITS * chunks + 1)
            edges = [k * elements // chunks for k in range(chunks + 1)]
            sizes = [edges[k % chunks + 1] - edges[k % chunks] for k in range(self.slots)]
        slots = [range(slot * UNITS, slot * UNITS + size) for slot, size in enumerate(sizes)]

        def addresses(starts: list[int]) -> list[list[int]]:
            ranges = zip(starts, self.count, strict=True)
            return [[at for units in slots[a : a + n] for at in units] for a, n in ranges]

        return sizes, addresses(self.slot), addresses(self.src)

    def run(self, number: int) -> str:
        """Run once and return what went wrong on the way; `memory` is then what ranks hold."""
        rng = random.Random(self.seed * 1000 + number)
        self.memory = [list(units) for units in self.data]
        self.sizes, self.target, self.source = self.layouts[number // 2 % 2]
        self.need = self.needs[number // 4 % 2]
        # A step without bytes takes its turn as well, once.
        self.length = [max(1, len(addresses)) for addresses in self.target]
        self.done = [0] * len(self.op)
        self.head = [0] * len(self.lanes)
        self.wire: dict[int, deque[tuple[_Unit | None, int]]] = {}
        self.bad = ""
        agents = self._agents(buffered=number % 2 == 1)
        self.whole = number // 8 % 2 == 1
        self.begun: set[int] = set()
        patience = rng.choice((1, 2, 6, 1000))
        while True:
            rng.shuffle(agents)
            for _ in range(patience):
                # The first that can move does, over and over: those behind it starve.
                if not any(self._move(*agent) for agent in agents):
                    return self.bad or self._left_over()
                if self.bad:
                    return self.bad

    def _agents(self, *, buffered: bool) -> list[tuple[int, int, bool]]:
        """(send or local lane, receive lane, both at once): the possible moves."""
        agents: list[tuple[int, int, bool]] = []
        for (rank, direction, peer, channel), lane in self.keys.items():
            other = self.keys.get((peer, int(Direction.RECV), rank, channel), -1)
            if direction == Direction.LOCAL:
                agents.append((lane, -1, False))
            elif direction == Direction.SEND and other >= 0:
                if buffered:
                    self.wire[lane] = deque()
                    agents += [(lane, -1, False), (lane, other, False)]
                else:
                    agents.append((lane, other, True))
        return agents

    def _ready(self, lane: int) -> int:
        """Return the step at the head of `lane` if one unit of it can be done, else -1."""
        if self.head[lane] == len(self.lanes[lane]):
            return -1
        step = self.lanes[lane][self.head[lane]]
        done = self.done[step]
        for on, streams in self.need[step]:
            if self.done[on] <= done if streams else self.done[on] < self.length[on]:
                return -1
        return step

    def _advance(self, lane: int, step: int) -> None:
        self.done[step] += 1
        if self.done[step] == self.length[step]:
            self.head[lane] += 1

    def _move(self, lane: int, receiver: int, both: bool) -> bool:
        if both:
            return self._meet(lane, receiver)
        if receiver >= 0:
            return self._take(lane, receiver)
        step = self._ready(lane)
        if step < 0:
            return False
        if self.op[step] == _SEND:
            value = self._load(step, self.target[step])
            self.wire[lane].append((value, len(self.target[step])))
        elif len(self.source[step]) != len(self.target[step]):
            self.bad = "lengths differ"
        else:
            self._store(step, self._load(step, self.source[step]))
        self._advance(lane, step)
        return True

    def _may_begin(self, lane: int, receiver: int) -> bool:
        """Return whether all steps of the messages at the heads of two lanes can complete."""
        heads = (self.head[lane], self.head[receiver])
        if heads[0] == len(self.lanes[lane]) or heads[1] == len(self.lanes[receiver]):
            return False
        send, receive = self.lanes[lane][heads[0]], self.lanes[receiver][heads[1]]
        mine, theirs = self.parts[send], self.parts[receive]
        if mine[0] in self.begun:
            return True
        if (send, receive) != (mine[0], theirs[0]) or len(mine) != len(theirs):
            self.bad = "messages differ"
            return False
        for step in (*mine, *theirs):
            for on, _ in self.need[step]:
                if on not in mine and on not in theirs and self.done[on] < self.length[on]:
                    return False
        self.begun.add(mine[0])
        return True

    def _meet(self, lane: int, receiver: int) -> bool:
        if self.whole and not self._may_begin(lane, receiver):
            return bool(self.bad)
        send, receive = self._ready(lane), self._ready(receiver)
        if send < 0 or receive < 0:
            return False
        if len(self.target[send]) != len(self.target[receive]):
            self.bad = "lengths differ"
            return True
        self._store(receive, self._load(send, self.target[send]))
        self._advance(lane, send)
        self._advance(receiver, receive)
        return True

    def _take(self, lane: int, receiver: int) -> bool:
        receive = self._ready(receiver)
        if receive < 0 or not self.wire[lane]:
            return False
        value, length = self.wire[lane].popleft()
        if length != len(self.target[receive]):
            self.bad = "lengths differ"
            return True
        self._store(receive, value)
        self._advance(receiver, receive)
        return True

    def _load(self, step: int, addresses: list[int]) -> _Unit | None:
        return self.memory[self.rank[step]][addresses[self.done[step]]] if addresses else None

    def _store(self, step: int, value: _Unit | None) -> None:
        if value is None:
            return
        memory, at = self.memory[self.rank[step]], self.target[step][self.done[step]]
        if self.op[step] in (_RECV_REDUCE, _REDUCE):
            held = memory[at]
            memory[at] = (held[0] + value[0], _mix(held[1], value[1]))
        else:
            memory[at] = value

    def _left_over(self) -> str:
        if any(done < length for done, length in zip(self.done, self.length, strict=True)):
            return "stuck"
        return "left on the wire" if any(self.wire.values()) else ""

    def compare(self) -> str:
        """Return how the buffers differ from what the demand wants, or ""."""
        for rank in range(self.demand.ranks):
            for slot, item, mask in self.demand.final(rank):
                for unit in range(self.sizes[slot]):
                    shares = [self.parts_of[item, by, unit][0] for by in _ranks_of(mask)]
                    problem = self._compare(rank, slot * UNITS + unit, sum(shares))
                    if problem:
                        return problem
        return ""

    def _compare(self, rank: int, at: int, wanted: int) -> str:
        value, expression = self.memory[rank][at]
        if value != wanted:
            return "wrong data"
        agrees = expression == self.memory[0][at][1]
        if self.demand.collective is Collective.ALLREDUCE and not agrees:
            return "ranks differ in rounding"
        return ""
