"""One order of all messages, and the steps that each threadblock takes in it.

The order extends the program's. A message that was received is passed on at once where nothing
else has to come first; the messages of such a chain are one fused step at each rank between. As
nothing may be buffered inside a fused step, a chain stops before it would come back to a
threadblock that is part of it, or wait for one of its own messages.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.collectives.export.algorithm import NOWHERE, Kind, Place
from headrace.collectives.export.buffers import Layout
from headrace.collectives.export.limits import MAX_COUNT
from headrace.collectives.export.pairing import Group
from headrace.collectives.export.units import Units
from headrace.collectives.program import Op


@dataclass(slots=True)
class Event:
    """One step of a threadblock, before its waits are numbered.

    Attributes
    ----------
    number : the place in the order of all events.
    after : the events that it waits for, those of its own threadblock included.
    written, read : slots, for `rrs`: what is stored and never read need not be stored.
    ends_chain : published, so that executors do not fuse the next reduction with it.
    """

    number: int
    kind: Kind
    count: int
    src: Place = NOWHERE
    dst: Place = NOWHERE
    after: set[int] = field(default_factory=set[int])
    written: Sequence[int] = ()
    read: Sequence[int] = ()
    ends_chain: bool = False


@dataclass(slots=True)
class Stream:
    """A threadblock in the making."""

    send: int
    recv: int
    channel: int
    events: list[Event] = field(default_factory=list[Event])


class Emission:
    """Runs a program once, in the order that the threadblocks will keep."""

    def __init__(
        self, units: Units, layout: Layout, groups: list[list[Group]], *, within_blocks: bool
    ) -> None:
        self.units, self.layout = units, layout
        self.within_blocks = within_blocks
        self.chunks = layout.demand.chunks
        self.streams: list[list[Stream]] = []
        self.send_lane: dict[int, int] = {}  # receive lane -> send lane of its threadblock
        self.stream_of: dict[int, Stream] = {}
        for lanes in groups:
            self.streams.append([self._stream(group) for group in lanes])
        self.next = [lane.start for lane in units.of_lane]
        self.written: set[tuple[int, int]] = set()
        self.event_of = [-1] * len(units.lane)
        self.number = 0
        self._order_meetings()

    def _stream(self, group: Group) -> Stream:
        keys = self.units.lanes
        peers = [keys[lane][2] if lane >= 0 else -1 for lane in (group.send, group.recv)]
        members = [lane for lane in (group.send, group.recv, group.local) if lane >= 0]
        stream = Stream(send=peers[0], recv=peers[1], channel=keys[members[0]][3])
        for lane in members:
            self.stream_of[lane] = stream
        if group.send >= 0 and group.recv >= 0:
            self.send_lane[group.recv] = group.send
        return stream

    def _order_meetings(self) -> None:
        u = self.units
        self.meeting = [
            unit if u.op[unit] == Op.SEND or p < 0 else p for unit, p in enumerate(u.partner)
        ]
        self.before: list[list[int]] = [[] for _ in u.lane]
        self.unlocks: list[list[int]] = [[] for _ in u.lane]
        for lane in u.of_lane:
            for unit in lane:
                waits = u.after[unit] if unit == lane.start else [unit - 1, *u.after[unit]]
                for on in waits:
                    self.before[self.meeting[unit]].append(self.meeting[on])
                    self.unlocks[self.meeting[on]].append(self.meeting[unit])
        self.missing = [len(waits) for waits in self.before]

    def run(self, *, store_all: bool) -> None:
        """Emit everything, then, unless `store_all`, find what need not be stored."""
        self._copy_untouched()
        heap = [
            (self.units.group[m], m)
            for m, own in enumerate(self.meeting)
            if own == m and not self.missing[m]
        ]
        heapq.heapify(heap)
        self.heap = heap
        while heap:
            _, meeting = heapq.heappop(heap)
            if self.event_of[meeting] >= 0:
                continue  # went along with an earlier one
            block = self._block(meeting)
            if self.units.partner[meeting] < 0:
                self._local(block)
            else:
                self._chain(block)
        if not store_all:
            self._drop_stores()
        self._mark_reductions()

    # ---- what goes together

    def _ready(self, meeting: int, taken: Sequence[int]) -> bool:
        return self.missing[meeting] == sum(on in taken for on in self.before[meeting])

    def _block(self, meeting: int) -> list[int]:
        """Return `meeting` and the units of its message that may come along in one step."""
        lane = self.units.of_lane[self.units.lane[meeting]]
        taken = [meeting]
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
        for a, b in zip(self._places(unit), self._places(following), strict=True):
            if a.buffer != b.buffer or b.offset != a.offset + 1:
                return False
            if self.within_blocks and b.offset % self.chunks == 0:
                return False
        return True

    def _places(self, unit: int) -> Iterator[Place]:
        """Every place that the meeting of `unit` touches."""
        u, rank = self.units, self.units.rank(unit)
        partner = u.partner[unit]
        if partner < 0:
            yield self._read(rank, u.src_slot[unit])
            yield self.layout.home(rank, u.slot[unit])
            yield self._read(rank, u.slot[unit])
        else:
            peer = u.rank(partner)
            yield self._read(rank, u.slot[unit])
            yield self.layout.home(peer, u.slot[partner])
            yield self._read(peer, u.slot[partner])

    def _read(self, rank: int, slot: int) -> Place:
        """Return where the value of `slot` is now: out of place, at first, in the input."""
        if not self.layout.in_place and (rank, slot) not in self.written:
            return self.layout.input_place(rank, slot) or self.layout.home(rank, slot)
        return self.layout.home(rank, slot)

    def _onward(self, block: list[int], chain: set[int], visited: set[int]) -> list[int]:
        """Return the sends that pass on all that `block` brought, if they can be fused."""
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
        """Whether the message of `send` waits for one of the chain that it does not pass on."""
        u = self.units
        for unit in (send, u.partner[send]):
            lane = u.of_lane[u.lane[unit]]
            waits = u.after[unit] if unit == lane.start else [unit - 1, *u.after[unit]]
            if any(self.meeting[on] in chain and on not in passed for on in waits):
                return True
        return False

    # ---- taking steps

    def _chain(self, block: list[int]) -> None:
        """Emit a message and all that passes it on."""
        u = self.units
        rank = u.rank(block[0])
        start = self._read(rank, u.slot[block[0]])
        self._finish(block)
        self._event(u.lane[block[0]], Kind.SEND, block, src=start, read=block)
        chain = set(block)
        visited = {id(self.stream_of[u.lane[unit]]) for unit in (block[0], u.partner[block[0]])}
        while True:
            receives = [u.partner[unit] for unit in block]
            peer, slot = u.rank(receives[0]), u.slot[receives[0]]
            reduce = u.op[receives[0]] == Op.RECV_REDUCE
            held, home = self._read(peer, slot), self.layout.home(peer, slot)
            self.written.update((peer, u.slot[unit]) for unit in receives)
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
                src=held if reduce else NOWHERE,
                dst=home,
                written=receives,
                read=receives if reduce else (),
            )
            if not onward:
                return
            block = onward
            chain.update(block)
            visited.add(id(self.stream_of[u.lane[u.partner[block[0]]]]))

    def _local(self, block: list[int]) -> None:
        u, unit = self.units, block[0]
        rank, lane, slot = u.rank(unit), u.lane[unit], u.slot[unit]
        src, home = self._read(rank, u.src_slot[unit]), self.layout.home(rank, slot)
        held = self._read(rank, slot)
        self._finish(block)
        reduce = u.op[unit] == Op.REDUCE
        if reduce and held != home:
            self._event(lane, Kind.COPY, block, src=held, dst=home)
        event = self._event(
            lane, Kind.REDUCE if reduce else Kind.COPY, block, src=src, dst=home, written=block
        )
        event.read = [u.src_slot[other] for other in block]
        if reduce:
            event.read += [u.slot[other] for other in block]
        self.written.update((rank, u.slot[other]) for other in block)

    def _finish(self, block: Sequence[int]) -> None:
        for meeting in block:
            for later in self.unlocks[meeting]:
                self.missing[later] -= 1
                if not self.missing[later]:
                    heapq.heappush(self.heap, (self.units.group[later], later))
            self.next[self.units.lane[meeting]] = meeting + 1
            self.event_of[meeting] = self.number  # for now: it is taken

    def _event(
        self,
        lane: int,
        kind: Kind,
        units: Sequence[int],
        *,
        count: int = 0,
        src: Place = NOWHERE,
        dst: Place = NOWHERE,
        written: Sequence[int] = (),
        read: Sequence[int] = (),
    ) -> Event:
        u = self.units
        for unit in units:
            self.event_of[unit] = self.number
        event = Event(
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
        """Copy from the input what the caller wants in the output and no step writes there."""
        u, layout = self.units, self.layout
        if layout.in_place:
            return
        touched = {(u.rank(unit), u.slot[unit]) for unit, op in enumerate(u.op) if op != Op.SEND}
        for rank, streams in enumerate(self.streams):
            copies: list[tuple[Place, Place]] = []
            for slot, _, _ in layout.demand.final(rank):
                src, dst = layout.input_place(rank, slot), layout.home(rank, slot)
                if src is not None and src != dst and (rank, slot) not in touched:
                    copies.append((src, dst))
            if copies:
                stream = next((s for s in streams if s.send < 0 and s.recv < 0), None)
                if stream is None:
                    stream = Stream(send=-1, recv=-1, channel=0)
                    streams.append(stream)
                stream.events.extend(self._merged(copies))

    def _merged(self, copies: list[tuple[Place, Place]]) -> Iterator[Event]:
        while copies:
            (src, dst), count = copies[0], 1
            while (
                count < min(len(copies), MAX_COUNT - 1)
                and copies[count]
                == (Place(src.buffer, src.offset + count), Place(dst.buffer, dst.offset + count))
                and not (self.within_blocks and copies[count][1].offset % self.chunks == 0)
            ):
                count += 1
            yield Event(number=self.number, kind=Kind.COPY, count=count, src=src, dst=dst)
            self.number += 1
            copies = copies[count:]

    def _drop_stores(self) -> None:
        """Turn rrcs into rrs where nobody reads what would be stored."""
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

        It takes consecutive ``re`` steps into one place, from one buffer, for one, with the count
        of the last; a published step ends such a run.
        """
        for streams in self.streams:
            for stream in streams:
                for a, b in zip(stream.events, stream.events[1:], strict=False):
                    a.ends_chain = (
                        a.kind is Kind.REDUCE and b.kind is Kind.REDUCE and a.count != b.count
                    )
