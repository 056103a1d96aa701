"""Total order of all messages, and the steps of each threadblock in it.

The order extends the program's. A received message is forwarded at once where nothing else has to
come first; the messages of such a chain are one fused step at each rank between. As nothing may be
buffered inside a fused step, a chain stops before it would come back to a threadblock that is part
of it, or wait for one of its own messages.

With buffering connections (`buffered`) a forwarded message arrives only at its position in the
program's order. So a ring begins everywhere at once, which it cannot if each threadblock has to
receive before it may send.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.collectives.export.algorithm import NOWHERE, Kind, Location
from headrace.collectives.export.buffers import Layout
from headrace.collectives.export.limits import MAX_COUNT
from headrace.collectives.export.pairing import LaneGroup
from headrace.collectives.export.units import Units
from headrace.collectives.program import Op


@dataclass(slots=True)
class StreamEvent:
    """One step of a threadblock, before its waits are numbered.

    Attributes
    ----------
    number : position in the order of all events.
    after : the events that it waits for, those of its own threadblock included.
    written, read : slots, for `rrs`: values never read need not be stored.
    ends_chain : published, so that executors do not fuse the next reduction with it.
    """

    number: int
    kind: Kind
    count: int
    src: Location = NOWHERE
    dst: Location = NOWHERE
    after: set[int] = field(default_factory=set[int])
    written: Sequence[int] = ()
    read: Sequence[int] = ()
    ends_chain: bool = False


@dataclass(slots=True)
class Stream:
    """A threadblock under construction."""

    send: int
    recv: int
    channel: int
    events: list[StreamEvent] = field(default_factory=list[StreamEvent])


class Emission:
    """Simulated run of a program, in the order that the threadblocks will keep."""

    def __init__(
        self,
        units: Units,
        layout: Layout,
        groups: list[list[LaneGroup]],
        *,
        within_blocks: bool,
        buffered: bool = False,
    ) -> None:
        self.units, self.layout = units, layout
        self.within_blocks, self.buffered = within_blocks, buffered
        self.chunks = layout.demand.chunks
        self.streams: list[list[Stream]] = []
        self.send_lane: dict[int, int] = {}  # receive lane -> send lane of its threadblock
        self.stream_of: dict[int, Stream] = {}
        for lanes in groups:
            self.streams.append([self._stream(group) for group in lanes])
        self.next = [lane.start for lane in units.of_lane]
        self.written: set[tuple[int, int]] = set()
        self.homes: dict[tuple[int, int], Location] = {}
        self.event_of = [-1] * len(units.lane)
        self.number = 0
        self.heap: list[tuple[int, ...]] = []
        self.sent: dict[int, list[int]] = {}  # first receive -> a message in flight
        self._order_rendezvous()

    def _stream(self, group: LaneGroup) -> Stream:
        keys = self.units.lanes
        peers = [keys[lane][2] if lane >= 0 else -1 for lane in (group.send, group.recv)]
        members = [lane for lane in (group.send, group.recv, group.local) if lane >= 0]
        stream = Stream(send=peers[0], recv=peers[1], channel=keys[members[0]][3])
        for lane in members:
            self.stream_of[lane] = stream
        if group.send >= 0 and group.recv >= 0:
            self.send_lane[group.recv] = group.send
        return stream

    def _order_rendezvous(self) -> None:
        """Build the precedence graph; a node is a rendezvous, or one half of it if buffered."""
        u = self.units
        every = range(len(u.lane))
        if self.buffered:
            self.node = list(every)
        else:
            self.node = [
                unit if u.op[unit] == Op.SEND or p < 0 else p for unit, p in enumerate(u.partner)
            ]
        self.before: list[list[int]] = [[] for _ in every]
        self.unlocks: list[list[int]] = [[] for _ in every]
        self.forward_of: dict[int, int] = {}
        for unit in every:
            waits = self._waits(unit)
            if self.buffered and u.partner[unit] >= 0 and u.op[unit] != Op.SEND:
                waits.append(u.partner[unit])
            for on in waits:
                self.before[self.node[unit]].append(self.node[on])
                self.unlocks[self.node[on]].append(self.node[unit])
            for on in u.after[unit]:
                if u.slot[on] == u.slot[unit] and self.send_lane.get(u.lane[on]) == u.lane[unit]:
                    self.forward_of.setdefault(on, unit)
        self.missing = [len(waits) for waits in self.before]

    def _waits(self, unit: int) -> list[int]:
        u = self.units
        lane = u.of_lane[u.lane[unit]]
        return list(u.after[unit]) if unit == lane.start else [unit - 1, *u.after[unit]]

    def _push(self, node: int) -> None:
        """Queue a ready node: in the program's order, a receive when its forward is due."""
        u = self.units
        onward = self.forward_of.get(node) if self.buffered else None
        turn = (u.group[node], 1) if onward is None else (u.group[onward], 0)
        heapq.heappush(self.heap, (*turn, node))

    def run(self, *, store_all: bool) -> None:
        """Emit everything, then, unless `store_all`, drop stores that are never read."""
        self._copy_untouched()
        for node, own in enumerate(self.node):
            if own == node and not self.missing[node]:
                self._push(node)
        while self.heap:
            *_, node = heapq.heappop(self.heap)
            if node in self.sent:
                self._arrive(self.sent.pop(node), set(), set())
            elif self.event_of[node] < 0 and not self._in_flight(node):
                self._take(self._block(node))
        if not store_all:
            self._drop_stores()
        self._mark_reductions()

    def _in_flight(self, node: int) -> bool:
        """Return whether `node` is a later part of a sent message: it arrives with the first."""
        return self.buffered and self.units.op[node] in (Op.RECV, Op.RECV_REDUCE)

    def _take(self, block: list[int]) -> None:
        if self.units.partner[block[0]] < 0:
            self._local(block)
        else:
            self._chain(block)

    # ---- fusion

    def _ready(self, unit: int, taken: Sequence[int]) -> bool:
        """Return whether `unit` has no predecessors left but `taken`, which come first."""
        if self.missing[unit] != sum(on in taken for on in self.before[unit]):
            return False
        if not self.buffered or self.units.partner[unit] < 0 or not taken:
            return True
        # Both halves of a message of several units have to be ready at once.
        partner = self.units.partner
        there = {unit, partner[unit], *taken, *(partner[taken_unit] for taken_unit in taken)}
        waits = self.before[partner[unit]]
        return self.missing[partner[unit]] == sum(on in there for on in waits)

    def _block(self, unit: int) -> list[int]:
        """Return `unit` and the units of its message that can join it in one step."""
        lane = self.units.of_lane[self.units.lane[unit]]
        taken = [unit]
        while (
            len(taken) < MAX_COUNT - 1
            and taken[-1] + 1 in lane
            and self._adjoin(taken[-1], taken[-1] + 1)
            and self._ready(taken[-1] + 1, taken)
        ):
            taken.append(taken[-1] + 1)
        return taken

    def _adjoin(self, unit: int, following: int) -> bool:
        u = self.units
        if u.group[unit] != u.group[following] or u.op[unit] != u.op[following]:
            return False
        if u.partner[unit] >= 0 and u.op[u.partner[unit]] != u.op[u.partner[following]]:
            return False
        for a, b in zip(self._locations(unit), self._locations(following), strict=True):
            if a.buffer != b.buffer or b.offset != a.offset + 1:
                return False
            if self.within_blocks and b.offset % self.chunks == 0:
                return False
        return True

    def _locations(self, unit: int) -> Iterator[Location]:
        """Yield every location that the rendezvous of `unit` touches."""
        u, rank = self.units, self.units.rank(unit)
        partner = u.partner[unit]
        if partner < 0:
            yield self._read(rank, u.src_slot[unit])
            yield self._home(rank, u.slot[unit])
            yield self._read(rank, u.slot[unit])
        else:
            peer = u.rank(partner)
            yield self._read(rank, u.slot[unit])
            yield self._home(peer, u.slot[partner])
            yield self._read(peer, u.slot[partner])

    def _read(self, rank: int, slot: int) -> Location:
        """Return the present location of `slot`: out of place, at first, in the input."""
        if not self.layout.in_place and (rank, slot) not in self.written:
            return self.layout.input_location(rank, slot) or self._home(rank, slot)
        return self._home(rank, slot)

    def _home(self, rank: int, slot: int) -> Location:
        location = self.homes.get((rank, slot))
        if location is None:
            location = self.homes[rank, slot] = self.layout.home(rank, slot)
        return location

    def _onward(self, block: list[int], chain: set[int], visited: set[int]) -> list[int]:
        """Return the sends that forward all of `block`, if they can be fused."""
        u = self.units
        receives = [u.partner[unit] for unit in block]
        lane = self.send_lane.get(u.lane[receives[0]], -1)
        if lane < 0:
            return []
        first = self.next[lane]
        sends = list(range(first, first + len(block)))
        if sends[-1] not in u.of_lane[lane]:
            return []
        if any(u.slot[a] != u.slot[b] for a, b in zip(sends, receives, strict=True)):
            return []
        if id(self.stream_of[u.lane[u.partner[first]]]) in visited:
            return []
        if not all(self._adjoin(a, a + 1) for a in sends[:-1]):
            return []
        for k, send in enumerate(sends):
            if not self._ready(send, sends[:k]):
                return []
            if self._waits_inside(send, {*receives, *sends}, chain):
                return []
        return sends

    def _waits_inside(self, send: int, passed: set[int], chain: set[int]) -> bool:
        """Return whether `send` waits for a message of the chain that it does not forward."""
        u = self.units
        for unit in (send, u.partner[send]):
            if any(self.node[on] in chain and on not in passed for on in self._waits(unit)):
                return True
        return False

    # ---- emitting steps

    def _chain(self, block: list[int]) -> None:
        """Emit a message and all its forwards."""
        u = self.units
        start = self._read(u.rank(block[0]), u.slot[block[0]])
        self._finish(block)
        self._event(u.lane[block[0]], Kind.SEND, block, src=start, read=block)
        if self.buffered:
            self.sent[u.partner[block[0]]] = block
            return
        chain: set[int] = set()
        visited = {id(self.stream_of[u.lane[block[0]]])}
        while block:
            chain.update(block)
            visited.add(id(self.stream_of[u.lane[u.partner[block[0]]]]))
            block = self._arrive(block, chain, visited)

    def _arrive(self, block: list[int], chain: set[int], visited: set[int]) -> list[int]:
        """Emit the receive of `block`; return the sends that the same step forwards."""
        u = self.units
        receives = [u.partner[unit] for unit in block]
        peer, slot = u.rank(receives[0]), u.slot[receives[0]]
        reduce = u.op[receives[0]] == Op.RECV_REDUCE
        source, home = self._read(peer, slot), self._home(peer, slot)
        self.written.update((peer, u.slot[unit]) for unit in receives)
        if self.buffered:
            self._finish(receives)
        onward = self._onward(block, chain, visited)
        kind = {
            (False, False): Kind.RECV,
            (True, False): Kind.RECV_REDUCE_COPY,
            (False, True): Kind.RECV_COPY_SEND,
            (True, True): Kind.RECV_REDUCE_COPY_SEND,
        }[reduce, bool(onward)]
        self._finish(onward)
        self._event(
            u.lane[receives[0]],
            kind,
            [*receives, *onward],
            count=len(block),
            src=source if reduce else NOWHERE,
            dst=home,
            written=receives,
            read=receives if reduce else (),
        )
        if self.buffered and onward:
            # It arrives at its position in the order; the connection holds it until then.
            self.sent[u.partner[onward[0]]] = onward
        return onward

    def _local(self, block: list[int]) -> None:
        u, unit = self.units, block[0]
        rank, lane, slot = u.rank(unit), u.lane[unit], u.slot[unit]
        src, home = self._read(rank, u.src_slot[unit]), self._home(rank, slot)
        source = self._read(rank, slot)
        self._finish(block)
        reduce = u.op[unit] == Op.REDUCE
        if reduce and source != home:
            self._event(lane, Kind.COPY, block, src=source, dst=home)
        event = self._event(
            lane, Kind.REDUCE if reduce else Kind.COPY, block, src=src, dst=home, written=block
        )
        event.read = [u.src_slot[member] for member in block]
        if reduce:
            event.read += [u.slot[member] for member in block]
        self.written.update((rank, u.slot[member]) for member in block)

    def _finish(self, block: Sequence[int]) -> None:
        """Release the successors of `block`, and mark it as taken."""
        for unit in block:
            for later in self.unlocks[unit]:
                self.missing[later] -= 1
                if not self.missing[later]:
                    self._push(later)
            self.next[self.units.lane[unit]] = unit + 1
            if self.event_of[unit] < 0:
                self.event_of[unit] = self.number  # for now: it is taken

    def _event(
        self,
        lane: int,
        kind: Kind,
        units: Sequence[int],
        *,
        count: int = 0,
        src: Location = NOWHERE,
        dst: Location = NOWHERE,
        written: Sequence[int] = (),
        read: Sequence[int] = (),
    ) -> StreamEvent:
        u = self.units
        for unit in units:
            self.event_of[unit] = self.number
        event = StreamEvent(
            number=self.number,
            kind=kind,
            count=count or len(units),
            src=src,
            dst=dst,
            after={self.event_of[on] for unit in units for on in u.after[unit]} - {self.number},
            written=[u.slot[unit] for unit in written],
            read=[u.slot[unit] for unit in read],
        )
        self.number += 1
        self.stream_of[lane].events.append(event)
        return event

    # ---- out of place, and afterwards

    def _copy_untouched(self) -> None:
        """Copy results from the input to the output that no step writes."""
        u, layout = self.units, self.layout
        if layout.in_place:
            return
        touched = {(u.rank(unit), u.slot[unit]) for unit, op in enumerate(u.op) if op != Op.SEND}
        for rank, streams in enumerate(self.streams):
            copies: list[tuple[Location, Location]] = []
            for slot, _, _ in layout.demand.final(rank):
                src, dst = layout.input_location(rank, slot), layout.home(rank, slot)
                if src is not None and src != dst and (rank, slot) not in touched:
                    copies.append((src, dst))
            if copies:
                stream = next((s for s in streams if s.send < 0 and s.recv < 0), None)
                if stream is None:
                    stream = Stream(send=-1, recv=-1, channel=0)
                    streams.append(stream)
                stream.events.extend(self._merged(copies))

    def _merged(self, copies: list[tuple[Location, Location]]) -> Iterator[StreamEvent]:
        while copies:
            (src, dst), count = copies[0], 1
            while (
                count < min(len(copies), MAX_COUNT - 1)
                and copies[count]
                == (
                    Location(src.buffer, src.offset + count),
                    Location(dst.buffer, dst.offset + count),
                )
                and not (self.within_blocks and copies[count][1].offset % self.chunks == 0)
            ):
                count += 1
            yield StreamEvent(number=self.number, kind=Kind.COPY, count=count, src=src, dst=dst)
            self.number += 1
            copies = copies[count:]

    def _drop_stores(self) -> None:
        """Turn rrcs into rrs where the stored value is never read."""
        for rank, streams in enumerate(self.streams):
            live = {slot for slot, _, _ in self.layout.demand.final(rank)}
            events = sorted((e for s in streams for e in s.events), key=lambda e: -e.number)
            for event in events:
                if event.kind is Kind.RECV_REDUCE_COPY_SEND and live.isdisjoint(event.written):
                    event.kind, event.dst = Kind.RECV_REDUCE_SEND, NOWHERE
                live.difference_update(event.written)
                live.update(event.read)

    def _mark_reductions(self) -> None:
        """Keep the executor from fusing local reductions of different lengths.

        It takes consecutive ``re`` steps into one location, from one buffer, for one, with the
        count of the last; a published step ends such a run.
        """
        for streams in self.streams:
            for stream in streams:
                for a, b in zip(stream.events, stream.events[1:], strict=False):
                    a.ends_chain = (
                        a.kind is Kind.REDUCE and b.kind is Kind.REDUCE and a.count != b.count
                    )
