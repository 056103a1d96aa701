"""Ranks that are forked end, fail and print as processes of their own do."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.conformance.launch import environment
from tests.conformance.warm import processor_s, program_arguments
from tests.waiting import HANG_S, wait_until


def run(code: str, number: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
    variables = environment(**settings)
    return subprocess.run(
        program_arguments(number, ["-c", code, "argument"], variables),
        env=variables,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def test_streams_arguments_and_variables_are_the_programs_own() -> None:
    code = "import os, sys; print(sys.argv, os.environ['HEADRACE_DEADLINE_S'], __name__)"
    assert run(code, HEADRACE_DEADLINE_S="7").stdout == "['-c', 'argument'] 7 __main__\n"
    assert "ZeroDivisionError" in run("1 / 0").stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_it_ends_as_its_fork_does(ending: str, code: int) -> None:
    assert run(ending).returncode == code


def test_torch_is_imported_before_the_fork_unless_a_variable_is_read_at_its_import() -> None:
    variables = environment()
    assert "-S" in program_arguments(0, ["-c", "pass"], variables)
    changed = {**variables, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    assert "-S" not in program_arguments(0, ["-c", "pass"], changed)
    level = "import torch.distributed as d; print(d.get_debug_level().name)"
    assert run(level, TORCH_DISTRIBUTED_DEBUG="DETAIL").stdout == "DETAIL\n"


def test_neighbours_differ_in_the_order_of_sets() -> None:
    code = "print(hash('a'))"
    assert run(code, 0).stdout == run(code, 2).stdout != run(code, 1).stdout


def test_a_program_that_is_killed_takes_its_fork_along() -> None:
    variables = environment()
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen(
        program_arguments(0, ["-c", code], variables), env=variables, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        assert Path(f"/proc/{fork}").exists()
        process.kill()
    wait_until(lambda: not Path(f"/proc/{fork}").exists(), "the fork lives on")


def test_processor_time_of_forks_counts() -> None:
    before = processor_s()
    run("import time\nwhile time.process_time() < 0.5: pass")
    wait_until(lambda: processor_s() - before >= 0.45, "the time of a fork is missing")
