"""Memory by the name of a model, before there are weights, beside the step as it is trained.

A step goes from the forward pass to the optimizer's step, with its state there. Allocations count
as torch's allocator aligns them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import Report
from benchmarks.memory.step import CPU_ALIGNMENT, MIB, allocations
from headrace.memory import estimate

SECTION = "estimate"
_ERROR, _SECONDS = "estimate-error", "estimate-s"
_QUICK = ("resnet50", "bert")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A model that trains in 8 GB, by its name.

    Attributes
    ----------
    length : tokens of a sample; None: samples are images.
    auto : transformers' class that makes it.
    """

    name: str
    batch: int
    length: int | None = None
    auto: str = ""

    def step(self) -> tuple[nn.Module, list[Tensor], Callable[[], Tensor]]:
        """Return the model with weights, its inputs, and the forward pass to the loss."""
        if self.length is None:
            import timm

            model: nn.Module = timm.create_model(self.name).train()
            images, classes = torch.randn(self.batch, 3, 224, 224), torch.zeros(self.batch).long()
            loss = lambda: functional.cross_entropy(model(images), classes)  # noqa: E731
            return model, [images, classes], loss
        import transformers

        config = transformers.AutoConfig.for_model(self.name)
        config.use_cache = False
        model = getattr(transformers, self.auto).from_config(config).train()
        ids = torch.zeros(self.batch, self.length).long()
        inputs = {name: ids.clone() for name in ("input_ids", "labels")}
        inputs["attention_mask"] = torch.ones_like(ids)
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids.clone()
        return model, list(inputs.values()), lambda: model(**inputs).loss


CASES = (
    _Case(name="resnet50", batch=8),
    _Case(name="vit_small_patch16_224", batch=8),
    _Case(name="convnext_tiny", batch=4),
    _Case(name="gpt2", batch=2, length=256, auto="AutoModelForCausalLM"),
    _Case(name="bert", batch=4, length=128, auto="AutoModelForMaskedLM"),
    _Case(name="t5", batch=4, length=128, auto="AutoModelForSeq2SeqLM"),
)


def bars() -> dict[str, str]:
    """Return the bars: the largest relative error of a peak, and the longest estimate."""
    return {_ERROR: "<= 0.05", _SECONDS: "<= 30"}


def measure(report: Report, *, quick: bool) -> None:
    """Estimate every model, then train it for two steps, and compare the second one's peak."""
    rows = [_row(case) for case in CASES if not quick or case.name in _QUICK]
    for row in rows:
        report.row("memory by name", **row)
    report.bar(_ERROR, max(abs(row["error"]) for row in rows))
    report.bar(_SECONDS, max(row["estimate_s"] for row in rows))
    report.note(
        "estimate: peaks of forward pass, backward pass and AdamW's step, with what is resident. "
        "Seconds are the processor's, of one thread, the imports of the model's library included"
    )


def _row(case: _Case) -> dict[str, Any]:
    began_s = time.process_time()
    estimated = estimate(case.name, batch=case.batch, length=case.length)
    estimate_s = time.process_time() - began_s
    measured_bytes = _measured_bytes(case)
    return {
        "model": case.name,
        "batch": case.batch,
        "estimated_mib": estimated.peak_bytes / MIB,
        "measured_mib": measured_bytes / MIB,
        "error": estimated.peak_bytes / measured_bytes - 1,
        "estimate_s": estimate_s,
    }


def _measured_bytes(case: _Case) -> int:
    """Return the peak of the second step, in bytes, with what is allocated before it."""
    model, inputs, forward = case.step()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        forward().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    states = [state for values in optimizer.state.values() for state in values.values()]
    tensors = [*model.parameters(), *model.buffers(), *inputs, *states]
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    resident_bytes = sum(
        -(-tensor.untyped_storage().nbytes() // CPU_ALIGNMENT) * CPU_ALIGNMENT
        for tensor in storages.values()
    )
    return resident_bytes + allocations(step, CPU_ALIGNMENT).peak_bytes
