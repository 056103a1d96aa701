"""Every way to misuse the native module, one after the other; run by test_misuse.py.

Prints the name of each before it is tried, then the type of what it raised.
"""

import faulthandler
import os
import resource
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import _native

RAISED = (ValueError, TypeError, _native.CommunicationError)
WAYS: dict[str, Callable[[], object]] = {}
BUFFER = np.zeros(4096, np.float32)
AT = BUFFER.ctypes.data


def way(act: Callable[[], object]) -> Callable[[], object]:
    WAYS[act.__name__] = act
    return act


def u8(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def program(**changes: Any) -> _native.Program:
    """A copy from slot 1 to slot 0 of one rank, with `changes`."""
    one_step = {"step_lane": i32(0), "step_op": u8(3), "step_slot": i32(0)}
    columns = {"lane_direction": u8(2), "lane_peer": i32(-1), "lane_channel": i32(0), **one_step}
    columns |= {"step_source_slot": i32(1), "step_count": i32(1)}
    columns |= {"dependency_step": i32(), "dependency_on": i32()}
    numbers = {"rank": 0, "ranks": 1, "slots": 2, "scratch_slots": 0, "mark": 0}
    numbers |= {"result_slot": 0, "result_slots": 0}
    return _native.Program(**{**numbers, **columns, "kind": _native.Kind.custom, **changes})


def to_rank_1(**changes: Any) -> _native.Program:
    columns = {"lane_direction": u8(0), "lane_peer": i32(1), "step_op": u8(0), **changes}
    return program(ranks=2, **columns)


NORMAL = _native.Priority.normal


def call(of: _native.Program, *segments: Any, **changes: Any) -> _native.Call:
    arguments = {"type": _native.DataType.float32, "operator": _native.Operator.sum}
    arguments |= {"average": False, "epoch": 0, "priority": _native.Priority.normal}
    arguments |= {"deadline_s": 2.0, **changes}
    return _native.Call(of, list(segments) or [(AT, 64, 1, 2)], **arguments)


def moved(segments: int) -> _native.Call:
    of = program()
    rows = [(AT, 64, 1, 2)] * segments
    made = _native.Call(
        of, rows, _native.DataType.uint8, _native.Operator.sum, False, 0, NORMAL, 1.0
    )
    return made.at(AT, 0, NORMAL, 1.0)


def executor(rank: int = 0, ranks: int = 1, **changes: Any) -> _native.Executor:
    arguments = {"channels": 1, "threads": 1, "completions": _native.Completions()}
    return _native.Executor(rank=rank, ranks=ranks, **{**arguments, "fail_at_call": 0, **changes})


def run(of: _native.Program, *segments: Any, **changes: Any) -> None:
    one = executor()
    one.connect([], 1.0)
    one.run(call(of, *segments, **changes))


def pair() -> list[_native.Executor]:
    both, links = [executor(rank, 2) for rank in range(2)], ([], [])
    for channel in range(-2, _native.data_channels(1)):
        ends = socket.socketpair()
        for rank, end in enumerate(ends):
            end.setblocking(False)
            links[rank].append((end.detach(), 1 - rank, channel, -1, b""))
    for one, rows in zip(both, links, strict=True):
        one.connect(rows, 60.0)
    return both


def message(
    act: str,
    at: int = AT,
    nbytes: int = 4,
    *,
    peer: int = 1,
    tag: int = 0,
    deadline_s: float = 1.0,
    of: _native.Executor | None = None,
) -> int:
    return getattr(of or pair()[0], act)(at, nbytes, peer, tag, deadline_s, False, 0)


def connect(channels: list[int], memory: int = -1, peer: int = 1, key: bytes = b"") -> None:
    one, kept, rows = executor(0, 2), [], []
    for channel in channels:
        mine, other = socket.socketpair()
        mine.setblocking(False)
        kept.append(other)
        held = os.dup(memory) if memory >= 0 else -1
        rows.append((mine.detach(), peer, channel, held, key))
    one.connect(rows, 0.5)


def memory_of(nbytes: int) -> int:
    fd = os.memfd_create("misuse")
    os.ftruncate(fd, nbytes)
    return fd


def declare() -> None:
    """Add the ways that differ in a value only."""
    many = np.full(1 << 20, 3, np.uint8)
    programs: dict[str, dict[str, Any]] = {
        "no lanes' directions": {"lane_direction": u8()},
        "more lanes than channels": {"lane_peer": i32(-1, -1), "lane_direction": u8(2, 2)},
        "more operations than lanes": {"step_op": many},
        "fewer slots than operations": {"step_op": u8(3, 3), "step_lane": i32(0, 0)},
        "fewer counts": {"step_count": i32()},
        "a dependency on nothing": {"dependency_step": i32(0)},
        "a dependency on -1": {"dependency_step": i32(0), "dependency_on": i32(-1)},
        "a lane -1": {"step_lane": i32(-1)},
        "a count of -5": {"step_count": i32(-5)},
        "a count of 2^31 - 1": {"step_count": i32(2**31 - 1), "step_slot": i32(2**31 - 1)},
        "operation 99": {"step_op": u8(99)},
        "direction 99": {"lane_direction": u8(99)},
        "results out of range": {"result_slot": 2**32 - 1, "result_slots": 2**32 - 1},
        "scratch without slots": {"slots": 0, "scratch_slots": 2},
        "4e9 scratch slots": {"scratch_slots": 4_000_000_000},
        "4e9 slots": {"slots": 2**32 - 1},
        "slots of -1": {"slots": -1},
        "rank -1": {"rank": -1},
        "rank 1 of 1": {"rank": 1},
        "no ranks": {"ranks": 0},
        "a table for a column": {"step_op": u8(3).reshape(1, 1)},
    }
    for name, changes in programs.items():
        WAYS[f"a program with {name}"] = lambda changes=changes: program(**changes)
    for channel in (-1, 2**31 - 1, 1 << 16, 5):
        WAYS[f"a program on channel {channel}"] = lambda channel=channel: pair()[0].run(
            call(to_rank_1(lane_channel=i32(channel)))
        )
    segments: dict[str, Any] = {
        "2^32 - 1 blocks": (AT, 64, 2**32 - 1, 1),
        "2^32 - 1 chunks": (AT, 64, 1, 2**32 - 1),
        "2^32 - 1 blocks and chunks": (AT, 64, 2**32 - 1, 2**32 - 1),
        "2^63 elements": (AT, 1 << 63, 1, 2),
        "2^62 elements": (AT, 1 << 62, 1, 2),
        "2^64 - 1 elements": (AT, (1 << 64) - 1, 1, 2),
        "2^64 elements": (AT, 1 << 64, 1, 2),
        "address 0": (0, 64, 1, 2),
        "address -1": (-1, 64, 1, 2),
        "address 2^64 - 1": ((1 << 64) - 1, 64, 1, 2),
        "no chunks": (AT, 64, 1, 0),
        "two numbers": (1, 2),
        "five numbers": (AT, 1, 1, 1, 1),
        "None": None,
        "text": "segment",
    }
    for name, row in segments.items():
        WAYS[f"a segment of {name}"] = lambda row=row: run(program(), row)
    executors: dict[str, dict[str, Any]] = {
        **{f"{ranks} ranks": {"ranks": ranks} for ranks in (0, -1, 2**31 - 1, 2**31)},
        **{f"rank {rank} of 2": {"rank": rank, "ranks": 2} for rank in (-1, 2, 5)},
        **{f"{n} channels": {"channels": n} for n in (0, -1, 2**31 - 1)},
        **{f"{n} threads": {"threads": n} for n in (0, -5, 100_000)},
        "no completions": {"completions": None},
    }
    for name, changes in executors.items():
        WAYS[f"an executor of {name}"] = lambda changes=changes: executor(**changes)
    small, large = memory_of(4096 * 3), memory_of(4096 + 2 * 524288)
    null = os.open("/dev/null", os.O_RDWR)
    links: dict[str, Callable[[], object]] = {
        "none": lambda: connect([]),
        "one missing": lambda: connect([-2, -1, 0, 1]),
        "one too many": lambda: connect([-2, -1, 0, 1, 2, 2]),
        "data twice": lambda: connect([-2, -1, 0, 0, 0]),
        "no messages": lambda: connect([-2, 0, 1, 2, 2]),
        "control twice": lambda: connect([-2, -2, 0, 1, 2]),
        "channel -3": lambda: connect([-3, -1, 0, 1, 2]),
        "channel 3": lambda: connect([-2, -1, 0, 1, 3]),
        "itself": lambda: connect([-2, -1, 0, 1, 2], peer=0),
        "rank -1": lambda: connect([-2, -1, 0, 1, 2], peer=-1),
        "no memory": lambda: connect([-2, -1, 0, 1, 2], memory=null),
        "too little memory": lambda: connect([-2, -1, 0, 1, 2], memory=small),
        "memory that may shrink": lambda: connect([-2, -1, 0, 1, 2], memory=large),
        "a short key": lambda: connect([-2, -1, 0, 1, 2], key=b"short"),
        "a closed descriptor": lambda: executor(0, 2).connect(
            [(9999, 1, channel, -1, b"") for channel in range(-2, 3)], 1.0
        ),
        "descriptor -1": lambda: executor(0, 2).connect(
            [(-1, 1, channel, -1, b"") for channel in range(-2, 3)], 1.0
        ),
        "no rows": lambda: executor(0, 2).connect([(1, 2)] * 5, 1.0),
    }
    WAYS.update({f"links: {name}": act for name, act in links.items()})
    for value in (float("nan"), -1.0):
        WAYS[f"connect with deadline {value}"] = lambda value=value: executor().connect([], value)
        WAYS[f"call with deadline {value}"] = lambda value=value: run(program(), deadline_s=value)
        WAYS[f"receive with deadline {value}"] = lambda value=value: message(
            "receive", deadline_s=value
        )
        WAYS[f"take for {value}"] = lambda value=value: _native.Completions().take(value)
    for at, nbytes in ((0, 1 << 20), (AT, 1 << 63), ((1 << 64) - 8, 16), (-1, 4)):
        for act in ("send", "receive"):
            WAYS[f"{act} of {nbytes} bytes at {'memory' if at == AT else at}"] = (
                lambda act=act, at=at, n=nbytes: message(act, at, n)
            )
    WAYS["pacing of rank 0"] = lambda: pair()[0].set_pacing(0, 1)
    for peer in (-2, 2, 2**31 - 1):
        for act in ("send", "receive"):
            WAYS[f"{act} with rank {peer}"] = lambda act=act, peer=peer: message(act, peer=peer)
        WAYS[f"pacing of rank {peer}"] = lambda peer=peer: pair()[0].set_pacing(peer, 1)
    for tag in (-1, 1 << 32):
        WAYS[f"tag {tag}"] = lambda tag=tag: message("send", tag=tag)
    WAYS["memory of 2^62 bytes"] = lambda: _native.shared_buffer(1 << 62)
    for act in ("wait", "poll", "cancel"):
        WAYS[f"{act} for an unknown handle"] = lambda act=act: getattr(pair()[0], act)(12345)
    unmade = (_native.Program, _native.Call, _native.Executor, _native.Completions)
    WAYS["a call of an unmade program"] = lambda: call(unmade[0].__new__(unmade[0]))
    WAYS["a run of an unmade call"] = lambda: executor().run(unmade[1].__new__(unmade[1]))
    for count in (0, 2):
        WAYS[f"an address for {count} segments"] = lambda count=count: moved(count)
    WAYS["an address for an unmade call"] = lambda: (
        unmade[1].__new__(unmade[1]).at(AT, 0, NORMAL, 1.0)
    )
    WAYS["an unmade executor"] = lambda: unmade[2].__new__(unmade[2]).close()
    WAYS["unmade completions"] = lambda: executor(completions=unmade[3].__new__(unmade[3]))


@way
def run_before_connect() -> None:
    executor().run(call(program()))


@way
def run_after_close() -> None:
    one = pair()[0]
    one.close()
    one.close()
    assert one.statistics().size == 0
    assert one.counters()["collectives"] == 0
    one.run(call(to_rank_1()))


@way
def connect_twice() -> None:
    one = executor()
    one.connect([], 1.0)
    one.connect([], 1.0)


@way
def connect_after_close() -> None:
    one = executor()
    one.close()
    one.connect([], 1.0)


@way
def connect_after_abort() -> None:
    one = executor()
    one.abort("no more")
    one.connect([], 1.0)


@way
def connect_after_failing_to() -> None:
    one = executor(0, 2)
    for _ in range(2):
        try:
            one.connect([(-1, 1, channel, -1, b"") for channel in range(-2, 3)], 1.0)
        except _native.CommunicationError:
            continue
    message("send", of=one)


@way
def abandon_in_the_process_that_made_it() -> None:
    pair()[0].abandon()


@way
def wait_twice() -> None:
    one = executor()
    one.connect([], 1.0)
    handle = one.submit(call(program()), False)
    one.wait(handle)
    one.wait(handle)


@way
def close_beside_waits() -> None:
    both, errors = pair(), []

    def waits(handle: int) -> None:
        try:
            both[0].wait(handle)
        except _native.CommunicationError as error:
            errors.append(error)

    handles = [message("receive", tag=tag, deadline_s=600.0, of=both[0]) for tag in range(4)]
    threads = [threading.Thread(target=waits, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    both[0].close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == len(handles)
    raise errors[0]


def main() -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    declare()
    run(program())  # these are no misuse
    message("send")
    message("receive")
    for name, act in WAYS.items():
        print(name, end=": ", flush=True)
        try:
            act()
        except RAISED as error:
            print("raised", type(error).__name__, flush=True)
        else:
            print("raised nothing", flush=True)
    print(len(WAYS), "ways tried", flush=True)


if __name__ == "__main__":
    main()
