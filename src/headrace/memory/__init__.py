"""Training within a memory budget: activations stored, recomputed, or computed in another way."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.extras import require_metrics
from headrace.facades import deferred_names
from headrace.memory.errors import (
    BudgetError,
    CaptureError,
    ImplementationError,
    MismatchError,
    ScheduleError,
)
from headrace.memory.exactness import allowed_exactness
from headrace.memory.generators import host_generators_preserved

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

    from headrace.memory.adapt.blocks import FittedBlocks
    from headrace.memory.adapt.estimate import BudgetEstimate, StepEstimate
    from headrace.memory.adapt.metrics import MemoryMetrics
    from headrace.memory.adapt.partition import MemoryPartitioner
    from headrace.memory.exactness import Exactness
    from headrace.memory.graph import Graph, Implementation, Operator, Storage
    from headrace.memory.measure.attributes import AttributeChange
    from headrace.memory.measure.captured import Capture, TracedCall
    from headrace.memory.plan.blocks import BlockPlan, HeldBytes
    from headrace.memory.plan.plan import MemoryPlan
    from headrace.memory.plan.solution import SolveProgress
    from headrace.memory.plan.verify import VerifiedFigures
    from headrace.memory.profile import EagerStep, MemoryProfile, ModelInput
    from headrace.memory.run.fitted import FittedModule
    from headrace.memory.run.prepared import PreparedStep, PreparedSteps
    from headrace.memory.run.step import ScheduledStep
    from headrace.memory.schedule import Schedule, Step

__all__ = [
    "AttributeChange",
    "BlockPlan",
    "BudgetError",
    "BudgetEstimate",
    "Capture",
    "CaptureError",
    "EagerStep",
    "Exactness",
    "FittedBlocks",
    "FittedModule",
    "Graph",
    "HeldBytes",
    "Implementation",
    "ImplementationError",
    "MemoryMetrics",
    "MemoryPartitioner",
    "MemoryPlan",
    "MemoryProfile",
    "MismatchError",
    "ModelInput",
    "Operator",
    "PreparedStep",
    "PreparedSteps",
    "Schedule",
    "ScheduleError",
    "ScheduledStep",
    "SolveProgress",
    "Step",
    "StepEstimate",
    "Storage",
    "TracedCall",
    "VerifiedFigures",
    "estimate",
    "fit",
    "fit_blocks",
    "partitioner",
]

_MODULES = {
    "AttributeChange": "measure.attributes",
    "BlockPlan": "plan.blocks",
    "BudgetEstimate": "adapt.estimate",
    "Capture": "measure.captured",
    "EagerStep": "profile",
    "Exactness": "exactness",
    "FittedBlocks": "adapt.blocks",
    "FittedModule": "run.fitted",
    "Graph": "graph",
    "HeldBytes": "plan.blocks",
    "Implementation": "graph",
    "MemoryMetrics": "adapt.metrics",
    "MemoryPartitioner": "adapt.partition",
    "MemoryPlan": "plan.plan",
    "MemoryProfile": "profile",
    "ModelInput": "profile",
    "Operator": "graph",
    "PreparedStep": "run.prepared",
    "PreparedSteps": "run.prepared",
    "Schedule": "schedule",
    "ScheduledStep": "run.step",
    "SolveProgress": "plan.solution",
    "Step": "schedule",
    "StepEstimate": "adapt.estimate",
    "Storage": "graph",
    "TracedCall": "measure.captured",
    "VerifiedFigures": "plan.verify",
}
_EXTRAS = {"MemoryMetrics": require_metrics}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES, _EXTRAS)


def fit(
    model: "Module",
    sample: Any,
    budget: int | str | Sequence[int | str],
    *,
    loss: "Module | None" = None,
    optimizer: "Optimizer | None" = None,
    accumulates: bool = False,
    ddp: bool = False,
    effort: str = "quick",
    seed: int = 0,
    captures: int | None = None,
    plan: "str | Path | Sequence[str | Path] | None" = None,
    cache: bool = True,
    exact: bool = False,
    lossy: bool = False,
    offload: bool = False,
    conditional: bool = False,
    progress: "Callable[[SolveProgress], None] | None" = None,
    watts: Mapping[str, float] | None = None,
) -> "FittedModule":
    """Fit a model's training step into a memory budget, at the least cost in time or energy.

    The model returned has the same parameters and `state_dict`, computes the same gradients, and
    allocates no more than the budget from the beginning of its forward to the end of its backward
    pass.

    Parameters
    ----------
    model : in training mode, on the CPU or one GPU.
    sample : arguments of a call: one, several in a tuple or list, or by name in a mapping. With
        `loss` the last one is the target, in evaluation too; `model(x)` gives predictions. A list
        of tuples or mappings has several samples, such as one for each length of sequences: each
        gets a plan now. A call of another length is padded to the next larger one, if the model
        does the same with padding (arguments named as those of transformers, with
        ``attention_mask`` and ``labels``, of one batch size).
    budget : bytes, a text such as ``6GiB``, or a share of the GPU's memory such as ``80%``. It
        covers parameters, buffers, gradients, inputs, activations and workspaces, and what the next
        three name. Each of several in a list gets a plan: steps run by that of the largest, until
        `set_budget` of what is returned switches to another.
    loss : of the model's output and the target. Calls then take the target, too, and return the
        loss, whose memory is planned as well.
    optimizer : its state is counted.
    accumulates : whether gradients are kept between steps. They are then added to earlier ones
        while the backward pass runs, but with `ddp`. Not for DistributedDataParallel with gradients
        as views of its buckets, which are counted by `ddp`.
    ddp : whether DistributedDataParallel will be around what is returned: its buckets are counted.
    effort : "quick" (at most some 20 s), "normal" (3 minutes) or "thorough" (half an hour).
    seed : equal seeds give equal plans, where no limit of time is reached.
    captures : how many kinds of arguments get a plan: the samples', then others as they come, each
        in a pause of `effort`. More kinds run the model as it is, with a warning. Default: the
        samples', and of one sample another kind, if it comes before a step has run by a plan.
    plan : a file of `headrace memory plan` for this model, sample and device, which is not made
        again; of several budgets a list of as many.
    cache : whether costs and plans are kept in the cache folder, and taken from there.
    exact : whether gradients are those of the traced model to the bit, on one device. Else they may
        differ by rounding, as those of a loss over a vocabulary do that is summed chunk by chunk.
    lossy : whether float32 activations may be stored as bfloat16 between the passes: half the
        bytes, and gradients of activations that are rounded to 8 bits of mantissa.
    offload : whether activations of a model on a GPU may be stored in the host's memory, at the
        bandwidth that is measured.
    conditional : whether normalizations may be differentiated from their outputs. A step in which
        one has a weight near 0 raises an `ImplementationError`.
    progress : called with the state of the solver (in microjoules with `watts`); default: a line on
        a terminal, or below a notebook's cell.
    watts : by kind of operator, such as ``{"convolution": 42, "default": 15}``: plans then have the
        least energy in place of the least time. Kinds that the step lacks are ignored.

    Raises
    ------
    BudgetError : the budget is malformed, or less than any schedule needs; the message has the
        least that one was found for.
    CaptureError : the model cannot be captured, the message names the module; or `offload` of one
        on the CPU.
    InputError : more than one of `exact`, `lossy` and `conditional`; or `watts` are malformed.
    MismatchError : `plan` is for another model, shape or device; the message says what differs.
    """
    with host_generators_preserved():
        from headrace.memory.adapt.fit import fit_model
        from headrace.memory.adapt.options import StepOptions
        from headrace.memory.measure.step import StepConditions
        from headrace.memory.plan.effort import parse_effort

    options = StepOptions(
        conditions=StepConditions(
            loss=loss, optimizer=optimizer, accumulates=accumulates, ddp=ddp, offload=offload
        ),
        exactness=allowed_exactness(exact=exact, lossy=lossy, conditional=conditional),
        effort=parse_effort(effort),
        seed=seed,
        captures=captures,
        cache=cache,
        progress=progress,
        watts=watts,
    )
    return fit_model(model, sample, budget, options, plan=plan)


def fit_blocks(
    model: "Module",
    blocks: "Sequence[Module]",
    sample: Any,
    budget: int | str,
    *,
    loss: "Module | None" = None,
    optimizer: "Optimizer | None" = None,
    accumulates: bool = False,
    shards: int = 1,
    effort: str = "quick",
    seed: int = 0,
    cache: bool = True,
    exact: bool = False,
    lossy: bool = False,
    offload: bool = False,
    conditional: bool = False,
    progress: "Callable[[SolveProgress], None] | None" = None,
    watts: Mapping[str, float] | None = None,
) -> "FittedBlocks":
    """Fit blocks of a model under one budget, before `fully_shard` wraps them.

    Each block is captured by itself, and planned for several budgets of its own; the plans that are
    fastest together are chosen. The fitted blocks take the places of the originals in `model`.

    Parameters
    ----------
    model : in training mode, not sharded yet.
    blocks : modules inside of it, such as its layers; each is called once in a step.
    sample : arguments of a call of the model, and with `loss` the target behind them.
    budget : as for `fit`. The rest of the model counts by what is alive in a step on fake tensors.
    loss : its memory is counted, as of ``loss(model(sample), target)``, the output not kept.
    optimizer : its state is counted.
    accumulates : whether gradients are kept between steps.
    shards : ranks that share parameters, gradients and the optimizer's state by FSDP2; what it
        gathers of blocks and has not reduced yet is counted then.
    effort, seed, cache, exact, lossy, offload, conditional, progress, watts : as for `fit`, for
        every budget of every kind of block.

    Raises
    ------
    BudgetError : the budget is malformed, or less than every choice of plans needs.
    CaptureError : a block cannot be captured, is not in the model, or is not called once; or
        `offload` on the CPU.
    InputError : as for `fit`.
    """
    with host_generators_preserved():
        from headrace.memory.adapt.blocks import fit_chain
        from headrace.memory.adapt.options import StepOptions
        from headrace.memory.measure.step import StepConditions
        from headrace.memory.plan.effort import parse_effort

    options = StepOptions(
        conditions=StepConditions(
            loss=loss, optimizer=optimizer, accumulates=accumulates, offload=offload
        ),
        exactness=allowed_exactness(exact=exact, lossy=lossy, conditional=conditional),
        effort=parse_effort(effort),
        seed=seed,
        cache=cache,
        progress=progress,
        watts=watts,
    )
    return fit_chain(model, blocks, sample, budget, options, shards=shards)


def partitioner(budget: int | str, *, effort: str = "quick", seed: int = 0) -> "MemoryPartitioner":
    """Return a partitioner for `torch.compile`: what steps store is chosen within a budget.

    ``torch.compile(model, dynamic=False, options={"custom_partitioner_fn": partitioner("6GiB")})``

    Operators run by the compiler's kernels; times are those of a model of a device, as operators
    are compiled together. The budget covers what the compiled graph reads, stores and returns, as
    if each operator ran by itself: where the compiler joins them, a step needs less.

    Parameters
    ----------
    budget, effort, seed : as for `fit`; of every graph that the model is compiled as.

    Raises
    ------
    BudgetError : the budget is malformed. When a graph is compiled, torch wraps that it is too low.
    InputError : `effort` is unknown.
    """
    with host_generators_preserved():
        from headrace.memory.adapt.partition import MemoryPartitioner

    return MemoryPartitioner(budget, effort, seed)


def estimate(
    name: str,
    *,
    batch: int = 1,
    length: int | None = None,
    size: int | None = None,
    dtype: str = "float32",
    optimizer: str = "AdamW",
    budget: int | str | None = None,
    device: "str | Path | None" = None,
    progress: Callable[[str], None] | None = None,
) -> "StepEstimate":
    """Estimate the memory of a training step by the name of a model, without its weights.

    The step runs on tensors without values: forward pass, backward pass and the optimizer's step,
    as PyTorch runs them on a CPU. What operators allocate inside of themselves is not counted.

    Parameters
    ----------
    name : a folder that `save_pretrained` wrote, a model type of transformers such as ``bert`` (at
        its default configuration), a model of timm such as ``resnet50``, or a name of the hub whose
        configuration is in its cache. Nothing is downloaded.
    batch : samples of a step.
    length : tokens of each; default: 512, or the most that the model has positions for.
    size : pixels of an image's side; default: the model's own.
    dtype : of the parameters: float32, bfloat16, float16 or float64.
    optimizer : a class of `torch.optim`, with its defaults, or ``none``.
    budget : as for `fit`: adds what it costs, and the largest batch within it.
    device : file of a model of a device, as for `headrace memory plan --device`, whose times the
        budget's cost is by; default: 1 Tflop/s and 100 GB/s.
    progress : called with what is done.

    Raises
    ------
    InputError : there is no such model, the package that has it is not installed, or an option is
        out of range.
    BudgetError : the budget is malformed.
    CaptureError : the model cannot be run on tensors without values, or not be captured.
    """
    with host_generators_preserved():
        from headrace.memory.adapt.estimate import estimate_step
        from headrace.memory.plan.make import parse_budget
        from headrace.roofline import UNNAMED_DEVICE, load_roofline

    return estimate_step(
        name,
        batch=batch,
        length=length,
        size=size,
        dtype=dtype,
        optimizer=optimizer,
        budget_bytes=None if budget is None else parse_budget(budget),
        device=UNNAMED_DEVICE if device is None else load_roofline(device),
        report=progress or (lambda _activity: None),
    )
