"""Ways to spoil MSCCL XML; each returns whether it changed anything."""

import random
from collections.abc import Callable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Mutation = Callable[[Element, random.Random], bool]


def blocks(algo: Element) -> list[tuple[Element, Element]]:
    return [(gpu, tb) for gpu in algo for tb in gpu if len(tb)]


def _step(algo: Element, rng: random.Random) -> tuple[Element, Element, int]:
    gpu, tb = rng.choice(blocks(algo))
    return gpu, tb, rng.randrange(len(tb))


def _renumber(tb: Element) -> None:
    for number, step in enumerate(tb):
        step.set("s", str(number))


def drop_step(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    tb.remove(tb[k])
    _renumber(tb)
    return True


def swap_steps(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    if k + 1 == len(tb):
        return False
    first, second = tb[k], tb[k + 1]
    tb.remove(first)
    tb.insert(k + 1, first)
    _renumber(tb)
    return first.attrib != second.attrib


def move_offset(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    name = rng.choice(("srcoff", "dstoff"))
    tb[k].set(name, str(int(tb[k].get(name)) + rng.choice((-1, 1))))
    return True


def other_buffer(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    name = rng.choice(("srcbuf", "dstbuf"))
    tb[k].set(name, rng.choice("ios".replace(tb[k].get(name), "")))
    return True


def other_type(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    kinds = ["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"]
    kinds.remove(tb[k].get("type"))
    tb[k].set("type", rng.choice(kinds))
    return True


def drop_dependency(algo: Element, rng: random.Random) -> bool:
    steps = [s for _, tb in blocks(algo) for s in tb if s.get("depid") != "-1"]
    if not steps:
        return False
    step = rng.choice(steps)
    step.set("depid", "-1")
    step.set("deps", "-1")
    return True


def redirect_dependency(algo: Element, rng: random.Random) -> bool:
    pairs = [(g, s) for g, tb in blocks(algo) for s in tb if s.get("depid") != "-1"]
    if not pairs:
        return False
    gpu, step = rng.choice(pairs)
    tb = rng.choice(list(gpu))
    step.set("depid", tb.get("id"))
    step.set("deps", str(rng.randrange(len(tb))))
    return True


def add_dependency(algo: Element, rng: random.Random) -> bool:
    gpu, tb, k = _step(algo, rng)
    other = rng.choice([t for t in gpu if len(t)])
    at = rng.randrange(len(other))
    tb[k].set("depid", other.get("id"))
    tb[k].set("deps", str(at))
    other[at].set("hasdep", "1")
    return True


def drop_flag(algo: Element, rng: random.Random) -> bool:
    steps = [s for _, tb in blocks(algo) for s in tb if s.get("hasdep") == "1"]
    if not steps:
        return False
    rng.choice(steps).set("hasdep", "0")
    return True


def other_peer(algo: Element, rng: random.Random) -> bool:
    _, tb = rng.choice(blocks(algo))
    name = rng.choice(("send", "recv"))
    tb.set(name, str(rng.randrange(-1, len(algo))))
    return True


def other_channel(algo: Element, rng: random.Random) -> bool:
    _, tb = rng.choice(blocks(algo))
    algo.set("nchannels", str(int(algo.get("nchannels")) + 1))
    tb.set("chan", str(int(algo.get("nchannels")) - 1))
    return True


def other_count(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    tb[k].set("cnt", str(max(1, int(tb[k].get("cnt")) + rng.choice((-1, 1)))))
    return True


def drop_threadblock(algo: Element, rng: random.Random) -> bool:
    gpu, tb = rng.choice(blocks(algo))
    gpu.remove(tb)
    for number, other in enumerate(gpu):
        other.set("id", str(number))
    return True


def repeat_step(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    copy = ElementTree.fromstring(ElementTree.tostring(tb[k]))
    tb.insert(k, copy)
    _renumber(tb)
    return True


def swap_slots(algo: Element, rng: random.Random) -> bool:
    _, tb, k = _step(algo, rng)
    _, other, j = _step(algo, rng)
    for name in ("srcoff", "dstoff"):
        first, second = tb[k].get(name), other[j].get(name)
        tb[k].set(name, second)
        other[j].set(name, first)
    return True


MUTATIONS: list[Mutation] = [
    drop_step,
    swap_steps,
    move_offset,
    other_buffer,
    other_type,
    drop_dependency,
    redirect_dependency,
    add_dependency,
    drop_flag,
    other_peer,
    other_channel,
    other_count,
    drop_threadblock,
    repeat_step,
    swap_slots,
]
