"""Options and fixtures that every test may use."""

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from tests.conformance import warm

# how long an example takes says more about the machine's other work than about the code
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

# a shell starts what it puts in the background with interrupts ignored, and children inherit that
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until the tests are collected: imports make no garbage worth the search

# Threads of OpenMP spin while they wait for each other: where other processes keep the processors
# busy, a small operator of torch then takes a hundred times its time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# jobs of the tests run on testbeds that seem to be many hosts: only those that are about it measure
os.environ.setdefault("HEADRACE_MEASURE", "off")

pytest_plugins = ("tests.tiers",)

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate",
        action="store_true",
        help="rewrite the files in tests/golden instead of comparing with them",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let garbage collections pass over what was imported and collected: 0.4 s for each of them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the processes that import torch for the ranks of all processes of xdist."""
    node.workerinput["warm"] = warm.start()


def pytest_configure(config: pytest.Config) -> None:
    if addresses := getattr(config, "workerinput", {}).get("warm"):
        warm.share(addresses)


def pytest_unconfigure() -> None:
    gc.unfreeze()  # nanobind reports what is not collected at the end


@pytest.fixture(autouse=True)
def _process_restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Take back what a test or its imports set in the process: variables, the action of SIGTERM.

    Modules of the tests' folders are forgotten: later tests, without such folders, would have them.

    A command that runs in the process lets SIGTERM raise SystemExit. A forked worker of a later
    test would inherit that, and go on where the exception is ignored.
    """
    before, on_sigterm = dict(os.environ), signal.getsignal(signal.SIGTERM)
    modules = set(sys.modules)
    yield
    folders = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - modules:
        module = sys.modules[name]
        if isinstance(module, ModuleType) and str(vars(module).get("__file__")).startswith(folders):
            del sys.modules[name]
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    if on_sigterm is not None:  # None: not set by Python
        signal.signal(signal.SIGTERM, on_sigterm)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """Compare bytes with a checked-in file of tests/golden, or rewrite it with --regenerate."""

    def compare(name: str, found: bytes) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regenerate"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(found)
        assert path.exists(), f"{path} is missing: run the test with --regenerate"
        wanted = path.read_bytes()
        if found == wanted:
            return
        try:
            assert found.decode() == wanted.decode(), f"{path} changed; --regenerate if meant"
        except UnicodeDecodeError:
            pytest.fail(f"{path} changed; --regenerate if meant")

    return compare


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Figures that are added to report pages, as the JSON in the page."""
    from headrace.report.page import Page

    found: list[dict[str, Any]] = []
    add = Page.figure

    def figure(page: Page, drawn: Any, height: int = 420) -> None:
        add(page, drawn, height)
        found.append(json.loads(drawn.to_json()))

    monkeypatch.setattr(Page, "figure", figure)
    return found
