"""The likeness of heads that are copies, uniform, or neither; text, and losses."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, LlamaForCausalLM

from headrace.attention import AttentionError, AttentionProfile, StorageFormat, compress
from headrace.attention.measure import likeness
from headrace.attention.measure.likeness import measure_likeness
from headrace.attention.measure.text import documentation, text_of_files, token_samples
from headrace.attention.run.loss import sample_losses
from tests.attention.allocations import Allocations
from tests.attention.models import WORDS, model_of, plain_plan, shared_plan, with_bits


def silent(what: str, share: float) -> None:
    assert 0 <= share <= 1


@pytest.fixture(scope="module")
def samples() -> torch.Tensor:
    return torch.randint(3, WORDS, (3, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def profile(samples: torch.Tensor) -> AttentionProfile:
    """Of a model whose third head is a copy of the first, and whose last is uniform."""
    model = LlamaForCausalLM(copy.deepcopy(model_of("llama").config)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.mul_(12)
                rows = projection.weight.unflatten(0, (4, -1))
                rows[2] = rows[0]
                rows[3] = 0
    return measure_likeness(model, samples, text="digest", progress=silent)


def test_copies_are_alike_and_uniform_heads_are_seen(profile: AttentionProfile) -> None:
    for layer in profile.layers:
        for matrix in (
            layer.correlation,
            layer.correlation_beyond_first,
            layer.sample_correlation,
            layer.sample_correlation_beyond_first,
        ):
            assert matrix[0, 2] == pytest.approx(1, abs=1e-5)
            assert matrix[0, 1] < 0.95
            np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
        assert layer.distance[0, 2] == pytest.approx(0, abs=1e-8)
        assert layer.distance[0, 1] > 1e-3
        assert layer.output_error[0, 2] == pytest.approx(0, abs=1e-9)
        assert layer.output_error[2, 0] == pytest.approx(0, abs=1e-9)
        assert layer.output_error[1, 0] > 1e-3
        assert layer.uniformity[3] == pytest.approx(1, abs=1e-5)
        assert layer.uniformity[0] < 0.95
        assert ((layer.changes >= 0) & (layer.changes <= 1)).all()


def test_correlations_are_numpys(samples: torch.Tensor) -> None:
    """Of one sample, against all its probabilities at once."""
    model = copy.deepcopy(model_of("llama-gqa"))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(samples[:1], output_attentions=True).attentions
    measured = measure_likeness(model_of("llama-gqa"), samples, text="", progress=silent)
    for layer, attention in zip(measured.layers, attentions, strict=True):
        rows = attention[0].double().numpy()
        expected = np.corrcoef(rows.reshape(4, -1))
        np.testing.assert_allclose(layer.sample_correlation, expected, atol=1e-5)
        beyond = rows[:, 1:, 1:] / rows[:, 1:, 1:].sum(-1, keepdims=True)
        expected = np.corrcoef(beyond.reshape(4, -1))
        np.testing.assert_allclose(layer.sample_correlation_beyond_first, expected, atol=1e-5)


class Adapter(nn.Module):
    """A projection with an adapter, as PEFT has it: of another class, with the same weight."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base_layer(hidden)


def test_output_errors_are_of_the_projection_within_an_adapter(samples: torch.Tensor) -> None:
    """Its weight was read as that of GPT-2's kind of projection, which has it transposed."""
    model = copy.deepcopy(model_of("llama"))
    expected = measure_likeness(model, samples, text="", progress=silent)
    for layer in model.model.layers:
        layer.self_attn.o_proj = Adapter(layer.self_attn.o_proj)
    measured = measure_likeness(model, samples, text="", progress=silent)
    for layer, of_base in zip(measured.layers, expected.layers, strict=True):
        np.testing.assert_allclose(layer.output_error, of_base.output_error, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "block_bytes"), [(40, 1000), (40, 3000), (7, 1)])
