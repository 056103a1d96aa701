"""Memory of a step by the name of a model: against a measured step, and names that are none."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from headrace import memory
from headrace.cli.main import main
from headrace.errors import InputError
from headrace.memory.errors import CaptureError
from headrace.memory.measure import named
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.read_values import ValuesReadAs

FAMILY = pytest.mark.sampled(4)
"""Tests of a family each, whose code takes long to import."""

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 2,
    "vocab_size": 800,
    "n_positions": 64,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_the_estimate_is_the_peak_of_a_measured_step(folder: Path) -> None:
    step = memory.estimate(str(folder), batch=4, length=32)
    assert step.inputs["input_ids"] == (4, 32)
    measured_bytes = _measured_bytes(folder, batch=4, length=32)
    assert abs(step.peak_bytes / measured_bytes - 1) < 0.02
    assert step.most_bytes["gradients"] == step.most_bytes["parameters"]
    assert step.most_bytes["optimizer"] >= 2 * step.most_bytes["parameters"]


def _measured_bytes(folder: Path, *, batch: int, length: int) -> int:
    """Return the peak of a step behind the first, with what is resident, in bytes."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(batch, length, dtype=torch.int64)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    def step() -> None:
        model(**inputs, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    state: list[Any] = [value for values in optimizer.state.values() for value in values.values()]
    resident = [*model.parameters(), *model.buffers(), *inputs.values(), *state]
    bytes_held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in resident}
    peak_bytes = allocations_of(step, torch.device("cpu"), aligned=True).peak_bytes
    return peak_bytes + sum(bytes_held.values())


@FAMILY
@pytest.mark.parametrize(
    ("head", "options", "targets"),
    [
        ("ForSequenceClassification", {}, {"labels": (2,)}),
        ("ForSequenceClassification", {"num_labels": 1}, {"labels": (2,)}),
        ("ForSequenceClassification", {"problem_type": "regression"}, {"labels": (2, 2)}),
        ("ForTokenClassification", {}, {"labels": (2, 8)}),
        ("ForQuestionAnswering", {}, {"start_positions": (2,), "end_positions": (2,)}),
        ("ForPreTraining", {}, {"labels": (2, 8), "next_sentence_label": (2,)}),
        ("ForMultipleChoice", {}, {"labels": (2,)}),
        ("Model", {}, {}),
    ],
)
def test_targets_are_those_of_the_class_in_the_configuration(
    tmp_path: Path, head: str, options: dict[str, Any], targets: dict[str, tuple[int, ...]]
) -> None:
    """A classifier got a label a token, which its loss refused."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = {"model_type": "bert", "architectures": [f"Bert{head}"]}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes | options))
    step = memory.estimate(str(tmp_path), batch=2, length=8)
    ids = (2, 4, 8) if head == "ForMultipleChoice" else (2, 8)
    assert step.inputs == {"input_ids": ids, "attention_mask": ids} | targets


@FAMILY
def test_labels_of_segmentation_are_of_pixels(tmp_path: Path) -> None:
    config = {"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"]}
    sizes = {"hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "depths": [1] * 4}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes | {"decoder_hidden_size": 8}))
    assert memory.estimate(str(tmp_path), size=32).inputs["labels"] == (1, 32, 32)


TOWER = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
IMAGE_TOWER = TOWER | {"intermediate_size": 16, "image_size": 32, "patch_size": 16}
TEXTS = {"input_ids": (2, 77), "attention_mask": (2, 77)}
IMAGES = {"pixel_values": (2, 3, 32, 32)}


@FAMILY
@pytest.mark.parametrize(
    ("head", "inputs"),
    [
        ("Model", TEXTS | IMAGES),
        ("TextModelWithProjection", TEXTS),
        ("VisionModelWithProjection", IMAGES),
        ("ForImageClassification", IMAGES | {"labels": (2,)}),
    ],
)
def test_models_of_texts_and_images_get_both_and_each_tower_its_own(
    tmp_path: Path, head: str, inputs: dict[str, tuple[int, ...]]
) -> None:
    """A tower was made of the configuration of both, and images had 224 pixels."""
    towers = {"text_config": TOWER | {"intermediate_size": 16}, "vision_config": IMAGE_TOWER}
    config = {"model_type": "clip", "architectures": [f"CLIP{head}"], "projection_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | towers))
    assert memory.estimate(str(tmp_path), batch=2).inputs == inputs
    if head == "Model":
        assert memory.estimate(str(tmp_path), size=64).inputs["pixel_values"] == (1, 3, 64, 64)
        with pytest.raises(InputError, match="positions for 77 tokens, not for 100"):
            memory.estimate(str(tmp_path), length=100)


@FAMILY
def test_labels_that_are_a_list_of_objects_are_left_out(tmp_path: Path) -> None:
    sizes = {"image_size": [32, 64], "intermediate_size": 16, "patch_size": 16}
    config = {"model_type": "yolos", "architectures": ["YolosForObjectDetection"]}
    (tmp_path / "config.json").write_text(json.dumps(config | TOWER | sizes))
    assert memory.estimate(str(tmp_path), batch=2).inputs == {"pixel_values": (2, 3, 32, 64)}


@FAMILY
def test_a_loss_of_what_the_mask_selects_is_of_all(tmp_path: Path) -> None:
    """Its size depends on values, which a step without them has not."""
    config = {"model_type": "electra", "architectures": ["ElectraForPreTraining"]}
    sizes = TOWER | {"embedding_size": 16, "vocab_size": 64, "intermediate_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    assert memory.estimate(str(tmp_path), length=8).inputs["labels"] == (1, 8)
    with pytest.raises(CaptureError, match="without a budget, its step is estimated as it is"):
        memory.estimate(str(tmp_path), length=8, budget="1GiB")


@FAMILY
def test_a_model_that_takes_another_sample_is_refused_with_a_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch logged the trace of the operator that failed, too."""
    tower = TOWER | {"intermediate_size": 16}
    towers = {"text_config": tower | {"vocab_size": 64}, "vision_config": tower}
    config = {"model_type": "siglip2", "architectures": ["Siglip2Model"]}
    (tmp_path / "config.json").write_text(json.dumps(config | towers))
    with pytest.raises(CaptureError, match="run on fake tensors: .*: headrace memory measure"):
        memory.estimate(str(tmp_path))
    assert "failed while attempting" not in capfd.readouterr().err


