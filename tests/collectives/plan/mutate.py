"""Ways to break a correct program by one small change.

Each takes a draft and a source of randomness, changes the draft in place and says whether it
found anything to change. Names in `MUTATIONS` are what the summary of the mutant test prints.
"""

import random
from collections.abc import Callable

from headrace.collectives.program import Direction, Op
from tests.collectives.plan.handmade import Draft, Key, Step

Mutation = Callable[[Draft, random.Random], bool]


def _opposite(key: Key) -> Key:
    rank, direction, peer, channel = key
    if direction == Direction.LOCAL:
        return key
    return (
        peer,
        int(Direction.RECV if direction == Direction.SEND else Direction.SEND),
        rank,
        channel,
    )


def _any_step(draft: Draft, rng: random.Random) -> tuple[Key, int]:
    return rng.choice([(key, k) for key, lane in draft.lanes.items() for k in range(len(lane))])


def _both_lanes(draft: Draft, key: Key) -> list[list[Step]]:
    return [draft.lanes[k] for k in dict.fromkeys((key, _opposite(key)))]


def _slots(draft: Draft) -> int:
    return draft.demand.slots + draft.scratch_slots


def drop_step(draft: Draft, rng: random.Random) -> bool:
    key, k = _any_step(draft, rng)
    del draft.lanes[key][k]
    return True


def drop_transfer(draft: Draft, rng: random.Random) -> bool:
    key, k = _any_step(draft, rng)
    for lane in _both_lanes(draft, key):
        del lane[k]
    return True


def drop_dependency(draft: Draft, rng: random.Random) -> bool:
    steps = [step for lane in draft.lanes.values() for step in lane if step.on]
    if not steps:
        return False
    step = rng.choice(steps)
    step.on.pop(rng.randrange(len(step.on)))
    return True


def drop_all_dependencies_of_a_step(draft: Draft, rng: random.Random) -> bool:
    steps = [step for lane in draft.lanes.values() for step in lane if step.on]
    if not steps:
        return False
    rng.choice(steps).on.clear()
    return True


def redirect_dependency(draft: Draft, rng: random.Random) -> bool:
    """Depend on another step of the rank instead."""
    key, k = _any_step(draft, rng)
    step = draft.lanes[key][k]
    others = [s for other, lane in draft.lanes.items() if other[0] == key[0] for s in lane]
    new = rng.choice(others)
    if not step.on or new is step:
        return False
    step.on[rng.randrange(len(step.on))] = new
    return True


def swap_steps(draft: Draft, rng: random.Random) -> bool:
    """Two steps of a lane change places, the other side does not."""
    key, k = _any_step(draft, rng)
    lane = draft.lanes[key]
    other = rng.randrange(len(lane))
    lane[k], lane[other] = lane[other], lane[k]
    return k != other


def swap_transfers(draft: Draft, rng: random.Random) -> bool:
    key, k = _any_step(draft, rng)
    other = rng.randrange(len(draft.lanes[key]))
    for lane in _both_lanes(draft, key):
        lane[k], lane[other] = lane[other], lane[k]
    return k != other


def swap_operands(draft: Draft, rng: random.Random) -> bool:
    """Two steps of a rank keep their places and dependencies but swap their slots."""
    key, k = _any_step(draft, rng)
    same = [s for other, lane in draft.lanes.items() if other[0] == key[0] for s in lane]
    step, other = draft.lanes[key][k], rng.choice(same)
    if step.count != other.count or step.slot in (other.slot, other.src_slot, step.src_slot):
        return False
    step.slot, other.slot = other.slot, step.slot
    return step.slot != step.src_slot and other.slot != other.src_slot


def delay_step(draft: Draft, rng: random.Random) -> bool:
    """A step moves some places later in its lane, the other side does not."""
    key, k = _any_step(draft, rng)
    lane = draft.lanes[key]
    if k == len(lane) - 1:
        return False
    lane.insert(rng.randrange(k + 1, len(lane)), lane.pop(k))
    return True


def delay_transfer(draft: Draft, rng: random.Random) -> bool:
    key, k = _any_step(draft, rng)
    lanes = _both_lanes(draft, key)
    if k == len(lanes[0]) - 1:
        return False
    later = rng.randrange(k + 1, len(lanes[0]))
    for lane in lanes:
        lane.insert(later, lane.pop(k))
    return True


def misroute_slot(draft: Draft, rng: random.Random) -> bool:
    """One side uses another slot; dependencies stay."""
    key, k = _any_step(draft, rng)
    step = draft.lanes[key][k]
    new = rng.randrange(_slots(draft) - step.count + 1)
    if new == step.slot or abs(new - step.src_slot) < step.count:
        return False
    step.slot = new
    return True


def misroute_source(draft: Draft, rng: random.Random) -> bool:
    """A send or local step reads another slot."""
    key, k = _any_step(draft, rng)
    step = draft.lanes[key][k]
    new = rng.randrange(_slots(draft) - step.count + 1)
    if step.op == Op.SEND and new != step.slot:
        step.slot = new
        return True
    if step.src_slot in (-1, new) or abs(new - step.slot) < step.count:
        return False
    step.src_slot = new
    return True


