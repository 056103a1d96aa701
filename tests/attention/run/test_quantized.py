"""Models whose weights have codes of 8 or 4 bits by torchao (Table 6.4)."""

import copy
from typing import Any

import pytest
import torch

import headrace.attention
from headrace.attention import StorageFormat
from headrace.attention.measure.likeness import measure_likeness
from headrace.attention.plan.choose import choose
from headrace.attention.run.loss import sample_losses
from tests.attention.models import WORDS, model_of, plain_plan, shared_plan, with_bits

quantization = pytest.importorskip("torchao.quantization")
granularity = pytest.importorskip("torchao.quantization.granularity")
pytestmark = pytest.mark.slow

CONFIGURATIONS: dict[str, Any] = {
    "8 bits": quantization.Int8WeightOnlyConfig(),
    "4 bits": quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=granularity.PerGroup(32)
    ),
}


@pytest.fixture(params=CONFIGURATIONS)
def model(request: pytest.FixtureRequest) -> Any:
    copied = copy.deepcopy(model_of("llama"))
    quantization.quantize_(copied, CONFIGURATIONS[request.param])
    return copied


def tokens_of(samples: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randint(3, WORDS, (samples, count), generator=generator)


def test_caches_are_of_the_same_numbers_whatever_the_weights_are(model: Any) -> None:
    tokens = tokens_of(2, 24)
    with torch.no_grad():
        own = model(input_ids=tokens).logits
        assert (own - model_of("llama")(input_ids=tokens).logits).abs().max() > 1e-3
        with headrace.attention.compress(model, plain_plan(model)):
            torch.testing.assert_close(model(input_ids=tokens).logits, own, rtol=0, atol=1e-5)
        plans = [shared_plan(model, fixed=fixed) for fixed in (False, True)]
        for plan in (*plans, with_bits(plans[0], StorageFormat.INT8, StorageFormat.INT8)):
            with headrace.attention.compress(model, plan):
                logits = model(input_ids=tokens).logits
                cache = headrace.attention.cache(model, plan)
                parts = [model(input_ids=part, cache=cache).logits for part in tokens.split(8, 1)]
                model.generate(input_ids=tokens, max_new_tokens=3, do_sample=False)
            tolerance = 2e-5 if plan in plans else 0.2
            torch.testing.assert_close(torch.cat(parts, dim=1), logits, rtol=0, atol=tolerance)


def test_a_plan_is_measured_and_made_for_a_model_of_few_bits(model: Any) -> None:
    samples = tokens_of(4, 40)
    profile = measure_likeness(model, samples, text="", progress=lambda *_: None)
    assert profile.model != headrace.attention.model_digest(model_of("llama"))

    def measure(name: str, plan: Any) -> list[float]:
        del name
        return sample_losses(model, plan, samples, lambda *_: None)

    plan = choose(profile, measure, allowed_loss=0.5, element_bytes=4)
    with headrace.attention.compress(model, plan):
        pass
    with pytest.raises(headrace.attention.AttentionError, match="other weights"):
        headrace.attention.cache(model_of("llama"), plan)


def test_a_step_reads_codes_and_units(model: Any) -> None:
    weights = headrace.attention.model_weights(model)
    full = headrace.attention.model_weights(model_of("llama"))
    assert weights.read_numbers == full.read_numbers
    assert weights.read_bytes < 0.4 * full.read_bytes
