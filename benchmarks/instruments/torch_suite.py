"""torch's own tests of backends, `distributed_test`, with headrace in Gloo's place.

torch ships them as `torch.testing._internal.distributed.distributed_test`. They choose and skip by
the name of the backend, which stays "gloo"; the groups are made by "headrace". Three ranks run on
one host, forked for every test.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Never

RANKS = 3
TEST_LIMIT_S = 120
SUITE_LIMIT_S = 2400.0

DIFFERENCES: Mapping[str, str] = {
    "test_get_backend": "compares the backend's name, which is headrace",
}
"""Tests that fail with headrace -> the reason."""

_RESULT = "TORCH-SUITE "
_GROUP_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """Outcomes of the tests that ran.

    Attributes
    ----------
    passed : names.
    failed : name -> the error's last lines.
    skipped : name -> torch's reason, the same as with Gloo.
    """

    passed: Sequence[str]
    failed: Mapping[str, str]
    skipped: Mapping[str, str]


def run_suite(*names: str) -> SuiteResult:
    """Run the tests of these names, or all, in processes of their own.

    Raises
    ------
    RuntimeError : the suite did not end within `SUITE_LIMIT_S`, or its process failed.
    """
    passed: list[str] = []
    outcomes: dict[str, dict[str, str]] = {"failed": {}, "skipped": {}}
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            "BACKEND": "gloo",
            "WORLD_SIZE": str(RANKS),
            "TEMP_DIR": folder,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_LIMIT_S),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.instruments.torch_suite", *names],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=SUITE_LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"torch's suite did not end within {SUITE_LIMIT_S:g} s") from None
        finally:
            if process.returncode is None:  # its ranks are in its session
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise RuntimeError(f"torch's suite exited with {process.returncode}: {output[-2000:]}")
    for line in output.splitlines():
        if _RESULT not in line:
            continue
        outcome, name, text = json.loads(line.partition(_RESULT)[2])
        if outcome == "passed":
            passed.append(name)
        else:
            outcomes[outcome][name] = text
    return SuiteResult(passed=passed, **outcomes)


def _case() -> type[unittest.TestCase]:
    """Make torch's test case, whose module reads the environment when it is imported."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test

    importlib.import_module("headrace.torch")  # registers the backend

    class HeadraceSuite(
        distributed_test.TestDistBackend,
        distributed_test.DistributedTest._DistTestBase,  # pyright: ignore[reportPrivateUsage]
    ):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **_: Any) -> Never:
            case = cls(test_name)
            case.rank, case.file_name = rank, file_name
            limits = distributed_test.CUSTOM_PG_TIMEOUT
            dist.init_process_group(
                "headrace",
                init_method=case.init_method,
                world_size=RANKS,
                rank=rank,
                timeout=timedelta(seconds=limits[test_name])
                if test_name in limits
                else _GROUP_TIMEOUT,
            )
            case._barrier()
            case.run_test(test_name, pipe)
            case._barrier()
            dist.destroy_process_group()
            sys.exit(0)

    return HeadraceSuite


class _Lines(unittest.TestResult):
    """Prints one line of JSON per test."""

    def _print(self, outcome: str, test: Any, text: str = "") -> None:
        # the ranks may have left an unfinished line
        line = json.dumps([outcome, test._testMethodName, text[-2000:]])
        print(f"\n{_RESULT}{line}", flush=True)

    def addSuccess(self, test: Any) -> None:  # noqa: N802 - unittest
        self._print("passed", test)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._print("failed", test, str(err[1]))

    addError = addFailure  # noqa: N815

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._print("skipped", test, reason)


def main() -> None:
    """Run the tests named on the command line, or all, and print their outcomes."""
    case = _case()
    names = sys.argv[1:] or list(unittest.TestLoader().getTestCaseNames(case))
    unittest.TestSuite(map(case, names)).run(_Lines())


if __name__ == "__main__":
    main()