@pytest.mark.parametrize("number", [0, 1])
def test_values_that_are_read_are_those_of_one_number(number: int) -> None:
    def read(mask: torch.Tensor, numbers: torch.Tensor) -> list[Any]:
        unique, inverse, counts = torch.unique_consecutive(numbers, True, True)
        selected = numbers[mask], numbers[:, mask[0]], mask.nonzero()
        shapes = [tuple(tensor.shape) for tensor in (*selected, unique, inverse, counts)]
        return [mask.all().item(), numbers[0, 0].item(), *shapes]

    with FakeTensorMode(), ValuesReadAs(number):
        without_values = read(torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3))
    values = torch.full((2, 3), number)
    assert without_values == read(values.bool(), values.float())


@pytest.mark.parametrize("number", [0, 1])
def test_random_numbers_are_read_as_one(number: int) -> None:
    with FakeTensorMode(), ValuesReadAs(number):
        assert torch.rand([]) >= 0.9
        assert not torch.rand(1) < 0.1
        assert (2 * torch.rand(1)).item() == 2.0
        assert torch.rand(3)[0].item() == number


@FAMILY
def test_layers_that_are_dropped_at_random_are_counted(tmp_path: Path) -> None:
    """None was: a comparison with a random number was true."""
    sizes = {"d_model": 16, "vocab_size": 64, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    sizes |= {f"{half}_layers": 2 for half in ("encoder", "decoder")}
    sizes |= {f"{half}_attention_heads": 2 for half in ("encoder", "decoder")}
    steps: list[memory.StepEstimate] = []
    for share in (0.0, 0.1):
        config = {"model_type": "m2m_100", "encoder_layerdrop": share, "decoder_layerdrop": share}
        (tmp_path / "config.json").write_text(json.dumps(config | sizes))
        steps.append(memory.estimate(str(tmp_path), length=128))
    assert steps[0].most_bytes == steps[1].most_bytes


@FAMILY
def test_few_tokens_of_global_attention_are_none(tmp_path: Path) -> None:
    sizes = TOWER | {"intermediate_size": 16, "attention_window": [8], "vocab_size": 64}
    config = {"model_type": "longformer", "max_position_embeddings": 66}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    assert memory.estimate(str(tmp_path), length=16).inputs["labels"] == (1, 16)


@FAMILY
@pytest.mark.parametrize(
    ("kind", "options", "shape"),
    [("deit", {}, (1, 3, 32, 32)), ("videomae", {"num_frames": 2}, (1, 2, 3, 32, 32))],
)
def test_images_are_those_of_the_configuration(
    tmp_path: Path, kind: str, options: dict[str, int], shape: tuple[int, ...]
) -> None:
    """DeiT has two classes of one task, and videos were single images."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} | IMAGE_TOWER | options))
    inputs = memory.estimate(str(tmp_path)).inputs
    assert inputs["pixel_values"] == shape


def test_a_class_that_returns_no_loss_is_named() -> None:
    class WithoutLoss(torch.nn.Module):
        def forward(self, labels: torch.Tensor) -> dict[str, Any]:
            return {"loss": None, "logits": labels}

    with pytest.raises(RuntimeError, match="WithoutLoss returns no loss for labels alone"):
        named.LossAlone(WithoutLoss())(labels=torch.zeros(1))


@pytest.mark.slow
def test_a_budget_has_a_cost_and_the_batch_that_it_has_room_for(folder: Path) -> None:
    name = str(folder)
    plain = memory.estimate(name, batch=4, length=64)
    share = (plain.peak_bytes * 9) // 10
    budget = memory.estimate(name, batch=4, length=64, budget=share).budget
    assert budget is not None
    assert budget.overhead is not None
    assert 0 <= budget.overhead < 1  # implementations that need less can take no longer
    assert 0 < budget.eager_batch < 4
    assert budget.largest_batch is not None
    assert budget.largest_batch >= 4
    fits = memory.estimate(name, batch=budget.eager_batch, length=64)
    assert fits.peak_bytes <= share
    tight = memory.estimate(name, batch=4, length=64, budget=plain.most_bytes["parameters"]).budget
    assert tight is not None
    assert (tight.overhead, tight.eager_batch, tight.largest_batch) == (None, 0, 0)
    assert tight.least_bytes is not None


@pytest.mark.slow
def test_the_largest_batch_as_it_is_is_found_from_one_whose_peak_is_of_gradients(
    folder: Path,
) -> None:
    """It was on the line through the peaks of two small batches, and a hundred times too large."""
    name = str(folder)
    peak_bytes = memory.estimate(name, batch=48, length=8).peak_bytes
    budget = memory.estimate(name, batch=1, length=8, budget=peak_bytes).budget
    assert budget is not None
    assert 45 <= budget.eager_batch <= 49


def test_images_and_a_stateless_optimizer() -> None:
    pytest.importorskip("timm")
    step = memory.estimate("resnet18", batch=2, size=64, optimizer="SGD")
    assert step.inputs == {"0": (2, 3, 64, 64), "1": (2,)}
    assert step.parameter_count == 11_689_512
    assert step.most_bytes["optimizer"] == 0


def test_a_tag_of_timm_has_its_own_classes_and_image_size(tmp_path: Path) -> None:
    """Tags were dropped, and a folder's configuration of the weights, too."""
    pytest.importorskip("timm")
    model = named.named_model("convnext_atto.d2_in1k", dtype=torch.float32).model
    many = named.named_model("convnext_base.fb_in22k", dtype=torch.float32).model
    assert (model.num_classes, many.num_classes) == (1000, 21841)
    config = {"architecture": "resnet18", "num_classes": 5}
    weights = {"input_size": [1, 64, 96], "num_classes": 5}
    (tmp_path / "config.json").write_text(json.dumps(config | {"pretrained_cfg": weights}))
    sample, _ = named.named_model(str(tmp_path), dtype=torch.float32).arguments(2)[0]
    assert sample.shape == (2, 1, 64, 96)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "bart-"}, "near: bart"),
        ({"name": "nobody/nothing"}, "hf download nobody/nothing config.json"),
        ({"name": "bert", "dtype": "int3"}, "dtype is 'int3', needs one of float32"),
        ({"name": "bert", "optimizer": "Adamant"}, "optimizer is 'Adamant'"),
        ({"name": "bert", "optimizer": torch.optim.AdamW}, "needs a class of torch.optim such as"),
        ({"name": "bert", "batch": 0}, "batch is 0"),
        ({"name": "bert", "batch": 1.5}, "batch is 1.5, needs a whole number"),
        ({"name": "wav2vec2"}, "wav2vec2 takes input_values"),
        ({"name": ""}, "the name of the model is empty"),
        ({"name": "gpt2", "length": 1025}, "gpt2 has positions for 1,024 tokens, not for 1,025"),
        ({"name": "bert", "size": 224}, "bert takes tokens: the size of images is 224, leave it"),
        ({"name": "resnet18", "length": 64}, "resnet18 takes images: the length in tokens is 64"),
        ({"name": "resnet18.a1_in1"}, r"no tag 'a1_in1'; near: resnet18\.a1_in1k, "),
        ({"name": "bert", "length": 100_000}, "positions for 512 tokens, not for 100,000"),
    ],
)
def test_what_is_no_name_or_option_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory.estimate(**arguments)