def misroute_peer(draft: Draft, rng: random.Random) -> bool:
    """A transfer reaches another rank: its receiving half moves there, to the end of a lane."""
    sends = [key for key, lane in draft.lanes.items() if key[1] == Direction.SEND and lane]
    if not sends or draft.demand.ranks < 3:
        return False
    key = rng.choice(sends)
    src, _, dst, channel = key
    k = rng.randrange(len(draft.lanes[key]))
    new = rng.choice([rank for rank in range(draft.demand.ranks) if rank not in (src, dst)])
    send, receive = draft.lanes[key].pop(k), draft.lanes[_opposite(key)].pop(k)
    receive.on = []
    place = rng.randrange(len(draft.lane(src, Direction.SEND, new, channel)) + 1)
    draft.lane(src, Direction.SEND, new, channel).insert(place, send)
    draft.lane(new, Direction.RECV, src, channel).insert(place, receive)
    return True


def misroute_half(draft: Draft, rng: random.Random) -> bool:
    """One half of a transfer goes to another lane of its rank."""
    key, k = _any_step(draft, rng)
    lanes = [o for o in draft.lanes if o[:2] == key[:2] and o != key]
    if not lanes:
        return False
    lane = draft.lanes[rng.choice(lanes)]
    lane.insert(rng.randrange(len(lane) + 1), draft.lanes[key].pop(k))
    return True


def duplicate_transfer(draft: Draft, rng: random.Random) -> bool:
    """A transfer (or local step) happens twice in a row."""
    key, k = _any_step(draft, rng)
    for lane in _both_lanes(draft, key):
        s = lane[k]
        lane.insert(k + 1, Step(s.op, s.slot, s.src_slot, s.count, list(s.on)))
    return True


def duplicate_transfer_later(draft: Draft, rng: random.Random) -> bool:
    """A transfer happens again somewhat later, both sides ordered after the first time."""
    key, k = _any_step(draft, rng)
    lanes = _both_lanes(draft, key)
    place = rng.randrange(k + 1, len(lanes[0]) + 1)
    for lane in lanes:
        s = lane[k]
        lane.insert(place, Step(s.op, s.slot, s.src_slot, s.count, [s]))
    return True


def duplicate_send(draft: Draft, rng: random.Random) -> bool:
    """Only one half is there twice."""
    key, k = _any_step(draft, rng)
    s = draft.lanes[key][k]
    draft.lanes[key].insert(k + 1, Step(s.op, s.slot, s.src_slot, s.count, list(s.on)))
    return True


def change_op(draft: Draft, rng: random.Random) -> bool:
    """Replace where values should be combined, or the reverse."""
    other = {
        Op.RECV: Op.RECV_REDUCE,
        Op.RECV_REDUCE: Op.RECV,
        Op.COPY: Op.REDUCE,
        Op.REDUCE: Op.COPY,
    }
    key, k = _any_step(draft, rng)
    step = draft.lanes[key][k]
    if step.op not in other:
        return False
    step.op = other[Op(step.op)]
    return True


def shorten_transfer(draft: Draft, rng: random.Random) -> bool:
    """Both sides cover one chunk less."""
    key, k = _any_step(draft, rng)
    steps = [lane[k] for lane in _both_lanes(draft, key)]
    if steps[0].count == 1:
        return False
    for step in steps:
        step.count -= 1
    return True


def shift_transfer(draft: Draft, rng: random.Random) -> bool:
    """Both sides use another slot, the same offset away."""
    key, k = _any_step(draft, rng)
    steps = [lane[k] for lane in _both_lanes(draft, key)]
    offset = rng.choice((-2, -1, 1, 2))
    for step in steps:
        if not 0 <= step.slot + offset <= _slots(draft) - step.count:
            return False
        if step.src_slot >= 0 and abs(step.slot + offset - step.src_slot) < step.count:
            return False
    for step in steps:
        step.slot += offset
    return True


def join_messages(draft: Draft, rng: random.Random) -> bool:
    """A transfer becomes part of the message before it: correct, unless one waits for the other."""
    key, k = _any_step(draft, rng)
    steps = [lane[k] for lane in _both_lanes(draft, key)]
    if k == 0 or steps[0].joined:
        return False
    for step in steps:
        step.joined = True
    return True


def join_whole_lane(draft: Draft, rng: random.Random) -> bool:
    """All that a lane moves becomes one message."""
    key, _ = _any_step(draft, rng)
    steps = [step for lane in _both_lanes(draft, key) for step in lane[1:]]
    for step in steps:
        step.joined = True
    return bool(steps)


def join_on_one_side(draft: Draft, rng: random.Random) -> bool:
    """The two ends disagree on where a message begins."""
    key, k = _any_step(draft, rng)
    step = draft.lanes[key][k]
    step.joined = not step.joined
    return k > 0


MUTATIONS: dict[str, Mutation] = {
    "drop a step": drop_step,
    "drop a transfer": drop_transfer,
    "drop a dependency": drop_dependency,
    "drop all of a step's dependencies": drop_all_dependencies_of_a_step,
    "redirect a dependency": redirect_dependency,
    "swap steps": swap_steps,
    "swap transfers": swap_transfers,
    "swap two steps' slots": swap_operands,
    "delay a step": delay_step,
    "delay a transfer": delay_transfer,
    "misroute one side's slot": misroute_slot,
    "misroute the source": misroute_source,
    "misroute to another rank": misroute_peer,
    "misroute one half": misroute_half,
    "duplicate a transfer": duplicate_transfer,
    "duplicate a transfer later": duplicate_transfer_later,
    "duplicate one half": duplicate_send,
    "change the op": change_op,
    "shorten a transfer": shorten_transfer,
    "shift a transfer": shift_transfer,
    "join two messages": join_messages,
    "join all of a lane": join_whole_lane,
    "join on one side": join_on_one_side,
}
