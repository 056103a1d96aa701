"""``headrace collectives measure`` and ``headrace collectives plan``."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace.artifact as artifact_io
from headrace.cli import testbed
from headrace.collectives.cli import app as collectives
from headrace.collectives.demand import Collective
from headrace.collectives.measure import ProbeEffort, Profile, launch, survey
from headrace.collectives.plan.book import Entry, PlanBook
from headrace.errors import ArtifactError, CommunicationError, InputError, TestbedError
from headrace.testbed import Testbed
from headrace.units import size
from tests.collectives.measure.imports.iperf_json import result, write
from tests.collectives.measure.network import Network, shuffled_racks
from tests.waiting import JOB_S

SAMPLED = pytest.mark.sampled(1)

TOPOLOGY, _ = shuffled_racks((2, 2), 3)
TESTBED = """
[defaults]
host_rate = "400mbit"
uplink_rate = "100mbit"
[[racks]]
hosts = 2
[[racks]]
hosts = 1
"""


def run(*arguments: object, env: dict[str, str | None] | None = None) -> str:
    settings = {"COLUMNS": "200", "RANK": None, "WORLD_SIZE": None, **(env or {})}
    outcome = CliRunner().invoke(collectives.app, [*map(str, arguments)], env=settings)
    if outcome.exception is not None:
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.output


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    survey(Network(TOPOLOGY), TOPOLOGY.hosts).save(tmp_path / "network.profile")
    return tmp_path / "network.profile"


def test_measure_without_ranks_says_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"RANK is not set and --testbed is not given; start"):
        run("measure", "-o", tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_measure_brings_a_testbed_up_in_the_order_asked_for_and_down_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Testbed] = []

    def fake(
        testbed: Testbed, rank_hosts: Sequence[str], *, effort: ProbeEffort, progress: object
    ) -> Profile:
        assert effort.budget_s == 7.5
        seen.append(testbed)
        assert list(rank_hosts) == ["host2", "host0", "host1"]
        assert testbed.record.directory.is_dir()
        return survey(Network(TOPOLOGY), TOPOLOGY.hosts)

    monkeypatch.setattr(launch, "measure_testbed", fake)
    (tmp_path / "t.toml").write_text(TESTBED)
    flags = ("--testbed", tmp_path / "t.toml", "--order", "2,0,1", "--time-limit", "7.5s")
    shown = run("measure", "-o", tmp_path / "p", *flags)
    assert "group 1" in shown
    assert "Mbit/s" in shown
    assert Profile.load(tmp_path / "p").topology.ranks == 4
    assert not seen[0].record.directory.exists()


def test_measure_that_fails_writes_nothing_and_takes_the_testbed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Testbed] = []

    def fail(testbed: Testbed, *_: object, **__: object) -> Profile:
        seen.append(testbed)
        raise CommunicationError("the agent on host 'host1' was ended by signal 9")

    monkeypatch.setattr(launch, "measure_testbed", fail)
    (tmp_path / "t.toml").write_text(TESTBED)
    with pytest.raises(CommunicationError, match="host1"):
        run("measure", "-o", tmp_path / "p", "--testbed", tmp_path / "t.toml")
    assert not (tmp_path / "p").exists()
    assert not seen[0].record.directory.exists()


def test_an_unknown_order_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(TESTBED)
    with pytest.raises(TestbedError, match="nowhere"):
        run("measure", "-o", tmp_path / "p", "--testbed", tmp_path / "t.toml", "--order", "nowhere")


@SAMPLED
def test_plan_makes_a_book_from_a_profile_with_its_groups(profile: Path, tmp_path: Path) -> None:
    shown = run("plan", profile, "-o", tmp_path / "book", "--collective", "allreduce")
    for text in ("allreduce", "predicted", "bound", "gap", "plans."):
        assert text in shown
    book = PlanBook.load(tmp_path / "book")
    measured = Profile.load(profile)
    assert book.topology.digest == measured.topology.digest
    assert book.groups == measured.groups
    assert {entry.collective for entry in book.entries} == {Collective.ALLREDUCE}


@SAMPLED
def test_plan_takes_a_topology_too(tmp_path: Path) -> None:
    TOPOLOGY.save(tmp_path / "t")
    run("plan", tmp_path / "t", "-o", tmp_path / "book", "--collective", "broadcast")
    assert artifact_io.load(tmp_path / "book").kind == "plan-book"


@SAMPLED
def test_search_states_that_it_gains_nothing_under_the_executors_model(tmp_path: Path) -> None:
    TOPOLOGY.save(tmp_path / "t")
    asked = ("plan", tmp_path / "t", "-o", tmp_path / "book", "--collective", "allgather")
    line = "Search gains nothing over templates"
    assert line in run(*asked, "--search")
    assert len(PlanBook.load(tmp_path / "book").entries) > 0
    assert line not in run(*asked)
    assert line not in run(*asked, "--search", "--cost-model", "full")


@SAMPLED
def test_plan_refuses_another_kind_of_file(profile: Path, tmp_path: Path) -> None:
    run("plan", profile, "-o", tmp_path / "book", "--collective", "reduce")
    with pytest.raises(InputError, match="field 'kind' is 'plan-book', needs 'profile'"):
        run("plan", tmp_path / "book", "-o", tmp_path / "again")


@SAMPLED
def test_a_book_has_no_plan_of_what_only_a_demand_describes(tmp_path: Path) -> None:
    """The error was of the demand's slots: ``slots is 0, needs at least 1``."""
    TOPOLOGY.save(tmp_path / "t", {})
    with pytest.raises(InputError, match="--collective is custom, .* synthesize --demand"):
        run("plan", tmp_path / "t", "--collective", "custom", "-o", tmp_path / "book")


