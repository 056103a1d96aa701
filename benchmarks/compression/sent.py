"""Bytes out of a rank and payload memory at 2 to 8 workers, and TopK's union of indices.

Workers are processes on this host that average vectors over headrace's backend, through TCP on
loopback. Bytes are those of the connections' counters, headers included; memory is that of the
payloads, sent and received. Every mean is compared, bit by bit, with that of the same codec among
ranks of one process.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.compression.sent_rank import digest, gradient
from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from headrace.compression.codecs.loops import select_topk
from headrace.compression.codecs.requests import Context, run_together
from headrace.compression.codecs.table import make_codec
from headrace.compression.families import CodecSpec
from headrace.compression.traffic import sent_bytes, transfers
from headrace.launch.roles import Role, Roles

SECTION = "bytes"
ELEMENTS = 1 << 22
CODECS = {"sign": ("sign", 1), "minmax:4": ("4bit", 4)}
"""Bar's name, and bits of an element, by codec."""

_STEPS, _BATCH, _RATE = 200, 32, 0.1
_WINDOW = 20
_ANSWER_S = 120.0


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {
        **{f"{name}-bytes-of-formula": "<= 1.05" for name, _ in CODECS.values()},
        "sign-buffers-8-of-2-workers": "<= 1.05",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure both codecs at several numbers of workers, then the unions."""
    shares: dict[str, list[float]] = {codec: [] for codec in CODECS}
    buffers: dict[tuple[str, int], int] = {}
    for workers in (2, 8) if quick else range(2, 9):
        found = _averages(workers, list(CODECS))
        for codec, answers in found.items():
            _verify(codec, answers)
            formula = ELEMENTS * CODECS[codec][1] / 8 * 2 * (workers - 1) / workers
            out = max(answer["sent_bytes"] for answer in answers)
            predicted = transfers(CodecSpec.parse(codec), [(ELEMENTS,)], workers)
            buffers[codec, workers] = max(answer["buffer_bytes"] for answer in answers)
            shares[codec].append(out / formula)
            report.row(
                f"bytes out of a rank, {ELEMENTS} elements",
                codec=codec,
                workers=workers,
                sent=out,
                formula=round(formula),
                of_formula=round(out / formula, 4),
                predicted=round(sum(sent_bytes(each, workers) for each in predicted)),
                uncompressed=round(ELEMENTS * 8 * (workers - 1) / workers),
                buffers=buffers[codec, workers],
            )
    for codec, (name, _) in CODECS.items():
        report.bar(f"{name}-bytes-of-formula", max(shares[codec]))
    report.bar("sign-buffers-8-of-2-workers", buffers["sign", 8] / buffers["sign", 2])
    report.note(
        "bytes: of the rank that sends most, as the backend's connections count them; the formula "
        "is n bits / 8 x 2(workers - 1) / workers. Buffers: payloads sent and received"
    )
    for workers in (4,) if quick else (2, 4, 8):
        for share in (0.01, 0.1) if quick else (0.001, 0.01, 0.1):
            _union(report, workers, share)
    report.note(
        "TopK: a network of 85,002 parameters learns handwritten digits, 32 images a worker and "
        "step, by the mean of what the workers select of gradient and residual. Distinct: indices "
        "of the union over indices sent (1 / workers: all select the same; 1: none twice)"
    )


def _averages(workers: int, codecs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return every worker's answer, by rank, for each codec."""
    environment = {
        **WHERE,
        "OMP_NUM_THREADS": "1",
        "HEADRACE_MEASURE": "off",
        "HEADRACE_ADAPT": "off",
        "HEADRACE_SHARED_MEMORY": "off",
        "HEADRACE_SOCKET_IFNAME": "lo",
    }
    argv = [sys.executable, "-m", "benchmarks.compression.sent_rank"]
    roles = {rank: Role(name=f"rank {rank}", argv=argv, env=environment) for rank in range(workers)}
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder, Roles(roles) as started:
        for rank in roles:
            store = {"store": f"{folder}/store", "rank": rank, "ranks": workers}
            started.send(rank, store)
        for codec in codecs:
            for rank in roles:
                started.send(rank, {"codec": codec, "elements": ELEMENTS})
            answers: dict[int, dict[str, Any]] = {}
            while len(answers) < workers:
                message = started.expect("averaging", _ANSWER_S)
                if message is None:
                    raise RuntimeError(f"workers ended before they averaged with {codec}")
                answers[message[0]] = message[1]
            found[codec] = [answers[rank] for rank in sorted(answers)]
    return found


def _verify(codec: str, answers: Sequence[Mapping[str, Any]]) -> None:
    """Compare the workers' means with that among ranks of this process."""
    ranks = len(answers)
    given = [gradient(rank, ELEMENTS) for rank in range(ranks)]
    means = [torch.empty(ELEMENTS) for _ in range(ranks)]
    made = make_codec(codec)
    run_together(
        [
            made.average([given[rank]], [means[rank]], [{}], Context(rank=rank, ranks=ranks))
            for rank in range(ranks)
        ]
    )
    expected = {digest(mean) for mean in means}
    if expected != {answer["digest"] for answer in answers}:
        raise RuntimeError(f"{codec}: {ranks} workers' means differ from those in one process")


def _union(report: Report, workers: int, share: float) -> None:
    """Train by TopK with error feedback, and show how many indices differ among workers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model.append(nn.Linear(256, 10))
    parameters = list(model.parameters())
    digits: Any = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    total = sum(parameter.numel() for parameter in parameters)
    k = round(share * total)
    residuals = torch.zeros(workers, total)
    indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
    unions: list[int] = []
    correct = 0.0
    for _ in range(_STEPS):
        mean, chosen = torch.zeros(total), []
        for residual in residuals:
            batch = torch.randint(len(images), (_BATCH,))
            residual += _gradient(model, parameters, images[batch], labels[batch])
            select_topk(residual, k, indices, values)
            chosen.append(indices.clone())
            mean.index_add_(0, indices, values, alpha=1 / workers)
            residual.index_fill_(0, indices.long(), 0)
        unions.append(len(torch.cat(chosen).unique()))
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(parameters).detach() - _RATE * mean, parameters
        )
    with torch.no_grad():
        correct = float((model(images).argmax(1) == labels).float().mean())
    for name, window in (("first", unions[:_WINDOW]), ("last", unions[-_WINDOW:])):
        union = sum(window) / len(window)
        report.row(
            "TopK, union of the workers' indices",
            workers=workers,
            sent=f"{100 * share:g}%",
            steps=f"{name} {_WINDOW} of {_STEPS}",
            distinct=round(union / (workers * k), 3),
            union=f"{100 * union / total:.2f}%",
            trained_to=f"{100 * correct:.1f}%",
        )


def _gradient(
    model: nn.Module, parameters: Sequence[nn.Parameter], images: Tensor, labels: Tensor
) -> Tensor:
    loss = nn.functional.cross_entropy(model(images), labels)
    return torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, parameters)])
