"""Other codecs are announced to the adaptation of plans, which else sees a changed network."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.testbed import Testbed, TestbedSpec, run_ranks
from tests.conformance import warm
from tests.waiting import JOB_S

JOB = Path(__file__).with_name("announced_job.py")


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    file = tmp_path_factory.mktemp("testbed") / "testbed.toml"
    file.write_text(
        'name = "announced"\n[defaults]\nhost_rate = "100mbit"\nuplink_rate = "100mbit"\n'
        "[[racks]]\nhosts = 2\n"
    )
    with Testbed.up(TestbedSpec.load(file), fallback=True) as up:
        yield up


def run(testbed: Testbed, folder: Path, how: str) -> list[str]:
    """Return the names of what adaptation did while codecs changed twice."""
    book, log = folder / "book", folder / "log"
    build_book(
        testbed.spec.topology("rack"),
        groups=((0, 1),),
        collectives=(Collective.ALLREDUCE,),
        sizes=(1 << 10, 1 << 20),
    ).save(book)
    ends: list[dict[str, Any]] = []
    other: list[str] = []

    def line(_rank: int, text: str) -> None:
        (ends.append(json.loads(text)) if text.startswith("{") else other.append(text))

    codes = run_ranks(
        testbed,
        warm.command(str(JOB), how),
        range(2),
        env=warm.environment(HEADRACE_PLAN_BOOK=str(book), HEADRACE_ADAPT_LOG=str(log)),
        on_line=line,
        timeout_s=JOB_S,
    )
    assert codes == [0, 0], other
    assert ends[0]["levels"] == ends[1]["levels"]
    levels = ends[0]["levels"]
    changes = [new for old, new in pairwise(levels) if new != old]
    assert changes == ["powersgd:1", "none"], levels
    return [json.loads(text)["event"] for text in log.read_text().splitlines()]


@pytest.mark.timing
def test_other_codecs_are_no_changed_network(testbed: Testbed, tmp_path: Path) -> None:
    done = run(testbed, tmp_path, "announced")
    assert done.count("announced") >= 2, done
    assert not {"change", "plan", "probe", "swap"} & set(done), done


@pytest.mark.slow
@pytest.mark.timing
def test_without_announcements_they_are(testbed: Testbed, tmp_path: Path) -> None:
    done = run(testbed, tmp_path, "silent")
    assert {"change"} <= set(done), done
