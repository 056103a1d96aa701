"""The timeline of sends, by the simulator."""

import numpy as np
import pytest

from headrace.collectives.demand import STANDARD, Collective
from headrace.collectives.plan.cost.model import EXECUTOR, FULL, CostModel
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.collectives.report.timeline import intervals, timeline
from headrace.topology.presets import ndv2_taccl_1mb, racks
from tests.report.small import relay


def test_messages_of_a_relay() -> None:
    plan = relay()
    line = timeline(plan)
    # 2 MB hold the backplane for 1 + 30 us; then 1 MB after the other, 1 + 15 us each
    assert line.start_us.tolist() == [0.0, 31.0, 47.0]
    assert line.finish_us.tolist() == [31.0, 47.0, 63.0]
    assert line.src.tolist() == [0, 1, 1]
    assert line.dst.tolist() == [1, 2, 2]
    assert line.mb.tolist() == [2.0, 1.0, 1.0]
    assert line.slots == ("0-1", "0", "1")
    assert line.message.tolist() == [0, 1, 2]
    assert not line.reduce.any()
    assert line.total_us == plan.predicted_us == 63.0
    assert line.shared_busy.tolist() == [1.0]
    assert line.link_busy.tolist() == pytest.approx([21 / 63, 22 / 63])


def test_a_shared_capacity_is_held_by_one_message_at_a_time() -> None:
    plan = relay()
    uses, start, finish = intervals(plan, timeline(plan), 0)
    assert uses.tolist() == [0, 1, 2]
    assert list(zip(start.tolist(), finish.tolist(), strict=True)) == [(0, 31), (31, 47), (47, 63)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model", [FULL, EXECUTOR], ids=lambda model: model.name)
@pytest.mark.parametrize("collective", STANDARD)
def test_every_send_of_any_plan_is_told(collective: Collective, model: CostModel) -> None:
    topology = racks((3, 3), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    plan = plan_collective(topology, collective, 1 << 18, method=Method(model=model))
    check(plan)


def test_a_mesh_with_joined_sends() -> None:
    check(
        plan_collective(ndv2_taccl_1mb(2), Collective.ALLREDUCE, 8 << 20, method=Method(model=FULL))
    )


def check(plan: Plan) -> None:
    line = timeline(plan)
    sends = plan.program.steps["op"] == 0
    moved = plan.program.steps["count"][sends].sum() * plan.program.demand.chunk_bytes(
        plan.total_bytes
    )
    assert line.mb.sum() == pytest.approx(moved / 1e6)
    assert line.total_us == pytest.approx(plan.predicted_us)
    assert np.all(line.finish_us > line.start_us)
    assert np.all(np.diff(line.start_us) >= 0)
    assert line.finish_us.max() <= line.total_us * (1 + 1e-9)
    if plan.model.streaming:
        return
    for index, busy in enumerate(line.shared_busy):
        _, start, finish = intervals(plan, line, index)
        assert (finish - start).sum() / line.total_us == pytest.approx(busy)
        order = np.argsort(start)
        assert np.all(start[order][1:] >= finish[order][:-1] - 1e-6), "held by two at once"
