"""The network claim's pure parts: beds, changes, recovery, the loop, the emulated device."""

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from benchmarks.instruments import models
from benchmarks.instruments.beds import Bed, groups_text, ring_crossings
from benchmarks.network import autotune, loop, overhead, table1, training, two_level
from headrace.collectives.plan.ir.statistics import ProgramStatistics


def test_a_bed_is_a_testbed_with_shuffled_ranks() -> None:
    bed = Bed(name="x", racks=(5, 2, 1), host_mbit=200, uplink_mbit=100, seed=3, slow={2: 50})
    assert bed.ranks == 8
    assert sorted(bed.order) == list(range(8)) != bed.order
    assert sorted(map(len, bed.groups)) == [1, 2, 5]
    racks = {bed.spec.hosts[bed.order[rank]].rack for rank in bed.groups[0]}
    assert len(racks) == 1
    assert bed.spec.host_named["host2"].bytes_per_s == 50e6 / 8
    assert bed.oversubscribed == 10
    assert Bed(name="x", racks=(4,), host_mbit=9, uplink_mbit=1).oversubscribed == 1


@pytest.mark.parametrize(
    ("groups", "ways"),
    [
        (((0, 1, 2, 3),), 0),
        (((0, 1), (2, 3)), 1),
        (((0, 2), (1, 3)), 2),
        (((0, 3), (1, 2)), 1),  # the ring closes between 3 and 0
        (((0, 2, 4), (1, 3, 5)), 3),
    ],
)
def test_a_rings_ways_out_are_counted(groups: tuple[tuple[int, ...], ...], ways: int) -> None:
    assert ring_crossings(groups, sum(map(len, groups))) == ways


def test_shuffled_training_beds_are_as_most_orders_are() -> None:
    for bed in training.BEDS:
        if bed.seed is not None:
            ways = [
                Bed(name="x", racks=bed.racks, host_mbit=1, uplink_mbit=1, seed=seed).ring_crossings
                for seed in range(1, 100)
            ]
            assert bed.ring_crossings == max(set(ways), key=ways.count)


def test_groups_are_written_in_order() -> None:
    assert groups_text(((1, 3), (0, 2))) == "02|13"
    assert groups_text((tuple(range(1, 11)), (0, 11))) == "0 11|1 2 3 4 5 6 7 8 9 10"


@pytest.mark.parametrize("quick", [True, False])
def test_2lhas_second_testbed_is_not_in_quick(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    over = dict.fromkeys(two_level.PAPER, 1.0)
    monkeypatch.setattr(two_level, "_bed", lambda *_args, **_kwargs: over)
    given: list[str] = []
    report = SimpleNamespace(bar=lambda name, _: given.append(name), note=lambda _: None)
    two_level.measure(report, quick=quick)
    assert set(given) == set(two_level.bars()) - (two_level.NOT_IN_QUICK if quick else set())
    assert len(two_level.NOT_IN_QUICK) == 4


def test_a_row_of_table_1_agrees_or_not() -> None:
    counted = ProgramStatistics(rounds=4, messages=9, wire=14.0, across=2.0)
    row = {"name": "2LHA", "counted": counted, "why": ""}
    assert table1.agrees(table1.Table1Row(paper=(4, 14, 2), **row))
    assert not table1.agrees(table1.Table1Row(paper=(4, 14, 2.5), **row))
    assert not table1.agrees(table1.Table1Row(paper=(4, 14, float("nan")), **row))


@pytest.mark.parametrize("phase", [20, 32])
def test_changes_leave_time_to_recover_and_to_compare(phase: int) -> None:
    for seed in range(50):
        plan, steps = autotune.changes(phase, seed)
        ends = [change.at for change in plan] + [steps]
        gaps = [b - a for a, b in pairwise(ends)]
        assert min(gaps) >= phase >= autotune.WITHIN + 8
        compared = autotune.compared_at(plan, steps)
        assert len(compared) == len(plan)
        for change, at in zip(plan, map(int, compared), strict=True):
            assert at - change.at > autotune.WITHIN
        assert [change.share for change in plan] == [0.4, 1.0, 0.4, 1.0]
    drawn = {autotune.changes(phase, seed)[0][2].at for seed in range(50)}
    assert len(drawn) > 5
    assert autotune.changes(phase) == autotune.changes(phase)


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        ([100.0] * 12, 0),
        ([300.0] * 4 + [100.0] * 12, 2),  # of the five from there on, three are fast
        ([300.0] * 4 + [110.0] * 12, 2),
        ([300.0] * 4 + [112.0] * 12, None),
        ([300.0, 100.0] * 8, 1),
        ([100.0, 300.0] * 4, 0),  # three of the first five are fast
        ([], None),
    ],
)
def test_recovery_is_in_the_median_of_five(times: list[float], steps: int | None) -> None:
    assert autotune.recovered_in(times, 100.0) == steps


