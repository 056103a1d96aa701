"""Ranks that are forked end, fail and print as processes of their own do."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testbed import Testbed, TestbedSpec, privileges
from tests.conformance import warm
from tests.conformance.warm import command, environment, processor_s
from tests.waiting import HANG_S, wait_until

SAMPLED = pytest.mark.sampled(3)


def run(code: str, number: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
    variables = environment(**settings)
    return subprocess.run(
        command("-c", code, "argument", number=number),
        env=variables,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


@SAMPLED
def test_streams_arguments_and_variables_are_the_programs_own() -> None:
    code = "import os, sys; print(sys.argv, os.environ['HEADRACE_DEADLINE_S'], __name__)"
    assert run(code, HEADRACE_DEADLINE_S="7").stdout == "['-c', 'argument'] 7 __main__\n"
    assert "ZeroDivisionError" in run("1 / 0").stderr


@SAMPLED
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


@SAMPLED
def test_torch_is_imported_before_the_fork_unless_a_variable_is_read_at_its_import() -> None:
    loaded = "import sys; print('torch' in sys.modules)"
    later = {"TORCHELASTIC_RUN_ID": "1", "PYTHONUNBUFFERED": "1", "KMP_INIT_AT_FORK": "FALSE"}
    assert run(loaded, **later).stdout == "True\n"
    assert run(loaded, TORCH_DISTRIBUTED_DEBUG="DETAIL").stdout == "False\n"
    level = "import torch.distributed as d; print(d.get_debug_level().name)"
    assert run(level, TORCH_DISTRIBUTED_DEBUG="DETAIL").stdout == "DETAIL\n"


def test_what_libraries_set_for_themselves_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ranks of a process in which a library had set a variable began without torch."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    assert run("import sys; print('torch' in sys.modules)").stdout == "True\n"


@SAMPLED
def test_neighbours_differ_in_the_order_of_sets() -> None:
    code = "print(hash('a'))"
    assert run(code, 0).stdout == run(code, 2).stdout != run(code, 1).stdout
    by_variable = {
        rank: subprocess.run(
            command("-c", code), env=environment(RANK=rank), stdout=subprocess.PIPE, text=True
        ).stdout
        for rank in ("0", "1")
    }
    assert by_variable == {"0": run(code, 0).stdout, "1": run(code, 1).stdout}


@SAMPLED
def test_a_source_may_be_a_fork_of_another_one() -> None:
    """As those of the processes that share the tests: torch is imported for all of them at once."""
    shared = warm.start()
    fork = warm.Source(1, parent=shared[0])
    code = "import sys; print('torch' in sys.modules, hash('a'))"
    argv = [sys.executable, "-I", "-S", warm.__file__, fork.address(), "-c", code]
    found = subprocess.run(argv, env=environment(), stdout=subprocess.PIPE, timeout=HANG_S)
    assert found.stdout.decode() == f"True {run('print(hash(chr(97)))', 0).stdout}"
    assert 0 < fork.processor_s() < 2, "it imported torch itself"


def test_a_module_of_the_folder_runs_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "module_of_a_folder.py").write_text("import sys; print(sys.argv[1:], __name__)")
    done = subprocess.run(
        command("-m", "module_of_a_folder", "argument"),
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.stdout == "['argument'] __main__\n", done.stderr


@pytest.mark.root
def test_a_fork_enters_the_namespaces_of_what_was_started() -> None:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    spec = TestbedSpec.from_table(
        {
            "defaults": {"host_rate": "100mbit", "uplink_rate": "100mbit"},
            "racks": [{"hosts": 1}, {"hosts": 1}],
        }
    )
    code = "import socket; print(sorted(name for _, name in socket.if_nameindex()))"
    with Testbed.up(spec, fallback=False) as testbed:
        host = testbed.hosts[0].name
        options = {"env": environment(), "stdout": subprocess.PIPE, "text": True}
        texts = [
            testbed.popen(host, [*python, "-c", code], **options).communicate(timeout=HANG_S)[0]
            for python in (command(), [sys.executable])
        ]
    assert texts[0] == texts[1] == "['eth0', 'lo']\n"


def test_a_program_that_is_killed_takes_its_fork_along() -> None:
    variables = environment()
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen(command("-c", code, number=0), env=variables, stdout=subprocess.PIPE)
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
