"""``headrace memory measure``: the profile of a model's training step on this machine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, terminal, warn_if_busy
from headrace.cli.options import data_sheet, flag, output_option, with_options
from headrace.cli.progress import activity
from headrace.errors import InputError
from headrace.functions import folder_on_path, named_function
from headrace.job.load import LoadWatch
from headrace.memory.errors import CaptureError
from headrace.memory.exactness import Exactness, allowed_exactness
from headrace.roofline import Roofline, load_roofline

if TYPE_CHECKING:
    from headrace.memory.profile import MemoryProfile

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:function; the function returns a model and a sample of its arguments, or "
        "these and a loss module (the sample's last argument is then the target), or these and "
        "an optimizer.",
    ),
]


DeviceOption = Annotated[
    Path | None,
    data_sheet("Times by a model of a device"),
]


def _flag(name: str, text: str) -> Any:
    """Return a flag of what is an argument of `headrace.memory.fit`, too."""
    return flag(f"--{name}", f"{text}, as by {name}=True of fit.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """Options of a step's profile.

    Attributes
    ----------
    exactness : of the implementations.
    conditions : accumulates, ddp and offload of `headrace.memory.measure.step.StepConditions`.
    device : a model of one; None: costs are measured.
    cache : whether costs are taken from the cache folder, and kept there.
    """

    exactness: Exactness
    conditions: Mapping[str, bool]
    device: Roofline | None
    cache: bool


def profile_options(
    accumulates: Annotated[bool, _flag("accumulates", "Gradients are kept between steps")] = False,
    ddp: Annotated[bool, _flag("ddp", "The buckets of DDP are counted")] = False,
    exact: Annotated[bool, _flag("exact", "No implementations that differ by rounding")] = False,
    lossy: Annotated[bool, _flag("lossy", "Activations may be stored as bfloat16")] = False,
    conditional: Annotated[
        bool, _flag("conditional", "Norms may be differentiated from outputs")
    ] = False,
    offload: Annotated[
        bool, _flag("offload", "Activations may be stored in the host's memory")
    ] = False,
    device: DeviceOption = None,
) -> ProfileOptions:
    """Return the options of a step's profile, whose costs are not cached."""
    return ProfileOptions(
        exactness=allowed_exactness(exact=exact, lossy=lossy, conditional=conditional),
        conditions={"accumulates": accumulates, "ddp": ddp, "offload": offload},
        device=None if device is None else load_roofline(device),
        cache=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfileResult:
    """A training step as it was measured, or modelled."""

    file: WrittenFile
    model: str
    device: str
    operators: int


@with_options(options=profile_options)
def measure_step_command(
    model: ModelName,
    output: Annotated[Path, output_option("File to write: the memory profile.")],
    *,
    options: ProfileOptions,
) -> StepProfileResult:
    """Capture a training step, and measure the time and workspace of its operators.

    On the device that the model's parameters are on, with all implementations of each operator, and
    a step of the model as it is, if that fits into memory.
    Costs in the cache folder are not used.

    Example: headrace memory measure package.module:build -o step.profile
    """
    from headrace.memory.profile import SPREAD

    watch = LoadWatch()
    profile = measured_profile(model, options)
    if options.device is None:
        load = watch.load().to_provenance()
        profile = replace(profile, provenance={**profile.provenance, **load})
    profile.save(output)
    print_written(output)
    spread = profile.provenance.get(SPREAD)
    if isinstance(spread, float):
        terminal().print(
            "Times of operators are medians; the quartiles of their runs are "
            f"{spread:z.1%} of them apart.",
            soft_wrap=True,
        )
    warn_if_busy(profile.provenance)
    return result_of(
        StepProfileResult,
        profile,
        file=WrittenFile.at(output),
        operators=len(profile.graph.operators),
    )


def measured_profile(model: str, options: ProfileOptions) -> "MemoryProfile":
    """Return the profile of the step of a ``module:function``.

    Raises
    ------
    InputError : there is no such function, or it returns something else.
    CaptureError : the model cannot be captured, or has nothing to offload.
    """
    with folder_on_path():
        model_and_sample = named_function(model)()
    return profile_of(model_and_sample, model, options)


def profile_of(model_and_sample: object, name: str, options: ProfileOptions) -> "MemoryProfile":
    """Return the profile of a step, by what a user's function returned; see `measured_profile`."""
    parts: tuple[Any, ...] = (
        tuple(cast(Iterable[Any], model_and_sample))
        if isinstance(model_and_sample, tuple | list)
        else (model_and_sample,)
    )
    if not 2 <= len(parts) <= 4:
        raise InputError(
            f"{name} returned {len(parts)} values, needs a model and a sample, then a loss and an "
            "optimizer if there are"
        )
    # torch takes seconds to import: bad arguments are reported without
    from torch import nn

    from headrace.memory.adapt.cache import StepCache, cached_costs, conditions
    from headrace.memory.measure.preserve import preserved
    from headrace.memory.measure.step import (
        StepConditions,
        capture_step,
        device_of,
        profile_step,
        sample_of,
    )
    from headrace.memory.measure.timing import Cost

    module, sample, loss, optimizer = (*parts, None, None)[:4]
    if not isinstance(module, nn.Module):
        raise CaptureError(f"{name} returned {type(module).__name__} first, needs a torch module")
    job = StepConditions(loss=loss, optimizer=optimizer, **options.conditions)
    job.check(device_of(module))
    with (
        activity(terminal(stderr=True)) as report,
        preserved(job.called(module), optimizer),
    ):
        report("capturing")
        captured = capture_step(module, sample, job, options.exactness)
        costs: dict[str, Cost] = {}
        store = StepCache.of_user() if options.cache else StepCache(None)
        with cached_costs(store, conditions(device_of(module)), costs):
            return profile_step(
                module,
                captured,
                job,
                name=name,
                device=options.device,
                costs=costs,
                sample=sample_of(sample),
                report=report,
            )
