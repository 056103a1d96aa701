"""Captures and steps in several threads of a process."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.forks import ThreadLock
from headrace.memory import FittedModule, fit
from headrace.memory.locks import CAPTURES, DRAWS
from headrace.memory.measure.capture import capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.run import random
from headrace.memory.run.random import Draw, FirstDraw, Replay, empty_state, set_generator_state
from headrace.memory.run.step import scheduled_step

THREADS = 2
LONGEST_S = 120


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Switch threads as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)]
    return nn.Sequential(*layers).double()


def in_threads(*calls: Callable[[], None]) -> None:
    """Run calls at once, each in a thread; raise the first error."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], None]) -> None:
        start.wait(LONGEST_S)
        call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(run, call) for call in calls]:
            future.result(LONGEST_S)


def train(model: nn.Module, batches: list[Tensor]) -> None:
    """Run steps; of each third the gradient of the first parameter alone."""
    first = next(model.parameters())
    for step, batch in enumerate(batches):
        model(batch).square().sum().backward(inputs=[first] if step % 3 == 2 else None)


def assert_same_gradients(fitted: nn.Module, eager: nn.Module) -> None:
    for own, other in zip(fitted.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.usefixtures("eager_switches")
def test_two_models_are_captured_at_once() -> None:
    """Traces swap functions of torch for all threads: one that met another was refused."""
    models = [network(seed) for seed in range(THREADS)]
    eager = deepcopy(models)
    batches = [torch.randn(rows, 8, dtype=torch.float64) for rows in (6, 5, 6)]

    def fit_and_train(model: nn.Module) -> None:
        train(fit(model, batches[0], "1MiB", captures=2, cache=False), batches)

    in_threads(*(partial(fit_and_train, model) for model in models))
    for model, other in zip(models, eager, strict=True):
        train(other, batches)
        assert_same_gradients(model, other)


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.usefixtures("eager_switches")
def test_two_threads_step_one_fitted_model(*, accumulates: bool) -> None:
    """Gradients that accumulate in the step were lost, and captures met parameters of the other."""
    model = network(0)
    eager = deepcopy(model)
    sample = torch.randn(6, 8, dtype=torch.float64)
    fitted = fit(model, sample, "1MiB", captures=3, accumulates=accumulates, cache=False)
    batches = [
        [torch.randn(6 + step % 2 * (thread + 1), 8, dtype=torch.float64) for step in range(40)]
        for thread in range(THREADS)
    ]
    in_threads(*(partial(train, fitted, own) for own in batches))
    for own in batches:
        train(eager, own)
    assert len(fitted.plans) == 3
    assert_same_gradients(fitted, eager)


class SquaredDropout(nn.Module):
    """Squares of scaled elements after dropout: the gradient follows from the output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64, dtype=torch.float64) + 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the squares."""
        return functional.dropout(x * self.scale).square()


@pytest.mark.usefixtures("eager_switches")
def test_masks_that_are_drawn_again_are_those_of_the_threads_own_forward_pass() -> None:
    """A draw of another thread between a state and the draw from it gave a wrong mask."""

    def train_with_masks() -> None:
        model, x = SquaredDropout(), torch.ones(512, 64, dtype=torch.float64)
        captured = capture(model, (x,))
        step = scheduled_step(captured, keep_schedule(captured.graph, ()))
        for _ in range(100):
            squares = step(model.scale, x)
            (gradient,) = torch.autograd.grad(squares.sum(), model.scale)
            expected = 2 * squares.detach().sum(0) / model.scale.detach()
            torch.testing.assert_close(gradient, expected)

    in_threads(*[train_with_masks] * THREADS)


def test_no_draw_comes_between_a_state_and_the_draw_from_it() -> None:
    cpu = torch.device("cpu")
    with ThreadPoolExecutor(1) as pool:

        def draw_after_another() -> Tensor:
            wait([pool.submit(Draw(torch.rand), 3)], timeout=0.2)
            return torch.rand(3)

        state = empty_state(cpu)
        drawn = FirstDraw(draw_after_another, cpu)(state)
        assert torch.equal(Replay(torch.rand, cpu)(state, 3), drawn)
        assert torch.equal(Replay(draw_after_another, cpu)(state), drawn)


def test_an_interrupt_of_a_replay_leaves_the_generator_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that came behind the change of the state had later draws repeat the replayed ones."""
    cpu, state = torch.device("cpu"), torch.get_rng_state()
    torch.rand(3)
    present = torch.get_rng_state()

    def set_and_interrupted(device: torch.device, state: Tensor) -> None:
        monkeypatch.undo()
        set_generator_state(device, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(random, "set_generator_state", set_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        Replay(torch.rand, cpu)(state, 3)
    assert torch.equal(torch.get_rng_state(), present)


def test_a_step_waits_for_no_capture_of_another_model() -> None:
    model, x = network(0), torch.randn(6, 8, dtype=torch.float64)
    fitted = fit(model, x, "1MiB", cache=False)

    def step_within_capture() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(train, fitted, [x]).result(LONGEST_S)

    with preserved(network(1)):
        step_within_capture()
    assert next(fitted.parameters()).grad is not None


def test_a_copy_of_a_fitted_model_has_a_lock_of_its_own() -> None:
    fitted = fit(network(0), torch.randn(6, 8, dtype=torch.float64), "1MiB", cache=False)
    copied = deepcopy(fitted)
    assert isinstance(copied, FittedModule)
    assert copied._lock is not fitted._lock  # pyright: ignore[reportPrivateUsage]


def test_the_child_of_a_fork_can_take_locks_of_threads_that_it_lacks() -> None:
    locks = [ThreadLock(), CAPTURES, DRAWS]
    own, taken, release = ThreadLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with locks[0], locks[1], locks[2]:
            taken.set()
            release.wait(LONGEST_S)

    with ThreadPoolExecutor(1) as pool, own:
        pool.submit(hold)
        taken.wait(LONGEST_S)
        child = os.fork()
        if child == 0:
            threading.Timer(10, os._exit, (1,)).start()
            with locks[0], locks[1], locks[2], own:
                os._exit(0)
        release.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