def test_queries_come_in_blocks(
    tokens: int, block_bytes: int, samples: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama-gqa")
    whole = measure_likeness(model, samples[:, :tokens], text="", progress=silent)
    monkeypatch.setattr(likeness, "_BLOCK_BYTES", block_bytes)
    blocks = measure_likeness(model, samples[:, :tokens], text="", progress=silent)
    for layer, expected in zip(blocks.layers, whole.layers, strict=True):
        for name in ("correlation", "distance", "output_error", "uniformity", "changes"):
            np.testing.assert_allclose(
                getattr(layer, name), getattr(expected, name), rtol=0, atol=1e-5
            )


def test_a_measurement_takes_little_memory_beside_the_model() -> None:
    """At 1,024 tokens the probabilities of 8 heads took 150 MB, and the logits 260 MB."""
    config = copy.deepcopy(model_of("llama").config)
    config.update({"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16})
    config.update({"vocab_size": 64_000, "num_hidden_layers": 1})
    model = LlamaForCausalLM(config).eval()
    tokens = torch.randint(3, 100, (2, 1024))
    with torch.no_grad(), Allocations() as own:
        model.base_model(tokens[:1], use_cache=False)
    with Allocations() as measuring:
        measure_likeness(model, tokens, text="", progress=silent)
    assert measuring.peak_bytes - own.peak_bytes < 64e6
    with Allocations() as counted:
        kept = torch.zeros(1000)
        (torch.zeros(500) + 1).sum()
    assert kept.nbytes + 2 * 2000 <= counted.peak_bytes < kept.nbytes + 3 * 2000


def test_probabilities_that_are_no_numbers_are_named(samples: torch.Tensor) -> None:
    """LinAlgError of the clustering, after all samples."""
    model = copy.deepcopy(model_of("llama"))
    model.model.layers[1].self_attn.q_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(AttentionError, match="layer 1 has probabilities that are not numbers"):
        measure_likeness(model, samples, text="", progress=silent)


def test_an_interrupted_measurement_is_of_the_samples_until_then(samples: torch.Tensor) -> None:
    model = model_of("llama")
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) == 2

    part = measure_likeness(model, samples, text="", progress=silent, stopped=stopped)
    assert part.samples == 2
    first = measure_likeness(model, samples[:2], text="", progress=silent)
    assert part.digest == first.digest


def test_a_profile_comes_back_from_its_file(profile: AttentionProfile, tmp_path: Path) -> None:
    profile.save(tmp_path / "profile.json")
    loaded = AttentionProfile.load(tmp_path / "profile.json")
    assert loaded.digest == profile.digest
    for name in ("output_error", "sample_correlation_beyond_first"):
        np.testing.assert_array_equal(
            getattr(loaded.layers[1], name), getattr(profile.layers[1], name)
        )
    assert "2 layers, 3 samples of 40 tokens" in repr(loaded)


def test_output_errors_are_those_of_the_layers_output(samples: torch.Tensor) -> None:
    """Against the change of a layer's output by a plan in which one head follows another."""
    model = model_of("llama")
    measured = measure_likeness(model, samples, text="", progress=silent).layers[0].output_error
    assert np.diag(measured) == pytest.approx(0)
    plan = plain_plan(model)
    attention = model.model.layers[0].self_attn
    recorded: dict[str, torch.Tensor] = {}
    handles = [
        attention.register_forward_hook(lambda _, __, out: recorded.update(output=out[0])),
        attention.o_proj.register_forward_pre_hook(lambda _, args: recorded.update(heads=args[0])),
    ]
    try:
        with torch.no_grad(), compress(model, plan):
            model(samples)
        exact, heads = recorded["output"], recorded["heads"].unflatten(-1, (4, -1))
        weight = attention.o_proj.weight.detach().unflatten(-1, (4, -1))
        for head, other in ((0, 2), (3, 1)):
            rows = [0, 1, 2, 3]
            rows[head] = other
            shared = replace(plan.layers[0], clusters=3, key_heads=3, representatives=tuple(rows))
            with torch.no_grad(), compress(model, replace(plan, layers=(shared, plan.layers[1]))):
                model(samples)
            change = (recorded["output"] - exact).square().mean()
            own = torch.einsum("bthd,whd->bthw", heads, weight).square().mean()
            assert measured[other, head] == pytest.approx(float(change / own), rel=1e-3)
    finally:
        for handle in handles:
            handle.remove()


def test_losses_of_a_plan_that_changes_nothing_are_the_models(samples: torch.Tensor) -> None:
    model = model_of("llama")
    own = sample_losses(model, None, samples, silent)
    assert sample_losses(model, plain_plan(model), samples, silent) == pytest.approx(own, abs=1e-5)
    for plan in (
        shared_plan(model, fixed=False),
        with_bits(plain_plan(model), StorageFormat.INT8, StorageFormat.INT8),
    ):
        losses = sample_losses(model, plan, samples, silent)
        assert losses != pytest.approx(own, abs=1e-5)
        assert losses == pytest.approx(own, rel=0.5)
    assert not model.training


def test_text_is_the_users_or_that_of_python(folder: Path, tmp_path: Path) -> None:
    text = documentation()
    assert len(text) > 500_000
    assert "lambda" in text
    assert text_of_files([]) == text
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "b.txt").write_text("three")
    assert text_of_files([tmp_path / "a.txt", tmp_path / "b.txt"]) == "one two\n\nthree"
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(AttentionError, match=r"c\.txt: cannot be read as text"):
        text_of_files([tmp_path / "c.txt"])
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    first, second = (token_samples(tokenizer, text, 2, 50, skip=skip) for skip in (0, 1))
    assert torch.equal(first[1], second[0])
    with pytest.raises(AttentionError, match="the text has 2 tokens, needs 50: pass more"):
        token_samples(tokenizer, "one two", 2, 50)
