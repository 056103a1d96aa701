"""Planning in a process of its own gives the plans of this process, and can be given up."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.collectives.adapt.act.background import (
    BackgroundPlanner,
    RebookRequest,
    Response,
    plan_calls,
    plan_request,
)
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.templates.two_level.masters import spread_masters
from headrace.collectives.plan.request import Method
from headrace.topology.presets import uniform
from tests.collectives.adapt.clusters import book_for, network
from tests.waiting import no_hang, wait_until

SAMPLED = pytest.mark.sampled(2)

CALLS = (
    (Collective.ALLREDUCE, 1 << 20),
    (Collective.ALLREDUCE, 1 << 10),
    (Collective.BROADCAST, 1 << 20),
)
GROUPS = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.fixture
def request_(tmp_path: Path) -> RebookRequest:
    topology = network(tmp_path)
    return RebookRequest(topology=topology, book=book_for(topology, 1 << 20), calls=CALLS)


@pytest.fixture
def planner() -> Iterator[BackgroundPlanner]:
    made = BackgroundPlanner()
    yield made
    made.close()


def answered(planner: BackgroundPlanner) -> Response:
    responses: list[Response] = []

    def has_answered() -> bool:
        if (response := planner.poll()) is not None:
            responses.append(response)
        return bool(responses)

    wait_until(has_answered, "the planner answers")
    return responses[0]


@SAMPLED
def test_the_process_plans_what_is_called(
    request_: RebookRequest, planner: BackgroundPlanner
) -> None:
    here = plan_request(request_)
    assert here.book is not None
    assert here.gain >= 0
    planner.begin(request_)
    there = answered(planner)
    assert there.book is not None
    assert there.book.digest == here.book.digest
    assert (there.plans, there.after_us, there.why) == (here.plans, here.after_us, here.why)
    assert {entry.collective for entry in there.book.entries} == {Collective.ALLREDUCE}
    assert planner.poll() is None


def test_plans_have_the_cost_model_of_the_book_in_force(request_: RebookRequest) -> None:
    """A gain between predictions by two models is none."""
    book = build_book(
        request_.topology, collectives=[Collective.ALLREDUCE], method=Method(model=FULL)
    )
    response = plan_request(replace(request_, book=book))
    assert response.book is not None
    assert response.book.model.name == "full"


@SAMPLED
def test_masters_are_moved_as_asked(request_: RebookRequest, planner: BackgroundPlanner) -> None:
    masters = spread_masters(GROUPS, 32, capacities=[9] + [1] * 7)
    planner.begin(replace(request_, masters=masters))
    found = answered(planner)
    assert found.book is not None
    assert found.gain < 0
    assert {plan[3] for plan in found.plans} == {"finetune"}


@SAMPLED
def test_only_the_newest_request_is_answered(
    request_: RebookRequest, planner: BackgroundPlanner
) -> None:
    planner.begin(request_)
    planner.begin(replace(request_, calls=((Collective.ALLREDUCE, 1 << 12),)))
    planner.begin(replace(request_, calls=((Collective.ALLREDUCE, 1 << 14),)))
    assert [plan[0] for plan in answered(planner).plans] == [1 << 14]
    planner.begin(request_)
    planner.cancel()
    late: list[Response | None] = []

    def has_ended() -> bool:
        late.append(planner.poll())
        return not planner._busy  # pyright: ignore[reportPrivateUsage]

    wait_until(has_ended, "the cancelled request ends")
    assert all(response is None for response in late)


def test_nothing_called_is_nothing_planned(
    request_: RebookRequest, planner: BackgroundPlanner
) -> None:
    assert plan_calls(request_.topology, None, [(Collective.BROADCAST, 8)]) is None
    planner.begin(replace(request_, calls=((Collective.BROADCAST, 8),)))
    found = answered(planner)
    assert found.book is None
    assert "no call" in found.error


@SAMPLED
def test_what_cannot_be_planned_is_said(
    request_: RebookRequest, planner: BackgroundPlanner
) -> None:
    planner.begin(replace(request_, topology=uniform(3)))
    found = answered(planner)
    assert found.book is None
    assert found.error


@SAMPLED
def test_a_process_that_dies_is_an_error_and_is_replaced(
    request_: RebookRequest, planner: BackgroundPlanner
) -> None:
    planner.begin(request_)
    process = planner._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    process.kill()
    assert "has ended" in answered(planner).error
    planner.begin(request_)
    assert answered(planner).book is not None


def test_it_ends_when_it_is_closed(request_: RebookRequest) -> None:
    planner = BackgroundPlanner()
    planner.begin(request_)
    process = planner._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    with no_hang():
        planner.close()
    assert process.returncode is not None
    assert planner.poll() is None
