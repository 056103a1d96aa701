"""The state machine of adaptation, transition by transition, and under any sequence of events."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.collectives.adapt.policy import (
    Action,
    ActionOutcome,
    AdaptationPhase,
    AdaptationState,
    Limits,
    Observation,
    decide,
)
from headrace.job.steps import Change
from tests.policies import PolicyRun

SLOWER = Change(before_s=0.1, after_s=0.2)
FASTER = Change(before_s=0.2, after_s=0.1)
SEEN = Observation(now_s=100.0, window_s=1.0, steps=10, step_s=0.1)
PORTS = {"host0-out": 0.4}


def test_a_suspect_step_begins_one_window() -> None:
    suspects = [True, True, False, True]
    trace = [replace(SEEN, now_s=100 + 0.1 * n, suspect=s) for n, s in enumerate(suspects)]
    actions = PolicyRun(decide, AdaptationState()).follow(trace)
    assert actions == [Action.RESET, Action.WAIT, Action.WAIT, Action.RESET]


def test_two_routine_looks_have_to_find_the_same_port() -> None:
    def look(
        state: AdaptationState, *ports: str, factor: float = 2.0
    ) -> tuple[AdaptationState, Action]:
        state, action = decide(state, replace(SEEN, window_s=2.0))
        assert action is Action.LOOK
        return decide(state, replace(SEEN, found=dict.fromkeys(ports, factor)))

    state, action = look(AdaptationState(), "b", factor=0.5)
    assert action is Action.WAIT
    state, action = look(state, "b")
    assert action is Action.WAIT
    again, action = look(state, "a", "b")
    assert (again.phase, action) == (AdaptationPhase.PLANNING, Action.PLAN)
    again, action = look(state)
    assert (again.phase, action) == (AdaptationPhase.WATCHING, Action.ACCEPT)


def test_a_routine_look_takes_a_while_and_a_few_steps() -> None:
    assert decide(AdaptationState(), replace(SEEN, window_s=1.9))[1] is Action.WAIT
    assert decide(AdaptationState(), replace(SEEN, window_s=2.0))[1] is Action.LOOK
    assert decide(AdaptationState(), replace(SEEN, window_s=1.0, altered=True))[1] is Action.LOOK
    assert decide(AdaptationState(), replace(SEEN, window_s=2.0, step_s=1.0))[1] is Action.WAIT
    assert decide(AdaptationState(), replace(SEEN, window_s=2.0, step_s=None))[1] is Action.WAIT


def test_a_diagnosis_waits_for_windows_that_hold_a_step() -> None:
    slow = replace(SEEN, step_s=0.2, window_s=0.15)
    state, action = decide(AdaptationState(alert=True), replace(slow, change=SLOWER))
    assert (state.phase, action) == (AdaptationPhase.DIAGNOSING, Action.WAIT)
    state, action = decide(state, slow)
    assert action is Action.WAIT
    assert decide(state, replace(slow, window_s=0.2))[1] is Action.LOOK
    whole = replace(slow, window_s=0.2, change=SLOWER)
    assert decide(AdaptationState(alert=True), whole)[1] is Action.LOOK
    # a window that began before the change tells of both
    state, action = decide(AdaptationState(), replace(whole, window_s=9.0))
    assert (state.phase, action) == (AdaptationPhase.DIAGNOSING, Action.RESET)


def test_one_look_is_enough_where_steps_agree() -> None:
    looking = AdaptationState(looking=True)
    seen = replace(SEEN, reference_s=0.12, found={"a": 1.5})
    assert decide(looking, seen)[1] is Action.PLAN
    assert decide(looking, replace(seen, reference_s=0.1))[1] is Action.WAIT
    assert decide(looking, replace(seen, found={"a": 0.5}))[1] is Action.WAIT


def test_what_nothing_explains_is_looked_at_again_before_it_is_measured() -> None:
    state, action = decide(AdaptationState(), replace(SEEN, change=SLOWER))
    steps, looks, window = 0, 0, 0
    while action is not Action.PROBE:
        assert steps < 40
        if action is Action.LOOK:
            looks, window = looks + 1, 0
            state, action = decide(state, replace(SEEN, window_s=0.0, found={}))
        else:
            steps, window = steps + 1, window + 1
            state, action = decide(state, replace(SEEN, window_s=0.1 * window))
    assert looks == Limits().max_unexplained
    state, action = decide(state, replace(SEEN, outcome=ActionOutcome.MEASURED))
    assert action is Action.PLAN
    # and not a second time within ten minutes
    state, action = decide(state, replace(SEEN, outcome=ActionOutcome.KEPT, expected_s=0.01))
    assert (state.phase, action) == (AdaptationPhase.WATCHING, Action.ACCEPT)


def test_steps_that_became_faster_end_what_slow_ones_began() -> None:
    run = PolicyRun(decide, AdaptationState(alert=True))
    run.see(replace(SEEN, change=SLOWER))
    assert run.see(replace(SEEN, found=PORTS)) is Action.PLAN
    assert run.state.phase is AdaptationPhase.PLANNING
    assert run.see(replace(SEEN, change=FASTER, altered=True)) is Action.RESET
    assert run.state.phase is AdaptationPhase.DIAGNOSING
    assert run.see(replace(SEEN, altered=True)) is Action.LOOK
    looked = run.state
    assert run.see(replace(SEEN, found={}, altered=True)) is Action.PLAN
    assert PolicyRun(decide, looked).see(replace(SEEN, found={})) is Action.ACCEPT


def test_plans_are_tuned_while_that_helps_and_taken_back_if_they_are_worse() -> None:
    state = AdaptationState(phase=AdaptationPhase.PLANNING, best_s=0.2)
    state, _ = decide(state, replace(SEEN, outcome=ActionOutcome.SWAPPED))
    assert state.phase is AdaptationPhase.SETTLING
    _, action = decide(state, replace(SEEN, steps=1))
    assert action is Action.WAIT
    _, action = decide(state, replace(SEEN, step_s=0.15))
    assert action is Action.ACCEPT
    worse, action = decide(state, replace(SEEN, step_s=0.25, tunable=True))
    assert (worse.phase, action) == (AdaptationPhase.REVERTING, Action.REVERT)
    rounds = 0
    step_s = 0.19
    while state.phase is not AdaptationPhase.WATCHING:
        state, action = decide(state, replace(SEEN, step_s=step_s, tunable=True))
        if action is Action.FINETUNE:
            rounds += 1
            step_s *= 0.9 if rounds < 3 else 1.0
            state, action = decide(state, replace(SEEN, outcome=ActionOutcome.SWAPPED))
            assert action is Action.WAIT
    assert rounds == 3 + Limits().stale - 1


def test_steps_that_stay_slow_once_a_plan_is_taken_back_are_measured() -> None:
    """The plan was for the wrong cause: going back is not the end of it."""
    state = AdaptationState(phase=AdaptationPhase.REVERTING, began_s=0.2, best_s=0.2)
    slow = replace(SEEN, step_s=0.2, expected_s=0.1)
    assert decide(state, replace(slow, outcome=ActionOutcome.SWAPPED))[1] is Action.WAIT
    assert decide(state, slow)[1] is Action.PROBE
    assert decide(state, replace(slow, expected_s=0.19))[1] is Action.ACCEPT
    assert decide(state, replace(slow, step_s=0.13))[1] is Action.ACCEPT


def test_finetune_takes_no_credit_for_a_network_that_recovers() -> None:
    state = AdaptationState(phase=AdaptationPhase.SETTLING, best_s=0.13)
    seen = replace(SEEN, tunable=True, reference_s=0.13, altered=True)
    state, action = decide(state, seen)
    assert (state.phase, action) == (AdaptationPhase.DIAGNOSING, Action.LOOK)
    assert decide(state, replace(seen, found={}))[1] is Action.PLAN


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    return Observation(
        now_s=0.0,
        window_s=draw(st.sampled_from([0.0, 0.1, 3.0])),
        steps=draw(st.integers(0, 10)),
        step_s=draw(st.sampled_from([None, 0.1, 0.2])),
        suspect=draw(st.booleans()),
        change=draw(st.sampled_from([None, None, None, SLOWER, FASTER])),
        expected_s=draw(st.sampled_from([None, 0.1])),
        altered=draw(st.booleans()),
        tunable=draw(st.booleans()),
    )


@given(
    st.lists(observations(), max_size=60),
    st.data(),
)
def test_whatever_happens_it_goes_on_and_comes_to_rest(
    seen: list[Observation], data: st.DataObject
) -> None:
    """As the coordinator does it: what is asked for is answered, plans some time later."""
    outcomes = st.sampled_from([ActionOutcome.SWAPPED, ActionOutcome.KEPT, ActionOutcome.FAILED])
    run = PolicyRun(decide, AdaptationState())
    quiet = [replace(SEEN, steps=20 + number, window_s=3.0) for number in range(100)]
    for number, observation in enumerate([*seen, *quiet]):
        now = replace(observation, now_s=float(number))
        if run.state.phase in (AdaptationPhase.PLANNING, AdaptationPhase.FINETUNING) and data.draw(
            st.booleans()
        ):
            now = replace(now, outcome=data.draw(outcomes))
        for _ in range(20):
            action = run.see(now)
            now = replace(now, change=None, outcome=None, found=None)
            match action:
                case Action.LOOK:
                    calm = number >= len(seen)
                    found = {} if calm else data.draw(st.sampled_from([None, {}, PORTS]))
                    now = replace(now, found=found)
                case Action.REVERT:
                    now = replace(now, outcome=data.draw(outcomes))
                case Action.PROBE:
                    measured = data.draw(
                        st.sampled_from([ActionOutcome.MEASURED, ActionOutcome.FAILED])
                    )
                    now = replace(now, outcome=measured)
                case _:
                    break
        else:
            raise AssertionError("it did not come to wait")
    assert run.actions.count(Action.PROBE) <= 1
    assert run.state.phase in (AdaptationPhase.WATCHING, AdaptationPhase.PLANNING)
