"""Runs of pure policies: a trace of observations in, actions out.

A policy is ``decide(state, observation) -> (state, action)``, without a clock, a thread or a
process: times are fields of its observations, and a test's trace says all that happens.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import pytest

State = TypeVar("State")
Seen = TypeVar("Seen")
Action = TypeVar("Action")


class PolicyRun(Generic[State, Seen, Action]):
    """A policy and its state, which every observation changes.

    Attributes
    ----------
    state : after the last observation.
    actions : so far.
    """

    def __init__(self, decide: Callable[[State, Seen], tuple[State, Action]], state: State) -> None:
        self.state = state
        self.actions: list[Action] = []
        self._decide = decide

    def see(self, observation: Seen) -> Action:
        """Return the action after an observation."""
        self.state, action = self._decide(self.state, observation)
        self.actions.append(action)
        return action

    def follow(self, trace: Iterable[Seen]) -> list[Action]:
        """Return the action after each observation of a trace."""
        return [self.see(observation) for observation in trace]

    def see_until(self, action: Action, trace: Iterable[Seen]) -> int:
        """Return the number of observations that it takes until `action`; a failure if all."""
        for count, observation in enumerate(trace, 1):
            if self.see(observation) == action:
                return count
        pytest.fail(f"no {action} in this trace; the actions so far: {self.actions}")
