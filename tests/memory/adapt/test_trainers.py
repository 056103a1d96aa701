"""Trainers that own the loop: a fitted model in place of theirs, and their checkpoints."""

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headrace.memory import FittedModule, fit

WORDS = 64


def small_gpt() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=WORDS, n_positions=16
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config).train()


def rows(count: int) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    ids = torch.randint(WORDS, (count, 16))
    return [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids
    ]


def sample(batch: int) -> dict[str, Tensor]:
    dataset = rows(batch)
    return {name: torch.stack([row[name] for row in dataset]) for name in dataset[0]}


def trained(model: Any, folder: Path) -> float:
    """Train for three steps, save, and return the loss."""
    import transformers

    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows(12))
    loss = trainer.train().training_loss
    trainer.save_model(str(folder))
    return loss


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_transformers_trainer_takes_a_fitted_model_and_saves_its_configuration(
    tmp_path: Path,
) -> None:
    """In place of ``gradient_checkpointing=True``; checkpoints had no config.json."""
    pytest.importorskip("accelerate")
    import transformers

    model = small_gpt()
    eager = deepcopy(model)
    fitted = fit(model, sample(4), "100MiB", cache=False)
    expected = trained(eager, tmp_path / "eager")
    assert trained(fitted, tmp_path / "fitted") == pytest.approx(expected, rel=1e-5)
    assert len(fitted.plans) == 2  # the trainer also passes the number of tokens
    counted = {**sample(4), "num_items_in_batch": torch.tensor(1.0)}
    once = fit(small_gpt(), counted, "100MiB", cache=False)
    assert trained(once, tmp_path / "once") == pytest.approx(expected, rel=1e-5)
    assert len(once.plans) == 1
    config = json.loads((tmp_path / "fitted" / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fitted")
    for own, saved in zip(fitted.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(own, saved)


def test_a_fitted_model_is_of_its_own_type_and_of_the_models_class_if_that_saves_itself() -> None:
    fitted = fit(small_gpt(), sample(2), "100MiB", cache=False)
    import transformers

    assert isinstance(fitted, transformers.PreTrainedModel)
    assert isinstance(fitted, FittedModule)
    assert type(fitted).__name__ == "FittedModule"
    plain = fit(nn.Linear(4, 4), torch.randn(2, 4), "1MiB", cache=False)
    assert not isinstance(plain, nn.Linear)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_lightning_trains_a_module_whose_model_is_fitted(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

        def training_step(self, batch: list[Tensor]) -> Tensor:
            return (self.model(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(12, 8), torch.randn(12, 1))
    module = Regression()
    eager = deepcopy(module)
    module.model = fit(module.model, torch.randn(4, 8), "1MiB", cache=False)
    for trainee in (module, eager):
        trainer = lightning.Trainer(
            default_root_dir=tmp_path,
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(trainee, torch.utils.data.DataLoader(data, batch_size=4))
    trainer.save_checkpoint(tmp_path / "eager.ckpt")
    assert module.model.plans
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value)
    module.load_state_dict(torch.load(tmp_path / "eager.ckpt")["state_dict"])


def test_the_documented_checkpoints_and_the_fit_in_their_place_have_equal_gradients() -> None:
    page = (Path(__file__).parents[3] / "docs" / "memory.md").read_text()
    section = page.split("## In place of torch.utils.checkpoint")[1].split("\n## ")[0]
    gradients: list[list[Tensor | None]] = []
    for code in (part.split("```")[0] for part in section.split("```python\n")[1:]):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
        names = {"fit": partial(fit, cache=False), "nn": nn, "checkpoint": checkpoint}
        local = {**names, "blocks": blocks, "x": torch.randn(32, 64)}
        exec(code, local)
        local["hidden"].square().sum().backward()
        gradients.append([p.grad for block in blocks for p in block.parameters()])
    assert len(gradients) == 2
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)