def test_an_interval_holds_its_mean() -> None:
    mean, low, high = overhead.interval([0.01, 0.02, 0.03])
    assert mean == pytest.approx(0.02)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(4.303 * 0.01 / 3**0.5, 1e-3)


def test_the_networks_share_is_what_computing_does_not_explain() -> None:
    assert training.network_share(100.0, 30.0) == pytest.approx(0.7)
    assert training.network_share(100.0, 120.0) == 0.0


class FakeDistributed:
    """Stands for torch.distributed in a job of two ranks, of which this is rank 0."""

    def __init__(self, sizes: list[int]) -> None:
        self.other = [loop._numbers(1, k, size) for k, size in enumerate(sizes)]
        self.spoil = 0.0
        self.number = self.call = 0

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 2

    def all_reduce(self, bucket: torch.Tensor, **_: object) -> SimpleNamespace:
        bucket += self.other[self.call % len(self.other)] * 2.0 ** (self.number % 8)
        bucket[0] += self.spoil
        self.call += 1
        return SimpleNamespace(wait=lambda: None)


def stepped(monkeypatch: pytest.MonkeyPatch, spoils: list[float], epochs: list[int]) -> loop.Loop:
    sizes = [4096, 400]
    everybody = FakeDistributed(sizes)
    monkeypatch.setattr(loop, "dist", everybody)
    made = loop.Loop(sizes, 0.0)
    for number, (spoil, epoch) in enumerate(zip(spoils, epochs, strict=True)):
        everybody.number, everybody.spoil = number, spoil
        made.step(number, SimpleNamespace(switch=SimpleNamespace(epoch=epoch)))
    return made


def test_right_results_are_the_same_bits_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped(monkeypatch, [0.0] * 20, [0] * 20)
    assert (made.calls, made.wrong, made.changed) == (40, 0, 0)
    assert sorted(made.digests()) == ["0.0", "0.1"]


def test_rounding_is_told_from_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped(monkeypatch, [0.0, 1e-6, 1e-6], [0, 0, 1])
    assert (made.wrong, made.changed) == (0, 2)  # another plan may round otherwise
    made = stepped(monkeypatch, [0.0, 0.1, 0.1], [0, 0, 1])
    assert (made.wrong, made.changed) == (4, 2)


def test_the_emulated_device_sleeps_and_gives_every_parameter_a_gradient() -> None:
    workload = models.WORKLOADS["few-huge"]
    stages = workload.stages()
    device = models.Emulated(stages, [(0.01, 0.02)] * len(stages), bias=0.5)
    began = time.perf_counter()
    device(workload.inputs(0)).backward()
    assert time.perf_counter() - began >= 0.06
    token = float(workload.inputs(0)[0, 0])
    for parameter in device.parameters():
        wanted = 0.1 * parameter.detach() + 0.5 + 0.01 * token
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted)


@pytest.mark.parametrize("name", models.WORKLOADS)
def test_recorded_times_are_one_a_stage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "RECORDINGS", 1)
    workload = models.WORKLOADS[name]
    times = models.record(workload)
    assert len(times) == len(workload.stages())
    assert all(forward > 0 and backward > 0 for forward, backward in times)
    loss = models.Chain(workload.stages())(workload.inputs(1))
    assert loss.shape == ()


@pytest.mark.parametrize(("racks", "each"), [(2, 4), (4, 2), (4, 4)])
def test_table_1_of_plink(racks: int, each: int) -> None:
    """The paper's figures hold but for the ring and the tree, whose rows give reasons."""
    rows = {row.name: row for row in table1.table1(racks, each)}
    n = racks * each
    for name in ("PS (fully sharded)", "Halving doubling", "2-level hierarchical"):
        row = rows[name]
        assert (row.counted.rounds, row.counted.wire, row.counted.across) == row.paper
        assert not row.why
    ring = rows["Ring-chunked"].counted
    assert (ring.rounds, ring.wire) == (2 * (n - 1), 2 * (n - 1))
    assert ring.across == pytest.approx(2 * racks - 2 / each)
    assert rows["Tree"].counted.wire == 2 * (n - 1)
    assert all(rows[name].why for name in ("Ring-chunked", "Tree"))


def test_table_1_beyond_powers_of_two() -> None:
    rows = {row.name: row for row in table1.table1(3, 3)}
    assert rows["2-level hierarchical"].counted.rounds == 4
    assert rows["2-level hierarchical"].counted.across == 4
    assert "powers of two" in rows["Halving doubling"].why
    assert table1.table1(1, 4)[-1].counted.rounds == table1.table1(4, 1)[-1].counted.rounds == 2
