"""Training data: families of many forms, reproducible draws, results that are kept and resumed."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.index import datasets
from benchmarks.index.training import collect as collecting
from benchmarks.index.training import train as training
from benchmarks.index.training.generators import FAMILIES, generate
from benchmarks.index.training.traces import draw, trace_of
from headrace.index.plan.grid import grid
from headrace.index.plan.model import load_model
from tests.index.plan.models import FakeTrials, profile


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_distinct_ascending_codes(family: str) -> None:
    for seed in range(6):
        codes = generate(family, 3000, np.random.default_rng(seed))
        assert codes.dtype == np.uint64
        assert (codes[1:] > codes[:-1]).all()
        assert 1500 <= len(codes) <= 4100
    assert np.array_equal(codes, generate(family, 3000, np.random.default_rng(5)))


def test_the_benchmarks_sets_are_held_out() -> None:
    assert not set(FAMILIES) & set(datasets.NAMES)


def test_draws_are_reproducible_and_of_every_family() -> None:
    draws = [draw(seed, least=1000, most=4000) for seed in range(20)]
    assert {each.family for each in draws} == set(FAMILIES)
    assert draws == [draw(seed, least=1000, most=4000) for seed in range(20)]
    for each in draws:
        trace = trace_of(each)
        assert len(trace) > 50
        assert (np.diff(trace.loaded.astype(object)) > 0).all()


@pytest.mark.slow
def test_a_model_is_trained_on_what_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Larger fragments are faster here by construction: the model has to learn that."""
    trials = FakeTrials(
        lambda each: 2e6 * (each.fragment_keys if each.leaf == "hashed" else 64) ** 0.5
    )
    for seed in range(20):
        collecting.collect(seed, 1000, 2000, trials, tmp_path / f"{seed:06d}.npz")
    assert len(trials.asked) == 20 * len(grid())
    output = tmp_path / "model.npz"
    arguments = ["train", "--folder", str(tmp_path), "--output", str(output), "--folds", "2"]
    monkeypatch.setattr("sys.argv", [*arguments, "--epochs", "30", "--seeds", "1"])
    assert training.main() == 0
    assert "both_best_of_12_mean_loss" in capsys.readouterr().out
    model = load_model(output)
    found = model.predict(profile().encoding, grid()).operations_per_s
    assert grid()[int(np.argmax(found))].fragment_keys == 2048
    assert model.provenance["held_out"]["traces"] == 20