def test_hosts_are_not_ordered_without_a_testbed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--order has no effect without --testbed"):
        run("measure", "-o", tmp_path / "p", "--order", "interleaved")


@SAMPLED
def test_the_table_of_plans_fits_80_columns(profile: Path, tmp_path: Path) -> None:
    shown = run(
        *("plan", profile, "-o", tmp_path / "book", "--collective", "reduce_scatter"),
        *("--collective", "allreduce", "--collective", "gather"),
        env={"COLUMNS": "80"},
    )
    lines = shown.split("Wrote")[0].splitlines()
    heading = next(line for line in lines if "made by" in line)
    for name in ("from", "up to", "chunks", "scored at", "predicted", "bound", "gap"):
        assert name in heading
    assert max(map(len, lines)) <= 80
    entries = [e for e in PlanBook.load(tmp_path / "book").entries if e.root == 0]
    assert [line for line in lines if "%" in line] == lines_with(lines, entries)


def lines_with(lines: list[str], entries: list[Entry]) -> list[str]:
    """The lines that show each entry whole, in order."""
    rows = (line for line in lines if "%" in line)
    return [
        line
        for line, entry in zip(rows, entries, strict=True)
        if f" {entry.plan.generator} " in line and f"{size(entry.plan.total_bytes)} " in line
    ]


@SAMPLED
def test_an_old_profile_is_planned_for_with_a_warning(profile: Path, tmp_path: Path) -> None:
    def planned(path: Path) -> str:
        command = ("plan", path, "-o", tmp_path / "book", "--collective", "reduce")
        outcome = CliRunner().invoke(collectives.app, [*map(str, command)])
        assert outcome.exit_code == 0
        assert "warning" not in outcome.stdout
        return outcome.stderr

    assert "warning" not in planned(profile)
    made = Profile.load(profile)
    replace(made, measured_at=time.time() - 3 * 86400).save(tmp_path / "old")
    said = planned(tmp_path / "old")
    assert "was measured 3 days ago and is valid for 60 minutes" in said
    assert "measure it again" in said


def test_output_that_cannot_be_written_is_told_before_the_work(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("headrace.collectives.plan.book.build_book", worked)
    monkeypatch.setattr(Testbed, "up", worked)
    monkeypatch.setattr("headrace.testbed.TestbedSpec.topology", worked)
    (tmp_path / "t.toml").write_text(TESTBED)
    bad = profile / "below"  # the profile is a file
    with pytest.raises(ArtifactError, match="cannot be written: Not a directory"):
        run("plan", profile, "-o", bad)
    with pytest.raises(ArtifactError, match="cannot be written: Not a directory"):
        run("measure", "-o", bad, "--testbed", tmp_path / "t.toml")
    outcome = CliRunner().invoke(
        testbed.app, ["topology", str(tmp_path / "t.toml"), "-o", str(bad)]
    )
    assert isinstance(outcome.exception, ArtifactError)


@pytest.mark.slow
def test_measure_under_torchrun(tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "headrace", "collectives", "measure", "-o", str(tmp_path / "p")),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S)
    assert done.returncode == 0, done.stderr
    assert Profile.load(tmp_path / "p").topology.rank_host == (0, 0)
    assert "2 on 1 hosts" in done.stdout


def test_results_of_iperf3_become_a_profile_that_can_be_planned_for(tmp_path: Path) -> None:
    names = [("a", "b"), ("a", "c"), ("b", "c")]
    files = [
        write(tmp_path, result(f"10.0.0.{a}", f"10.0.0.{b}", 400), f"{a}-to-{b}.json")
        for a, b in names
    ]
    rtt = tmp_path / "rtt.csv"
    rtt.write_text("a,b,300\n")
    said = run("import-iperf", *files, "-o", tmp_path / "p", "--rtt", rtt)
    assert "3 on 3 hosts" in said
    assert "what several hosts share" in said
    alphas = {link.alpha_us for link in Profile.load(tmp_path / "p").topology.links}
    assert alphas == {60.0, 150.0}
    run("plan", tmp_path / "p", "-o", tmp_path / "b", "--collective", "allreduce")
    assert PlanBook.load(tmp_path / "b").topology.hosts == ("a", "b", "c")