@pytest.mark.parametrize("optimizer", ["SparseAdam", "Muon"])
def test_an_optimizer_that_cannot_step_is_named(folder: Path, optimizer: str) -> None:
    """The error said that the model could not be run."""
    with pytest.raises(CaptureError, match=f"the step of the optimizer {optimizer} cannot be run"):
        memory.estimate(str(folder), length=8, optimizer=optimizer)


def test_an_optimizer_that_reads_norms_of_parameters_has_its_state_of_rows(folder: Path) -> None:
    """Adafactor was refused."""
    step = memory.estimate(str(folder), length=8, optimizer="Adafactor")
    assert 0 < step.most_bytes["optimizer"] < step.most_bytes["parameters"] / 8


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json: needs a folder"):
        memory.estimate(str(tmp_path))
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="but parts with one: give one of unet"):
        memory.estimate(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="but an adapter .*: give the model that it is for"):
        memory.estimate(str(tmp_path))
    for text in ('{"model_type": "nothing"}', '{"model_type": "llama", "hidden_size": "x"}', "3"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match="transformers cannot read it"):
            memory.estimate(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        memory.estimate(str(tmp_path))


def test_code_of_a_model_is_neither_run_nor_asked_for(tmp_path: Path) -> None:
    """Transformers asked on the terminal whether to run it, and waited for an answer."""
    names = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": names}))
    with pytest.raises(InputError, match="has code of its own .*headrace memory measure"):
        memory.estimate(str(tmp_path))


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "is_installed", lambda package: package != "timm")
    with pytest.raises(
        InputError, match=r"timm is not installed \(pip install 'headrace\[models\]'"
    ):
        memory.estimate("resnet50")


@pytest.mark.parametrize(
    ("budget", "printed"),
    [
        ((), ()),
        pytest.param(("--budget", "64MiB"), ("Within 64 MiB",), marks=pytest.mark.slow),
    ],
)
def test_the_command_prints_a_step_by_kind_and_its_budget(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    budget: tuple[str, ...],
    printed: tuple[str, ...],
) -> None:
    arguments = ["headrace", "memory", "estimate", str(folder), "--sample-tokens", "16"]
    monkeypatch.setattr(sys, "argv", [*arguments, *budget])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for part in ("GPT2LMHeadModel of transformers", "activations", "The peak is in", *printed):
        assert part in text


@pytest.mark.slow
def test_the_documented_call_prints_the_step_of_bert(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "memory.md").read_text()
    code = page.split("from headrace.memory import estimate\n")[1].split("```")[0]
    exec(code, {"estimate": memory.estimate})
    peak_bytes, activation_bytes = map(int, capsys.readouterr().out.split())
    assert 1 << 30 < peak_bytes < 1 << 31
    assert activation_bytes < peak_bytes
