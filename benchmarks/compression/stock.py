"""headrace's hook beside torch's own hooks: same rank, same error of the mean, and its memory.

Two ranks on this machine, without limits on loopback, so that what is compared is computation and
the backend. The gradients are ResNet-50's in number and shape; their computation takes next to no
time, and is not counted: the time is that from the last gradient to the end of the backward pass.
Both hooks of a pair run in one job, by turns.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from headrace.launch.roles import Role, Roles

SECTION = "stock"
RANKS = 2
NEEDED = {"gloo": ">= 1.3", "headrace": ">= 1.0"}
_MEMORY_OF = ("powersgd:4", "minmax:4", "sign", "topk:1%")
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Memory that is freed goes back to the system at once: what is resident is in use."""
_ANSWER_S = 300.0
_ERROR_SLACK = 1.02  # of errors that are called the same


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {
        **{
            f"{pair}-over-stock-{backend}": bound
            for pair in ("powersgd", "fp16")
            for backend, bound in NEEDED.items()
        },
        "hook-memory-of-gradient": "<= 1.1",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure both pairs on both backends, then memory."""
    rounds = 7 if quick else 25
    for backend in NEEDED:
        with _job(backend) as ask:
            for pair in ("powersgd", "fp16"):
                answers = ask({"pair": pair, "rounds": rounds})
                _compare(report, backend, pair, answers)
    shares: list[float] = []
    for codec in _MEMORY_OF[:2] if quick else _MEMORY_OF:
        with _job("headrace", **_MALLOC) as ask:
            answers = ask({"memory": codec, "steps": 3})
        for rank, found in enumerate(answers):
            share = (found["held_bytes"] - found["payload_bytes"]) / found["gradient_bytes"]
            shares.append(share)
            report.row(
                "memory of the hook, of the gradient's bytes",
                codec=codec,
                rank=rank,
                held=found["held_bytes"],
                payloads=found["payload_bytes"],
                gradient=found["gradient_bytes"],
                share=round(share, 3),
            )
    report.bar("hook-memory-of-gradient", max(shares))
    report.note(
        "memory: highest resident memory of a step with the hook less that of one without, less "
        "the payloads of a round, sent and received"
    )


def _compare(report: Report, backend: str, pair: str, answers: list[dict[str, Any]]) -> None:
    """Report a pair of hooks, whose means have to be as close to the exact one."""
    errors = {name: max(a["errors"][name] for a in answers) for name in ("torch", "headrace")}
    slowest = {
        name: [max(times) for times in zip(*(a["seconds"][name] for a in answers), strict=True)]
        for name in errors
    }
    for name, seconds in slowest.items():
        report.row(
            "from the last gradient to the mean",
            backend=backend,
            codec=pair,
            hook=name,
            ms=1e3 * statistics.median(seconds),
            error=errors[name],
        )
    if errors["headrace"] > _ERROR_SLACK * errors["torch"]:
        raise RuntimeError(f"{pair}: errors of the means are {errors}, needs the same")
    pairs = zip(slowest["torch"], slowest["headrace"], strict=True)
    report.bar(f"{pair}-over-stock-{backend}", statistics.median(t / h for t, h in pairs))


@contextmanager
def _job(backend: str, **variables: str) -> Iterator[Any]:
    """Yield a function that asks all ranks and returns their answers."""
    environment = {
        **WHERE,
        "OMP_NUM_THREADS": "1",
        "HEADRACE_MEASURE": "off",
        "HEADRACE_ADAPT": "off",
        "HEADRACE_SHARED_MEMORY": "off",
        "HEADRACE_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        **variables,
    }
    argv = [sys.executable, "-m", "benchmarks.compression.stock_rank"]
    roles = {rank: Role(name=f"rank {rank}", argv=argv, env=environment) for rank in range(RANKS)}
    with tempfile.TemporaryDirectory() as folder, Roles(roles) as started:

        def ask(task: dict[str, Any]) -> list[dict[str, Any]]:
            for rank in roles:
                started.send(rank, task)
            answers: dict[int, dict[str, Any]] = {}
            while len(answers) < RANKS:
                message = started.expect("steps", _ANSWER_S)
                if message is None:
                    raise RuntimeError("the ranks ended early")
                answers[message[0]] = message[1]
            return [answers[rank] for rank in sorted(answers)]

        for rank in roles:
            started.send(
                rank,
                {"store": f"{folder}/store", "rank": rank, "ranks": RANKS, "backend": backend},
            )
        yield ask
