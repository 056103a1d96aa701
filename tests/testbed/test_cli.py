"""The command line of the testbed, as a user has it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import headrace
from headrace.cli.testbed import app
from headrace.errors import InputError
from headrace.testbed import Testbed, TestbedSpec, state, teardown
from tests.launch.test_roles import assert_ends
from tests.testbed.conftest import assert_gone
from tests.waiting import HANG_S

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "testbed-2x2.toml")
SOURCE = str(Path(headrace.__file__).parents[1])


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "testbed", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


@pytest.mark.root
def test_up_status_rate_and_down(namespaces: None, own_state: Path) -> None:
    assert "No testbed is up." in call("status").output
    assert "10.77.2.2" in call("up", EXAMPLE).output
    (record,) = state.records()
    assert record.owner is None
    assert len(teardown.namespaces_of(record.run)) == 5
    assert "rack1: 50 Mbit/s" in call("set-rate", "rack1", "50mbit").output
    shown = call("status").output
    assert record.run in shown
    assert "until down" in shown
    assert "50 Mbit/s" in shown
    assert f"Removed {record.run}." in call("down").output
    assert_gone(record.run, own_state)


@pytest.mark.root
def test_down_takes_one_all_or_the_crashed(
    namespaces: None, own_state: Path, spec: TestbedSpec
) -> None:
    with Testbed.up(spec, fallback=False) as mine:
        call("up", EXAMPLE)
        call("up", EXAMPLE, "--fallback")
        assert "nothing" in call("down", "--crashed").output
        assert str(os.getpid()) in call("status").output
        call("down", next(r.run for r in state.records() if r.mode == state.LOOPBACK))
        assert len(list(state.records())) == 2
        call("down", "--all-testbeds")
        assert list(own_state.iterdir()) == []
    assert_gone(mine.run, own_state)


def test_down_takes_one_way_to_say_which(own_state: Path) -> None:
    """A name beside --all-testbeds had no effect: every testbed of the machine was removed."""
    call("up", EXAMPLE, "--fallback")
    (record,) = state.records()
    for arguments in (
        (record.run, "--all-testbeds"),
        (record.run, "--crashed"),
        ("--all-testbeds", "--crashed"),
    ):
        with pytest.raises(InputError, match="more than one of a name, --all-testbeds and"):
            call("down", *arguments)
    call("down", record.run)


def test_the_fallback_says_what_it_leaves_out(own_state: Path) -> None:
    shown = call("up", EXAMPLE, "--fallback").output
    assert "Gloo, MPI and others run unpaced" in shown
    assert "127.0.2.2" in shown
    call("down")


def test_topology_shows_the_truth_and_writes_it(tmp_path: Path) -> None:
    from headrace.topology import Topology

    output = tmp_path / "truth.hr"
    shown = call("topology", EXAMPLE, "--order", "interleaved", "-o", str(output)).output
    assert "1 host2" in shown
    assert "382.6" in shown
    truth = Topology.load(output)
    assert truth == TestbedSpec.load(EXAMPLE).topology("interleaved")


@pytest.mark.root
def test_exec_becomes_the_command(testbed: Testbed) -> None:
    script = "import sys; from pathlib import Path; from headrace.testbed import Testbed, state;"
    script += "state.state_directory = lambda: Path(sys.argv[1]);"
    script += "from headrace.cli.testbed import app; app(sys.argv[2:])"
    directory = str(testbed.record.directory.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, directory, "exec", "host1", "--"]
        + ["sh", "-c", 'echo "$PET_LOCAL_ADDR"; ip -br addr show eth0; exit 5'],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 5
    assert done.stdout.startswith("10.77.1.2\n")
    assert "10.77.1.2/16" in done.stdout


@pytest.mark.root
def test_run_ends_with_the_failing_ranks_code(namespaces: None) -> None:
    script = 'echo "here $RANK"; [ "$RANK" = 1 ] && exit 6; sleep 60'
    job = start("run", EXAMPLE, "--order", "interleaved", "--", "sh", "-c", script)
    shown = job.communicate(timeout=HANG_S)[0]
    assert job.returncode == 6
    assert "1 host2 | here 1" in shown
    assert "rank 1 on host2: exit code 6" in shown


def test_run_says_that_its_time_limit_has_passed() -> None:
    """Ranks were ended by SIGTERM, without a word on who sent it."""
    job = start("run", EXAMPLE, "--fallback", "--time-limit", "200ms", "--", "sleep", "60")
    shown = job.communicate(timeout=HANG_S)[0]
    assert job.returncode == 128 + signal.SIGTERM
    assert "its time limit of 200ms has passed" in shown


def test_run_fails_past_its_time_limit_whatever_its_ranks_return() -> None:
    """Ranks that return 0 at SIGTERM, as after a checkpoint, passed for a complete job."""
    script = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    job = start("run", EXAMPLE, "--fallback", "--time-limit", "2s", "--", "sh", "-c", script)
    shown = job.communicate(timeout=HANG_S)[0]
    assert job.returncode == 128 + signal.SIGTERM
    assert "its time limit of 2s has passed" in shown


def test_run_names_a_signal_that_has_no_name() -> None:
    """The signal of a rank that a real-time one had ended was a ValueError."""
    job = start(
        "run", EXAMPLE, "--fallback", "--", "sh", "-c", '[ "$RANK" = 0 ] && kill -40 $$; sleep 60'
    )
    shown = job.communicate(timeout=HANG_S)[0]
    assert job.returncode == 128 + 40
    assert "ended by signal 40" in shown


def test_ctrl_c_ends_the_command_of_a_host_on_loopback(own_state: Path, spec: TestbedSpec) -> None:
    """With --json it went on: it had a session of its own, which Ctrl-C does not reach."""
    script = "import sys; from pathlib import Path; from headrace.testbed import state;"
    script += "folder = Path(sys.argv.pop(1)); state.state_directory = lambda: folder;"
    script += "from headrace.cli.main import main; main()"
    verb = ["testbed", "exec", "host0", "--json", "--", "sh", "-c", "echo $$; exec sleep 600"]
    with Testbed.up(spec, fallback=True):
        job = subprocess.Popen(
            [sys.executable, "-c", script, str(own_state), *verb],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
            start_new_session=True,
        )
        with job:
            assert job.stderr is not None
            pid = int(job.stderr.readline())
            os.killpg(job.pid, signal.SIGINT)
            assert job.wait(HANG_S) == 130
        assert_ends(pid)


@pytest.mark.root
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_run_is_interrupted_without_a_trace(namespaces: None, how: signal.Signals) -> None:
    job = start("run", EXAMPLE, "--", "sh", "-c", 'echo "at $(ip netns identify)"; sleep 60')
    assert job.stdout is not None
    assert "ranks:" in job.stdout.readline()
    line = job.stdout.readline()
    run = line.split("hr-")[1].split("-")[0]
    assert teardown.namespaces_of(run)
    job.send_signal(how)
    job.communicate(timeout=HANG_S)
    assert job.returncode not in (0, None)
    assert_gone(run, state.state_directory())
