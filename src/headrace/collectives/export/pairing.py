"""Assignment of a rank's lanes to threadblocks.

A receive and the send that forwards it can be one fused step only inside one threadblock; so each
receive lane is paired with the send lane (of the same channel) that forwards most of its units.
Lanes that forward nothing stay alone and concurrent, unless a GPU would have more threadblocks
than an executor accepts.
"""

from collections import Counter
from dataclasses import dataclass

from headrace.collectives.export.units import Units
from headrace.collectives.program import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGroup:
    """The lanes of one threadblock; -1 where there is none."""

    send: int = -1
    recv: int = -1
    local: int = -1


def paired_lanes(units: Units, ranks: int, limit: int) -> list[list[LaneGroup]]:
    """Return the groups of every rank, sorted by channel and peers.

    Parameters
    ----------
    limit : more threadblocks than this and any send and receive lane of a channel are paired.
    """
    by_rank: list[list[int]] = [[] for _ in range(ranks)]
    for lane, key in enumerate(units.lanes):
        by_rank[key[0]].append(lane)
    passed = _passed_on(units)
    return [_pair(units, lanes, passed, limit) for lanes in by_rank]


def separated(
    groups: list[list[LaneGroup]], fused: list[list[bool]], limit: int
) -> list[list[LaneGroup]]:
    """Return the groups, split where fusion does not pay, as far as `limit` allows.

    Parameters
    ----------
    fused : by rank and group, whether sending and receiving in one threadblock pays.
    """
    result: list[list[LaneGroup]] = []
    for of_rank, pays in zip(groups, fused, strict=True):
        room = limit - len(of_rank)
        parted: list[LaneGroup] = []
        for group, keep in zip(of_rank, pays, strict=False):
            if keep or group.send < 0 or group.recv < 0 or room <= 0:
                parted.append(group)
                continue
            room -= 1
            parted += [LaneGroup(send=group.send), LaneGroup(recv=group.recv)]
        result.append(parted)
    return result


def _passed_on(units: Units) -> Counter[tuple[int, int]]:
    """Count by (receive lane, send lane) the units that one receives and the other forwards."""
    passed: Counter[tuple[int, int]] = Counter()
    for unit, waits in enumerate(units.after):
        if units.lanes[units.lane[unit]][1] != Direction.SEND:
            continue
        for on in waits:
            if (
                units.lanes[units.lane[on]][1] == Direction.RECV
                and units.slot[on] == units.slot[unit]
            ):
                passed[units.lane[on], units.lane[unit]] += 1
    return passed


def _pair(
    units: Units, lanes: list[int], passed: Counter[tuple[int, int]], limit: int
) -> list[LaneGroup]:
    sends = [lane for lane in lanes if units.lanes[lane][1] == Direction.SEND]
    recvs = [lane for lane in lanes if units.lanes[lane][1] == Direction.RECV]
    locals_ = [lane for lane in lanes if units.lanes[lane][1] == Direction.LOCAL]
    partner: dict[int, int] = {}

    def join(recv: int, send: int) -> None:
        if recv in partner or send in partner or units.lanes[recv][3] != units.lanes[send][3]:
            return
        partner[recv], partner[send] = send, recv

    candidates = [(-passed[recv, send], recv, send) for recv in recvs for send in sends]
    for weight, recv, send in sorted(candidates):
        if weight < 0:
            join(recv, send)
    if len(lanes) - len(partner) // 2 > limit:
        for _, recv, send in sorted(candidates):
            join(recv, send)
    groups = [LaneGroup(send=send, recv=partner.get(send, -1)) for send in sends]
    groups += [LaneGroup(recv=recv) for recv in recvs if recv not in partner]
    groups += [LaneGroup(local=lane) for lane in locals_]
    return sorted(groups, key=lambda group: _order(units, group))


def _order(units: Units, group: LaneGroup) -> tuple[int, int, int]:
    to, of = (units.lanes[lane][2] if lane >= 0 else -1 for lane in (group.send, group.recv))
    return units.lanes[max(group.send, group.recv, group.local)][3], to, of
