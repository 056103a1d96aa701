"""Two tiers of tests: a plugin of pytest, loaded by conftest.py.

``--tier fast`` (`make test`) leaves out the tests marked `slow` and runs a random sample of those
that are sampled; ``--tier slow`` (`make test-slow`) runs these two alone, in whole. Together they
run every check; without the option all of them run. A test is sampled if it is marked
``sampled(count)``, which keeps the largest such count of all that is so marked in its file, tests
and parameter sets, or ``sampled(count, of="name")``, the same of this name in whatever files, or
takes the fixture `sample`, or is a property: of its random examples (hypothesis) the fast tier has
a fifth.

The seed of the samples is another one in every run. It is printed in the header and beside a
failure; ``--sample-seed N`` repeats it.
"""

import random
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import is_hypothesis_test, seed, settings

T = TypeVar("T")

EXAMPLES_SHARE = 5
"""The fast tier has one in so many of a property's examples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Part of a sampled test that is run; the whole if `seed` is None."""

    seed: int | None

    def of(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` items, in their order, or all if the whole is to run."""
        if self.seed is None or count >= len(items):
            return list(items)
        kept = random.Random(self.seed).sample(range(len(items)), count)
        return [items[k] for k in sorted(kept)]


@contextmanager
def case(*values: object) -> Generator[None]:
    """Name one pass of a test's loop in the report of whatever fails in it."""
    try:
        yield
    except BaseException as error:
        error.add_note("case: " + ", ".join(map(str, values)))
        raise


@pytest.fixture
def sample(pytestconfig: pytest.Config) -> Sample:
    fast = pytestconfig.getoption("--tier") == "fast"
    return Sample(pytestconfig.getoption("--sample-seed") if fast else None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("fast", "slow", "all"),
        default="all",
        help="fast: without tests marked `slow`, samples instead of the whole; slow: the rest",
    )
    parser.addoption(
        "--sample-seed", type=int, metavar="N", help="repeat the samples of an earlier run"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.sample_seed is None:
        given = getattr(config, "workerinput", {}).get("sample_seed")
        config.option.sample_seed = given or random.SystemRandom().randrange(1, 1_000_000)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the seed to a process of xdist."""
    node.workerinput["sample_seed"] = node.config.option.sample_seed


def pytest_report_header(config: pytest.Config) -> str:
    tier, seed = config.getoption("--tier"), config.getoption("--sample-seed")
    return f"tier: {tier}" + (f"; samples: --sample-seed {seed}" if tier == "fast" else "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier == "fast":
        _sample_examples(items, config.getoption("--sample-seed"))
        kept = _sampled(items, Sample(config.getoption("--sample-seed")))
    elif tier == "slow":
        kept = [item for item in items if _slow(item) or _is_sampled(item)]
    else:
        return
    left_out = set(items) - set(kept)
    items[:] = kept
    config.hook.pytest_deselected(items=list(left_out))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.config.getoption("--tier") == "fast" and _is_sampled(item):
        seed = item.config.getoption("--sample-seed")
        report.sections.append(("sample", f"repeat it with --tier fast --sample-seed {seed}"))
    return report


def _slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _is_sampled(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "sample" in fixtures or _count(item) > 0 or _is_property(item)


def _is_property(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and is_hypothesis_test(item.function)


def _sample_examples(items: Sequence[pytest.Item], sample_seed: int) -> None:
    """Let properties run a part of their examples, drawn by the seed unless these are fixed."""
    functions = {item.function for item in items if isinstance(item, pytest.Function)}
    for function in filter(is_hypothesis_test, functions):
        # hypothesis has no call for this: a second decorator of settings is an error
        whole = function._hypothesis_internal_use_settings
        fewer = settings(whole, max_examples=-(-whole.max_examples // EXAMPLES_SHARE))
        function._hypothesis_internal_use_settings = fewer
        if not whole.derandomize:
            seed(sample_seed)(function)


def _count(item: pytest.Item) -> int:
    """Return how many of the item's group a sample has; 0 where it is not sampled."""
    marker = item.get_closest_marker("sampled")
    return marker.args[0] if marker else 0


def _group(item: pytest.Item) -> str:
    """Return the name that is common to the tests of one sample: of their file by default."""
    marker = item.get_closest_marker("sampled")
    file = item.nodeid.partition("::")[0]
    return marker.kwargs.get("of", file) if marker else file


def _sampled(items: Sequence[pytest.Item], sample: Sample) -> list[pytest.Item]:
    """Return the items of the fast tier, in their order."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not _slow(item):
            groups[_group(item)].append(item)
    kept: set[pytest.Item] = set()
    for same in groups.values():
        counts = {item: _count(item) for item in same}
        marked = [item for item in same if counts[item]]
        kept.update(item for item in same if not counts[item])
        kept.update(sample.of(marked, max(counts.values())))
    return [item for item in items if item in kept]
