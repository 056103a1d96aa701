"""The demo itself, shortened: on shaped links, on loopback, interrupted, and failing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from headrace.demo.scenario import SPEC, RankHosts, run_demo
from headrace.demo.show import Show
from headrace.demo.training import run_training
from headrace.errors import CommunicationError
from headrace.testbed import Testbed, TestbedSpec, state, teardown
from tests.waiting import HANG_S

PAIR = TestbedSpec.from_table(
    {
        "name": "pair",
        "defaults": {"host_rate": "400mbit", "uplink_rate": "200mbit"},
        "racks": [{"hosts": 1}, {"hosts": 1}],
    }
)


@pytest.mark.slow
@pytest.mark.root
def test_the_whole_demo_on_shaped_links(
    namespaces: None, backend_registered: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show = Witness(Console())
    found = run_demo(show, order="interleaved", steps=3, save=tmp_path)
    assert len(found.headrace.bucket_bytes) >= 3
    assert sum(found.headrace.bucket_bytes) >= 4_000_000
    assert found.gloo.bucket_bytes == found.headrace.bucket_bytes
    assert found.gloo.losses == pytest.approx(found.headrace.losses, rel=1e-4)
    assert found.predicted_us >= found.bound_us
    said = capsys.readouterr().out
    assert [line.split()[-1:] for line in said.splitlines()].count(["same"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"demo.profile", "demo.book"}
    assert show.run
    assert show.run not in testbeds()
    assert teardown.namespaces_of(show.run) == []


@pytest.mark.sampled(1, of="whole jobs")
def test_the_demo_on_loopback_is_paced_and_says_so(
    backend_registered: None, forked_ranks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_demo(Show(Console()), spec=PAIR, order="rack", steps=2, fallback=True)
    # unpaced, the gradients take some 10 ms
    assert found.headrace.allreduce_us > 0.5 * found.bound_us
    said = capsys.readouterr().out
    assert "Gloo, unpaced" in said
    assert "as fast" not in said


@pytest.mark.sampled(1, of="whole jobs")
def test_a_job_that_fails_is_an_error_that_says_why(forked_ranks: None) -> None:
    with Testbed.up(PAIR, fallback=True) as testbed:
        run = testbed.run
        with pytest.raises(CommunicationError, match=r"(?s)rank 0 on host1.*carrier-pigeon"):
            run_training(testbed, ["host1", "host0"], "carrier-pigeon", 1)
    assert run not in testbeds()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(
    number: signal.Signals, backend_registered: None
) -> None:
    command = [sys.executable, "-u", "-m", "headrace", "demo", "--order", "rack"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("4  Training"):
                break
        (run,) = [r.run for r in state.records() if r.owner and r.owner[0] == demo.pid]
        time.sleep(1.5)  # the ranks are starting
        running = processes_of(run)
        assert running
        demo.send_signal(number)
        demo.communicate(timeout=HANG_S)
    assert demo.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert run not in testbeds()
    assert teardown.namespaces_of(run) == []
    assert not [pid for pid in running if alive(pid)]


class Witness(Show):
    """Remembers which testbed was built."""

    run = ""

    def built(self, testbed: Testbed, placement: RankHosts) -> None:
        self.run = testbed.run
        super().built(testbed, placement)


def testbeds() -> set[str]:
    return {record.run for record in state.records()}


testbeds.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]  (not a test itself)


def processes_of(run: str) -> list[int]:
    directory = state.find(run).directory
    return [
        *teardown.processes_in(teardown.namespaces_of(run)),
        *teardown.noted_processes(directory),
    ]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return teardown.start_time(pid) is not None


def test_the_demos_testbed_is_the_one_of_the_examples() -> None:
    example = TestbedSpec.load(Path(__file__).parents[2] / "examples" / "testbed-2x2.toml")
    assert (example.racks, example.hosts) == (SPEC.racks, SPEC.hosts)
