"""The accuracy study: levels by epochs, shares of batches, and runs that are resumed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.compression.accuracy import study, tasks, training


def test_hand_set_levels_are_low_in_the_first_windows_and_after_decays() -> None:
    task = replace(tasks.TASKS["digits"], epochs=20, decays=(12, 17), window=2)
    wanted = [(0, "a"), (4, "b"), (12, "a"), (14, "b"), (17, "a"), (19, "b")]
    assert study.critical_epochs(task, "a", "b") == wanted


def test_shares_are_those_of_a_distributed_sampler() -> None:
    inputs, order = torch.arange(20.0), torch.arange(20).flip(0)
    first, _ = training.shares_of(inputs, inputs, order, 8, 4)
    assert [own.tolist() for own, _ in first] == [[19, 15], [18, 14], [17, 13], [16, 12]]


def test_every_regime_runs_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def data(seed: int) -> tuple[torch.Tensor, ...]:
        inputs = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        targets = (inputs.mean((1, 2, 3)) > 0).long()
        return inputs, targets, inputs, targets

    small = replace(tasks.TASKS["digits"], data=data, epochs=4, decays=(2,), window=1, batch=16)
    monkeypatch.setattr(study, "TASKS", {"digits": small})
    for regime in study.REGIMES:
        study.run_one("digits", 0, regime, tmp_path)
    rows = {row["regime"]: row for row in study.results(tmp_path)}
    assert list(rows) == list(study.REGIMES)
    assert rows["harsh"]["bytes"] < rows["accordion"]["bytes"] <= rows["gentle"]["bytes"]
    assert rows["gentle"]["bytes"] < rows["none"]["bytes"]
    assert rows["batches"]["bytes"] <= rows["none"]["bytes"]
    assert rows["accordion"]["decisions"]
    again = study.run_one("digits", 0, "accordion", tmp_path)
    assert again["accuracy"] == rows["accordion"]["accuracy"]  # the same seed, the same run
    monkeypatch.setattr(study, "TASKS", {"digits": replace(small, rate=1.0)})
    assert study.results(tmp_path) == []  # results of other settings are not mixed in
