"""The policy by itself: errors of observed requests in, actions out, no clock and no model."""

import random
from collections.abc import Iterator

import pytest

from headrace.attention import AttentionError
from headrace.attention.adapt.decide import (
    ClusterAction,
    ClusterLimits,
    ClusterState,
    SeenRequest,
    decide,
)
from tests.policies import PolicyRun

NONE, MORE_CLUSTERS = ClusterAction.NONE, ClusterAction.MORE_CLUSTERS
PROSE, CODE = (0.01, 0.009, 0.007, 0.0), (0.08, 0.03, 0.01, 0.0)
"""Output errors of the plan and of its alternatives, on two domains of text."""


class Run(PolicyRun[ClusterState, SeenRequest, ClusterAction]):
    """The policy on requests whose errors are a domain's, give or take some."""

    def __init__(self, planned_error: float | None = PROSE[0], **limits: float) -> None:
        state = ClusterState(
            alternatives=len(PROSE) - 1,
            planned_error=planned_error,
            limits=ClusterLimits(**limits),  # type: ignore[arg-type]
        )
        super().__init__(decide, state)
        self.random = random.Random(3)

    def requests(self, domain: tuple[float, ...], count: int) -> Iterator[SeenRequest]:
        for _ in range(count):
            error = domain[self.state.level] * self.random.uniform(0.6, 1.4)
            yield SeenRequest(level=self.state.level, output_error=error)


def test_a_changed_domain_gets_more_clusters_until_the_error_is_the_plans_again() -> None:
    run = Run()
    assert set(run.follow(run.requests(PROSE, 200))) == {NONE}
    assert run.see_until(MORE_CLUSTERS, run.requests(CODE, 20)) == 3
    assert run.see_until(MORE_CLUSTERS, run.requests(CODE, 20)) == 5
    assert run.state.level == 2
    assert set(run.follow(run.requests(CODE, 200))) == {NONE}
    assert set(run.follow(run.requests(PROSE, 200))) == {NONE}


def test_one_unusual_request_is_no_other_domain() -> None:
    run = Run()
    for _ in range(50):
        run.follow(run.requests(PROSE, 4))
        assert run.see(SeenRequest(level=0, output_error=0.9)) is NONE
        assert run.see(SeenRequest(level=0, output_error=float("nan"))) is NONE


def test_requests_of_caches_from_before_a_change_do_not_count() -> None:
    run = Run()
    run.see_until(MORE_CLUSTERS, run.requests(CODE, 10))
    old = [SeenRequest(level=0, output_error=0.9)] * 100
    assert set(run.follow(old)) == {NONE}
    assert run.state.level == 1
    assert set(run.follow(run.requests(PROSE, 50))) == {NONE}


def test_a_plan_without_an_error_is_compared_with_its_first_requests() -> None:
    run = Run(planned_error=None)
    assert set(run.follow(run.requests(PROSE, 60))) == {NONE}
    assert run.state.planned_error == pytest.approx(PROSE[0], rel=0.5)
    assert run.see_until(MORE_CLUSTERS, run.requests(CODE, 20)) == 3


def test_small_errors_and_the_last_alternative_change_nothing() -> None:
    run = Run(planned_error=0.0)
    assert set(run.follow([SeenRequest(level=0, output_error=5e-4)] * 20)) == {NONE}
    run = Run()
    actions = run.follow(
        SeenRequest(level=level, output_error=1) for level in range(4) for _ in range(5)
    )
    assert actions.count(MORE_CLUSTERS) == 3
    assert run.state.level == 3


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"threshold": 0.5}, "threshold is 0.5, needs at least 1"),
        ({"least_error": -1}, "least_error is -1, needs at least 0"),
        ({"requests": 0}, "requests are 0, needs at least 1"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, float], message: str) -> None:
    with pytest.raises(AttentionError, match=message):
        ClusterLimits(**limits)  # type: ignore[arg-type]
