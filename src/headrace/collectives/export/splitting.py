"""Threadblocks that are too long for a runtime, split into several on channels of their own.

A message has one channel, so both of its ends are split at the same point; so is a chain of fused
steps, as a threadblock has one channel. Every chain, in the order of all, gets a *part*: the least
that leaves each of its threadblocks' parts ascending and none of them too long. The parts of a
threadblock run one after another: each waits for the one before.

With buffering connections, fused steps tie nearly everything together; threadblocks that are too
long there stay so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.collectives.export.emission import Stream, StreamEvent

Weigh = Callable[[StreamEvent, StreamEvent | None], int]
"""Most steps (or operations) of an event, given the event that receives its message."""


def parts(streams: Sequence[Sequence[Stream]], weigh: Weigh, most: int) -> dict[int, int]:
    """Return by event its part, such that no part of a stream weighs more than `most`.

    Parameters
    ----------
    streams : by rank; their events are numbered in one order, chains without gaps.
    """
    home = {
        event.number: (stream, event)
        for of_rank in streams
        for stream in of_rank
        for event in stream.events
    }
    part: dict[int, int] = {}
    reached: dict[int, int] = {}  # by stream: its last part, and the weight of that
    weight: dict[int, int] = {}
    for chain in _chains([home[number] for number in sorted(home)]):
        onward = [event for _, event in chain[1:]]
        added: dict[int, int] = {}
        for (stream, event), following in zip(chain, [*onward, None], strict=True):
            added[id(stream)] = added.get(id(stream), 0) + weigh(event, following)
        at = max(reached.get(key, 0) for key in added)
        loads = {key: weight[key] for key in added if reached.get(key, -1) == at}
        at += any(loads[key] + added[key] > most for key in loads)
        for key, more in added.items():
            weight[key] = more + (weight.get(key, 0) if reached.get(key, 0) == at else 0)
            reached[key] = at
        part.update((event.number, at) for _, event in chain)
    return part


def split_stream(stream: Stream, part: Mapping[int, int]) -> list[list[StreamEvent]]:
    """Return the events of `stream` by part, without empty parts."""
    pieces: dict[int, list[StreamEvent]] = {}
    for event in stream.events:
        pieces.setdefault(part.get(event.number, 0), []).append(event)
    return [pieces[number] for number in sorted(pieces)]


def _chains(events: list[tuple[Stream, StreamEvent]]) -> Iterator[list[tuple[Stream, StreamEvent]]]:
    """Yield each message with all its forwards; local events by themselves."""
    chain: list[tuple[Stream, StreamEvent]] = []
    for stream, event in events:
        if chain and not event.kind.receives:
            yield chain
            chain = []
        chain.append((stream, event))
    if chain:
        yield chain
