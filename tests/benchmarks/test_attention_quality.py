"""The quality section of attention's benchmark: growing a model, and the compared methods."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.attention import quality_models, quality_text
from benchmarks.attention.quality_losses import Losses, Samples, Subject
from benchmarks.attention.quality_models import grown, new_model, pair_differences
from benchmarks.attention.quality_rivals import (
    LayerSample,
    dejavu,
    method_losses,
    reused_heads,
    spatten,
)
from benchmarks.kept import KeptRows
from headrace.attention.plan.plan import FIRST_TOKENS
from headrace.attention.run.loss import sample_losses


def test_a_grown_model_computes_the_same_function_and_its_pairs_are_equal() -> None:
    torch.manual_seed(0)
    model = new_model(quality_models.HEADS).double().eval()
    larger = grown(model).eval()
    tokens = torch.randint(0, 256, (2, 40))
    with torch.no_grad():
        expected, logits = (network(input_ids=tokens).logits for network in (model, larger))
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    assert not pair_differences(larger).any()


def test_differences_of_pairs_are_norms_of_their_own_weights() -> None:
    torch.manual_seed(0)
    model = grown(new_model(quality_models.HEADS))
    with torch.no_grad():
        weight = model.model.layers[1].self_attn.k_proj.weight
        pair = weight[4 * quality_models.HEAD_DIM : 5 * quality_models.HEAD_DIM]
        pair *= 0.75
    differences = pair_differences(model)
    assert differences[1, 1, 2] == pytest.approx(0.25)
    assert differences.count_nonzero() == 1


def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = torch.arange(4096).remainder(251).to(torch.uint8)
    monkeypatch.setattr(quality_models, "training_tokens", lambda *, packages: text)
    monkeypatch.setattr(quality_models, "_TOKENS", 32)
    training = quality_models.Training(plain_tokens=6 * 64, grown_tokens=0, packages=False)

    def trained(folder: str) -> dict[str, torch.Tensor]:
        return quality_models.plain_model(0, training, tmp_path / folder).state_dict()

    expected = trained("at once")
    monkeypatch.setattr(quality_models, "_STATE_S", 0.0)
    store, stored = quality_models._store, []

    def interrupted(*state: object) -> None:
        store(*state)
        stored.append(state)
        if len(stored) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(quality_models, "_store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained("resumed")
    resumed = trained("resumed")
    assert len(stored) == 6 + 1, "three steps before, three after, and the end"
    for name, weight in expected.items():
        assert torch.equal(weight, resumed[name]), name


def test_growing_stops_once_all_pairs_differ_and_says_where_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = torch.arange(4096).remainder(251).to(torch.uint8)
    monkeypatch.setattr(quality_models, "training_tokens", lambda *, packages: text)
    monkeypatch.setattr(quality_models, "_TOKENS", 16)
    training = quality_models.Training(plain_tokens=32, grown_tokens=32 * 40, packages=False)
    with pytest.raises(ArithmeticError, match="pairs of heads differ by 0.0"):
        quality_models.grown_model(0, training, tmp_path)
    monkeypatch.setattr(quality_models, "DIFFERENCE", 1e-3)
    training = quality_models.Training(plain_tokens=32, grown_tokens=32 * 60, packages=False)
    assert pair_differences(quality_models.grown_model(0, training, tmp_path)).min() >= 1e-3
    state = torch.load(next(tmp_path.glob("grown-0-*.pt")))
    steps = {torch.load(path)["step"] for path in tmp_path.glob("grown-0-*.pt")}
    assert steps == {40, 20}, "it was checked every 20 steps"
    assert state["optimizer"] is None


def _sample(layer: int, probabilities: torch.Tensor, values: torch.Tensor) -> LayerSample:
    heads, _, dim = values.shape
    return LayerSample(
        layer=layer,
        layers=2,
        scores=probabilities.log(),
        values=values,
        output=torch.eye(dim).expand(heads, dim, dim),
    )


def _causal(heads: int, tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(heads, tokens, tokens, generator=generator).tril()
    return scores / scores.sum(-1, keepdim=True)


def test_dejavu_drops_for_every_query_the_heads_of_the_least_output() -> None:
    probabilities = torch.eye(3).expand(4, 3, 3)
    values = torch.tensor([[4.0, 1, 1], [3, 2, 4], [1, 3, 3], [2, 4, 2]])[..., None]
    outputs = dejavu(0.5)(_sample(0, probabilities, values))
    expected = torch.tensor([[4.0, 0, 0], [3, 0, 4], [0, 3, 3], [0, 4, 0]])
    assert torch.equal(outputs[..., 0], expected)


def test_dejavu_drops_by_what_a_head_adds_to_the_layer() -> None:
    sample = _sample(0, torch.eye(1).expand(2, 1, 1), torch.tensor([[[1.0]], [[2.0]]]))
    weighted = LayerSample(
        layer=0,
        layers=1,
        scores=sample.scores,
        values=sample.values,
        output=torch.tensor([[[3.0]], [[1.0]]]),
    )
    assert dejavu(0.5)(sample)[:, 0, 0].tolist() == [0, 2]
    assert dejavu(0.5)(weighted)[:, 0, 0].tolist() == [1, 0]


def test_spatten_prunes_what_past_queries_looked_at_least() -> None:
    method = spatten()
    # all queries look at token 1 as soon as they can, and so no later query at token 0
    first = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]])
    values = torch.ones(1, 4, 1)
    assert torch.equal(method(_sample(0, first, values)), torch.ones(1, 4, 1))
    values = torch.tensor([[[8.0], [4], [2], [1]]])
    uniform = torch.ones(1, 4, 4).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    outputs = method(_sample(1, uniform, values))[0, :, 0]
    # of half of the tokens before: query 2 loses one of 0 and 1, query 3 one of 0, 1 and 2
    assert outputs.tolist() == pytest.approx([8, 6, (4 + 2) / 2, (8 + 4 + 1) / 3])


def test_spatten_gives_a_query_whose_token_was_pruned_the_others() -> None:
    """Their probabilities beside that one were zeros, which divided by their sum are no numbers."""
    method = spatten()
    values = torch.tensor([[[8.0], [4], [2]]])
    at_first = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [1, 0, 0]]])
    method(_sample(0, at_first, values))
    scores = torch.tensor([[[0.0, -torch.inf, -torch.inf], [0, 200, -torch.inf], [0, 200, 0]]])
    outputs = method(replace(_sample(1, at_first, values), scores=scores))[0, :, 0]
    assert outputs.tolist() == pytest.approx([8, 4, (8 + 2) / 2])


def test_spatten_drops_heads_by_the_layers_before_and_not_by_later_queries() -> None:
    method = spatten()
    heads, tokens = 10, 3
    values = torch.ones(heads, tokens, 1)
    values[7] = 0.1
    probabilities = torch.eye(tokens).expand(heads, tokens, tokens)
    assert torch.equal(method(_sample(0, probabilities, values)), values)
    values = torch.ones(heads, tokens, 1)
    dropped = method(_sample(1, probabilities, values))[..., 0] == 0
    assert dropped.nonzero().tolist() == [[7, 0], [7, 1], [7, 2]]
    reset = method(_sample(0, probabilities, values))
    assert torch.equal(reset, values), "a sample begins without importance"


def test_reused_heads_take_the_values_of_their_representatives_too() -> None:
    tokens = FIRST_TOKENS + 2
    probabilities = _causal(2, tokens).repeat_interleave(2, dim=0)
    values = torch.arange(4.0)[:, None, None].expand(4, tokens, 1)
    outputs = reused_heads(2)(_sample(0, probabilities, values))[..., 0]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[2], outputs[3])
    assert outputs[0, 0] in (0, 1)
    assert outputs[2, 0] in (2, 3)


def test_a_method_that_changes_nothing_has_the_models_own_losses() -> None:
    torch.manual_seed(0)
    model = new_model(quality_models.HEADS).eval()
    samples = torch.randint(0, 256, (2, 24))
    own = sample_losses(model, None, samples, lambda text, share: None)
    unchanged = method_losses(model, lambda sample: sample.probabilities @ sample.values, samples)
    assert unchanged == pytest.approx(own, rel=1e-5)
    assert method_losses(model, dejavu(1.0), samples) != pytest.approx(own, rel=1e-5)


def test_held_out_text_is_not_trained_on() -> None:
    trained = bytes(quality_text.training_tokens(packages=False).tolist())
    text = quality_text.held_out_text()
    pieces = [text[first : first + 4096].encode() for first in range(0, len(text), 4096)]
    assert len(pieces) > 20
    assert not any(piece in trained for piece in pieces)
    assert 3.5 < len(trained) / len(text.encode()) < 4.5


def test_a_pass_key_is_in_a_prompt_of_so_many_tokens_once_before_the_question() -> None:
    def tokenizer(text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        """Return tokens of five bytes, which are longer than a real tokenizer's on average."""
        assert not add_special_tokens
        encoded = text.encode()
        pieces = (encoded[first : first + 5] for first in range(0, len(encoded), 5))
        return {"input_ids": [int.from_bytes(piece.ljust(5), "big") for piece in pieces]}

    prompts = quality_text.passkey_prompts(tokenizer, 600, 3)
    assert len({passkey for _, passkey in prompts}) == 3
    for prompt, passkey in prompts:
        encoded = b"".join(token.to_bytes(5, "big") for token in prompt[0].tolist())
        text = encoded.decode(errors="replace").rstrip()
        assert prompt.shape == (1, 600)
        assert text.count(passkey) == 2, "the fact says it twice"
        assert text.endswith("The pass key is")


def test_losses_that_were_measured_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.kept.ROOT", tmp_path)
    samples = torch.arange(45 * 8).reshape(45, 8)
    measured: list[int] = []

    def measure(part: torch.Tensor) -> list[float]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(len(part))
        return [float(first) for first in part[:, 0]]

    def losses(seed: int) -> Losses:
        torch.manual_seed(seed)
        subject = Subject(
            name="plain",
            seed=0,
            model=new_model(quality_models.HEADS),
            tokenizer=None,
            samples=Samples(profile=samples, plan=samples, unseen=samples),
            clusters=(),
            barred=(),
        )
        return Losses(KeptRows("attention", "quality", quick=True), subject)

    with pytest.raises(KeyboardInterrupt):
        losses(0).measured("a method", samples, measure)
    assert measured == [20, 20]
    measured.clear()
    assert losses(0).measured("a method", samples, measure) == [8.0 * row for row in range(45)]
    assert measured == [5], "the chunks of the run before were kept"
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        losses(1).measured("a method", samples, measure)
    assert measured == [20, 20], "another model's losses are others"
