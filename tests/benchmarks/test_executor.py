"""The executor claim's pure parts: patterns, limits, turns, schedules, the soak's calls."""

import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st

from benchmarks.executor import (
    cpu,
    memory,
    overlap,
    overlap_rank,
    patterns,
    run,
    schedule,
    soak_calls,
    tcp,
    turns,
)
from benchmarks.executor.patterns import COLLECTIVES, Buffers
from headrace.collectives.demand import Collective

MIB = turns.MIB
PAGE = Path(run.__file__).parent / "README.md"


def run_collective(buffers: list[Buffers]) -> None:
    """Do by NumPy what the collective of these ranks' buffers is."""
    ranks = len(buffers)
    sources = [each.source.copy() for each in buffers]
    match buffers[0].collective:
        case Collective.ALLREDUCE:
            results = [sum(sources)] * ranks
        case Collective.ALLGATHER:
            results = [np.concatenate(sources)] * ranks
        case Collective.REDUCE_SCATTER:
            results = np.split(sum(sources), ranks)
        case _:
            blocks = [np.split(source, ranks) for source in sources]
            results = [np.concatenate([row[rank] for row in blocks]) for rank in range(ranks)]
    for each, result in zip(buffers, results, strict=True):
        each.target[:] = result


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_right_results_pass_and_others_do_not(
    collective: Collective, ranks: int, in_place: bool
) -> None:
    size = 4 * ranks * 1500  # longer than a period, and no multiple of it
    buffers = [
        Buffers.make(collective, size, rank, ranks, in_place=in_place) for rank in range(ranks)
    ]
    for rank, each in enumerate(buffers):
        each.fill(rank, ranks)
        with pytest.raises(RuntimeError, match=rf"{collective}: block . of rank {rank} is wrong"):
            each.check(rank, ranks)
    run_collective(buffers)
    for rank, each in enumerate(buffers):
        each.check(rank, ranks)
        for place in (0, each.target.size // 2, each.target.size - 1):
            kept = float(each.target[place])
            each.target[place] += 1
            with pytest.raises(RuntimeError, match="wrong"):
                each.check(rank, ranks)
            each.target[place] = kept
        each.target[:] = np.roll(each.target, 1)
        with pytest.raises(RuntimeError, match="wrong"):
            each.check(rank, ranks)


def test_blocks_of_all_pairs_differ() -> None:
    rows = [patterns.given(Collective.ALL_TO_ALL, rank, 4) for rank in range(4)]
    assert len({row for each in rows for row in each}) == 16


def test_allreduces_of_their_own_results_stay_exact() -> None:
    ranks, calls = 4, cpu.MOST_CALLS
    buffers = [
        Buffers.make(Collective.ALLREDUCE, 4 * 1500, rank, ranks, in_place=True)
        for rank in range(ranks)
    ]
    for rank, each in enumerate(buffers):
        each.fill(rank, ranks)
    for _ in range(calls):
        run_collective(buffers)
    buffers[1].check(1, ranks, times=calls)
    with pytest.raises(RuntimeError, match="wrong"):
        buffers[1].check(1, ranks, times=calls - 1)


def test_buffers_in_place_share_memory() -> None:
    def shared(collective: Collective, *, in_place: bool) -> bool:
        each = Buffers.make(collective, 64, 1, 4, in_place=in_place)
        return np.shares_memory(each.source, each.target)

    assert [shared(c, in_place=True) for c in COLLECTIVES] == [True, True, True, False]
    assert [shared(c, in_place=False) for c in COLLECTIVES] == [True, False, False, False]
    own = Buffers.make(Collective.REDUCE_SCATTER, 64, 1, 4, in_place=True)
    own.target[:] = 7
    assert np.flatnonzero(own.source == 7).tolist() == [4, 5, 6, 7]


def test_the_memory_limit_is_that_of_the_page() -> None:
    in_buffers = {c: memory.touched_bytes(c, MIB, 4) / MIB for c in COLLECTIVES}
    assert in_buffers == {
        Collective.ALLREDUCE: 9,
        Collective.ALLGATHER: 4,
        Collective.REDUCE_SCATTER: 5,
        Collective.ALL_TO_ALL: 8,
    }
    said = re.findall(r"^\| ([a-z-]+) \|.*\| (\d) S \|$", PAGE.read_text(), re.MULTILINE)
    assert {Collective(name.replace("-", "_")): int(count) for name, count in said} == in_buffers
    # all ranks copying S in 8 us is 1 S per us, so an all-to-all, 8 S, takes as long
    assert memory.limit_us(Collective.ALL_TO_ALL, MIB, 4, 8.0) == pytest.approx(8.0)
    assert memory.limit_us(Collective.ALLREDUCE, MIB, 4, 8.0) == pytest.approx(9.0)


def test_what_an_allreduce_must_send() -> None:
    assert cpu.moved_bytes(MIB, 2) == 2 * MIB
    assert cpu.moved_bytes(MIB, 4) == 6 * MIB


@pytest.mark.parametrize("quick", [True, False])
def test_turns_are_neither_empty_nor_endless(quick: bool) -> None:
    for size in (8, 1024, MIB, 16 * MIB, 64 * MIB, 256 * MIB):
        case = turns.Case.of(Collective.ALLREDUCE, size, quick=quick)
        assert 1 <= case.pool <= 32
        assert 3 <= case.bursts <= 12
        assert case.pool == 1 or case.pool * size <= 4 * MIB
        assert case.pool * case.bursts * size <= max(80 * MIB, 3 * size)


def test_a_calls_time_is_the_slowest_ranks() -> None:
    assert turns.slowest_us([{"us": [1.0, 5.0]}, {"us": [2.0, 3.0]}]) == [2.0, 5.0]
    with pytest.raises(ValueError, match="shorter"):
        turns.slowest_us([{"us": [1.0, 5.0]}, {"us": [2.0]}])


def test_every_name_begins_a_round_once() -> None:
    names = ["a", "b", "c"]
    assert [turns.rotated(names, by)[0] for by in range(4)] == ["a", "b", "c", "a"]
    assert turns.rotated(names, 2) == ["c", "a", "b"]


def test_what_was_not_measured_keeps_no_bar() -> None:
    assert turns.ratio({"gloo": 6.0, "headrace": 2.0}, "gloo", "headrace") == 3.0
    assert turns.ratio({"native": 2.0}, "openmpi", "native") is None
    assert turns.least([3.0, 2.0]) == 2.0
    assert turns.least([3.0, None]) is None
    assert turns.least([]) is None


def test_rates_are_compared_within_a_round() -> None:
    """All are slow in the second round, and iperf3 is in the third alone."""
    rates = {"iperf3": [10.0, 5.0, 5.0], "native": [9.0, 4.5, 9.0]}
    assert tcp.of_iperf3(rates) == {"iperf3": 1.0, "native": 0.9}
    assert tcp.of_iperf3({"native": [9.0]}) == {}


def test_a_size_is_written_as_people_do() -> None:
    assert [turns.size_text(n) for n in (8, 1024, 64 * MIB)] == ["8 B", "1 KiB", "64 MiB"]


def step(measured: float, ready: list[float], alone: list[float]) -> schedule.Step:
    return schedule.Step(ready=ready, backward=ready[-1], alone=alone, measured=measured)


def test_long_computing_hides_all_but_the_last_bucket() -> None:
    found = step(4.0, [1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
    assert (found.serial, found.ideal) == (4.5, 3.5)
    assert (found.can_hide, found.hidden, found.share) == (1.0, 0.5, 0.5)


def test_short_computing_hides_as_much_as_fits() -> None:
    found = step(7.0, [1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert (found.serial, found.ideal) == (9.0, 7.0)
    assert found.share == 1.0
    assert schedule.ideal_ends([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == [3.0, 5.0, 7.0]


@examples(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=2, max_size=8),
    st.floats(0, 1),
)
def test_the_share_is_one_at_the_ideal_and_none_in_series(
    buckets: list[tuple[float, float]], share: float
) -> None:
    ready = np.cumsum([gap for gap, _ in buckets]).tolist()
    ends = step(0.0, ready, [took for _, took in buckets])
    assert ends.backward < ends.ideal <= ends.serial
    between = ends.serial - share * ends.can_hide
    assert step(between, ready, [took for _, took in buckets]).share == pytest.approx(
        share, abs=1e-6
    )


def rounds() -> list[list[dict]]:
    """Three rounds of two ranks; rank 1 begins 0.05 s later and has its buckets 0.05 s later."""

    def taken(rank: int, end: float) -> dict:
        began = 5.0 + 0.05 * rank
        ready, ended = [began + 0.1, began + 0.2], [began + 0.2, began + 0.3]
        return {"began": began, "end": began + end, "ready": ready, "ended": ended, "idle": 0.5}

    def probes(rank: int, took: float) -> list[tuple[float, float]]:
        return [(7.0 + 0.5 * rank, 7.5 + took)] * 3

    return [
        [
            {
                "alone": taken(rank, 0.25),
                "headrace": {**taken(rank, end), "allreduces": probes(rank, 0.1)},
                "gloo": {**taken(rank, 0.5), "allreduces": probes(rank, 0.2)},
            }
            for rank in range(2)
        ]
        for end in (0.3, 0.35, 0.9)
    ]


def test_a_step_is_the_jobs_from_its_last_ranks_beginning_to_its_last_ranks_end() -> None:
    began, ready, ended, end = overlap.timeline(rounds()[0], "headrace")
    assert began == 5.05
    assert ready == pytest.approx([0.1, 0.2])
    assert ended == pytest.approx([0.2, 0.3])
    assert end == pytest.approx(0.3)
    late = rounds()[0]
    late[0]["headrace"]["ready"][1] += 0.3  # a bucket is ready when it is at all ranks
    assert overlap.timeline(late, "headrace")[1] == pytest.approx([0.1, 0.45])


def test_the_typical_step_is_of_medians() -> None:
    found = overlap.typical(rounds(), "headrace")
    assert found.measured == pytest.approx(0.35)
    assert found.serial == pytest.approx(0.45)
    assert found.ideal == pytest.approx(0.3)
    assert found.share == pytest.approx(2 / 3)


def test_every_emulated_setting_counts_one_host_too() -> None:
    counted = [setting for setting in overlap.SETTINGS if setting.in_bar]
    assert [setting.compute for setting in counted] == ["emulated"] * 3
    assert {setting.hosts for setting in counted} == {1, 4}
    assert all(setting.compute == "real" for setting in overlap.SETTINGS if not setting.in_bar)


def test_processors_are_idle_at_most_all_the_time() -> None:
    idle, everything = overlap_rank.processor_ticks()
    assert 0 <= idle <= everything
    steps = rounds()
    for each, share in zip(steps, (0.2, 0.3, 0.6), strict=True):
        each[0]["headrace"]["idle"] = share
        each[1]["headrace"]["idle"] = 0.1
    assert overlap.idle_share(steps, "headrace") == 0.3


def test_the_spread_is_of_steps_that_send_nothing() -> None:
    steps = rounds()
    for each, end in zip(steps, (0.2, 0.3, 0.6), strict=True):
        each[1]["alone"]["end"] = 5.05 + end
    assert overlap.spread(steps) == pytest.approx(0.2)  # from 0.25 to 0.45


def test_the_trace_has_every_bucket_of_the_last_step() -> None:
    events = overlap.trace(rounds()[-1])["traceEvents"]
    assert Counter(event["name"] for event in events if event["pid"] == 1) == {
        **{f"backward pass ({mode})": 1 for mode in ("alone", "headrace", "gloo")},
        **{
            f"allreduce of bucket {bucket} ({mode})": 1
            for bucket in range(2)
            for mode in ("alone", "headrace", "gloo")
        },
    }
    (last,) = [e for e in events if e["pid"] == 0 and e["name"] == "backward pass (headrace)"]
    assert (last["ts"], last["dur"]) == (0.0, pytest.approx(0.9e6))


def test_all_ranks_draw_the_same_calls_of_every_kind() -> None:
    one, other = random.Random(1), random.Random(1)
    calls = [soak_calls.draw(one, number) for number in range(3000)]
    assert calls == [soak_calls.draw(other, number) for number in range(3000)]
    assert {call.kind for call in calls} == set(soak_calls.KINDS)
    assert {call.dtype for call in calls} == set(soak_calls.DTYPES)
    assert {call.group for call in calls} == set(range(len(soak_calls.GROUPS)))
    assert {call.operator for call in calls} == {"sum", "max", "min"}
    assert all(0 <= call.root < len(call.members) for call in calls)
    assert min(call.elements for call in calls) == 1
    assert max(call.elements for call in calls) > 1 << 16


@pytest.mark.parametrize("dtype", soak_calls.DTYPES, ids=str)
def test_a_soaks_sums_are_exact_in_every_type(dtype: torch.dtype) -> None:
    call = soak_calls.Call(
        number=3,
        kind="all_reduce",
        group=0,
        dtype=dtype,
        elements=40,
        operator="sum",
        root=0,
        pending=False,
    )
    exact = sum(soak_calls.block(call, source, 2).to(torch.float64) for source in range(4))
    found = soak_calls.reduced(call, 2)
    assert found.dtype == dtype
    assert torch.equal(found.to(torch.float64), exact)
    assert not torch.equal(found, soak_calls.reduced(call, 1))


def test_uneven_blocks_are_some_of_them_empty() -> None:
    call = soak_calls.draw(random.Random(2), 5)
    sizes = {soak_calls.uneven(call, s, d) for s in range(4) for d in range(4)}
    assert 0 in sizes
    assert max(sizes) <= call.elements


def test_bars_are_on_the_page() -> None:
    page = PAGE.read_text()
    for name in (name for section in run.SECTIONS for name in section.bars()):
        assert f"`{name}`" in page or name.startswith("soak-"), name
