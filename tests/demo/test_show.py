import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from headrace.collectives.plan.book import PlanBook
from headrace.demo.scenario import SPEC, Comparison, RankHosts
from headrace.demo.show import Show
from headrace.testbed import TestbedSpec
from tests.demo.conftest import BUSY


@pytest.fixture
def printed() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    found = console.file.getvalue()
    tables = [line for line in found.splitlines() if "  " in line.strip()]
    assert max(map(len, tables)) <= 80
    assert "…" not in found  # nothing was cut off
    return found


def up(*, fallback: bool, spec: TestbedSpec = SPEC) -> Any:
    hosts = {host.name: host for host in SPEC.hosts}
    if fallback:
        addresses = {"host0": "127.0.1.1", "host1": "127.0.1.2"}
        addresses |= {"host2": "127.0.2.1", "host3": "127.0.2.2"}
        hosts = {name: SimpleNamespace(address=addresses[name]) for name in hosts}
    return SimpleNamespace(
        spec=spec, is_fallback=fallback, fallback_reason="no ip here", host=hosts.__getitem__
    )


def profile(placement: RankHosts, groups: tuple[tuple[str, ...], ...]) -> Any:
    topology = SPEC.topology(placement.order)
    return SimpleNamespace(topology=topology, host_groups=groups, took_s=5.0)


def test_the_comparison_tells_measured_predicted_and_bound_apart(
    printed: Console, comparison: Comparison
) -> None:
    Show(printed).compared(comparison, paced=True)
    found = text(printed)
    assert "with real compute" in found
    for said in ("3.00x", "1,200 ms", "400 ms", "97.9%", "93.8%", "339/360", "differ by 3e-07"):
        assert said in found, said
    (heading,) = [line for line in found.splitlines() if line.startswith("allreduce  ")]
    assert heading.split() == ["allreduce", "plan", "predicted", "measured", "off", "bound"]
    (total,) = [line for line in found.splitlines() if line.startswith("all  ")]
    assert "372 ms" in total
    assert found.rstrip().splitlines()[-1].startswith("The same script with one word changed")


def test_other_orders_are_predicted_and_a_busy_machine_is_named(
    printed: Console, comparison: Comparison
) -> None:
    """A gain of 1.17x on a busy machine stood there as if it were the network's."""
    Show(printed).compared(comparison, paced=True)
    idle = text(printed)
    assert "Gloo's allreduces take 542 ms in the order that suits its ring best" in idle
    assert "1,083 ms in this one, 1,083 ms in the worst" in idle
    assert "1.50x to 2.99x as fast" in idle
    assert "busy" not in idle
    slow = replace(comparison.headrace, allreduces_us=(200_000.0, 250_000.0, 70_000.0))
    Show(printed).compared(replace(comparison, headrace=slow, load=BUSY), paced=True)
    busy = text(printed)
    assert "headrace's allreduces are +44% off their prediction: the machine was busy" in busy
    assert "The machine was busy: load average 3.0 on 2 processors. Times are longer" in busy


def test_without_shaped_links_no_speed_up_is_claimed(
    printed: Console, comparison: Comparison, placement: RankHosts
) -> None:
    show = Show(printed)
    show.built(up(fallback=True), placement)
    show.compared(comparison, paced=False)
    found = text(printed)
    assert "no ip here" in found
    assert "Gloo, unpaced" in found
    assert "3.00" not in found
    assert "run the demo as root" in found


def test_what_was_measured_stands_beside_the_truth(printed: Console, placement: RankHosts) -> None:
    found = profile(placement, (("host0", "host1"), ("host2", "host3")))
    Show(printed).measured(found, up(fallback=False), placement)
    said = text(printed)
    assert said.count("same") == 2
    assert said.count("95.6 (95.6)") == 8 + 2  # between the racks, and the two directions
    assert said.count("382.6 (382.6)") == 4


def test_the_share_of_a_rate_that_is_payload_is_that_of_the_addresses(
    printed: Console, placement: RankHosts
) -> None:
    """Beside rates of IPv6 stood the share of IPv4."""
    found = profile(placement, (("host0", "host1"), ("host2", "host3")))
    Show(printed).measured(found, up(fallback=False, spec=replace(SPEC, family="ipv6")), placement)
    assert "94.3% of the link's rate" in text(printed)


def test_racks_that_were_not_found_are_shown(printed: Console, placement: RankHosts) -> None:
    found = profile(placement, (("host0", "host2"), ("host1", "host3")))
    Show(printed).measured(found, up(fallback=False), placement)
    assert text(printed).count("differs") == 2


def test_on_loopback_the_truth_is_the_pacing(printed: Console, placement: RankHosts) -> None:
    found = profile(placement, (("host0", "host1"), ("host2", "host3")))
    Show(printed).measured(found, up(fallback=True), placement)
    assert text(printed).count("95.6 (47.8)") == 8


def test_the_plan_is_a_table_of_sizes(printed: Console, book: PlanBook) -> None:
    Show(printed).planned(book, 1.5)
    said = text(printed)
    for entry in book.entries:
        assert f"{entry.plan.gap:.0%}" in said
        assert entry.plan.generator in said
    assert f"{len(book.programs)} programs, every one proven" in said


def test_steps_are_counted_where_nothing_can_be_redrawn(printed: Console) -> None:
    show = Show(printed)
    show.progress("starting", 0.0)
    for done in range(1, 7):
        show.step("gloo", done, 6, 2.0)
    assert [line.split(",")[0].split()[-3] for line in text(printed).splitlines()] == ["4", "6"]
    show.close()
