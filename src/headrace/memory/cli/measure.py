"""``headrace memory measure``: the profile of a model's training step on this machine."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from headrace.cli.options import output_option
from headrace.errors import InputError
from headrace.functions import folder_on_path, named_function
from headrace.memory.errors import CaptureError
from headrace.memory.exactness import Exactness, allowed_exactness
from headrace.units import size

if TYPE_CHECKING:
    from headrace.memory.measure.timing import Roofline
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


ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Without implementations whose gradients differ by rounding, as fit(exact=True).",
    ),
]
LossyOption = Annotated[
    bool,
    typer.Option(
        "--lossy", help="With activations stored as bfloat16 where that helps, as fit(lossy=True)."
    ),
]
ConditionalOption = Annotated[
    bool,
    typer.Option(
        "--conditional",
        help="With norms differentiated from their outputs, as fit(conditional=True).",
    ),
]


def measure_step_command(
    model: ModelName,
    output: Annotated[Path, output_option("File for the memory profile.")],
    accumulates: Annotated[
        bool, typer.Option("--accumulates", help="Gradients are kept between steps.")
    ] = False,
    exact: ExactOption = False,
    lossy: LossyOption = False,
    conditional: ConditionalOption = False,
    offload: Annotated[
        bool,
        typer.Option(
            "--offload",
            help="Activations may be stored in the host's memory, as fit(offload=True).",
        ),
    ] = False,
) -> None:
    """Capture a training step, and measure the time and workspace of its operators.

    On the device that the model's parameters are on, with all implementations of each operator.
    Costs in the cache folder are not used.
    """
    exactness = allowed_exactness(exact=exact, lossy=lossy, conditional=conditional)
    profile = measured_profile(
        model, accumulates=accumulates, cache=False, exactness=exactness, offload=offload
    )
    profile.save(output)
    Console().print(f"Wrote {output} ({size(output.stat().st_size)}).", soft_wrap=True)


def measured_profile(
    model: str, *, accumulates: bool, cache: bool, exactness: Exactness, offload: bool = False
) -> "MemoryProfile":
    """Return the profile of the step of a ``module:function``.

    Parameters
    ----------
    cache : whether costs are taken from the cache folder, and kept there.
    exactness : of the implementations.
    offload : whether activations may be stored in the host's memory.

    Raises
    ------
    InputError : there is no such function, or it returns something else.
    CaptureError : the model cannot be captured, or has nothing to offload.
    """
    with folder_on_path():
        made = named_function(model)()
    return profile_of(
        made, model, accumulates=accumulates, cache=cache, exactness=exactness, offload=offload
    )


def profile_of(
    made: object,
    name: str,
    *,
    accumulates: bool,
    cache: bool,
    exactness: Exactness,
    offload: bool = False,
    device: "Roofline | None" = None,
) -> "MemoryProfile":
    """Return the profile of a step, by what a user's function returned; see `measured_profile`.

    Parameters
    ----------
    device : a model of one; None: costs are measured.
    """
    parts: tuple[Any, ...] = (
        tuple(cast(Iterable[Any], made)) if isinstance(made, tuple | list) else (made,)
    )
    if not 2 <= len(parts) <= 4:
        raise InputError(
            f"{name} returned {len(parts)} values, needs a model and a sample, then a loss and an "
            "optimizer if there are"
        )
    # torch takes seconds to import: bad arguments are reported without
    from torch import nn

    from headrace.memory.adapt.cache import StepCache, cached_costs, conditions
    from headrace.memory.measure.step import StepConditions, capture_step, device_of, profile_step
    from headrace.memory.measure.timing import Cost

    module, sample, loss, optimizer = (*parts, None, None)[:4]
    if not isinstance(module, nn.Module):
        raise CaptureError(f"{name} returned {type(module).__name__} first, needs a torch module")
    job = StepConditions(loss=loss, optimizer=optimizer, accumulates=accumulates, offload=offload)
    job.check(device_of(module))
    with Console(stderr=True).status("capturing") as status:
        captured = capture_step(module, sample, job, exactness)
        operators = len(captured.graph.operators)
        status.update(f"measuring {operators} operators")
        costs: dict[str, Cost] = {}
        store = StepCache.of_user() if cache else StepCache(None)
        with cached_costs(store, conditions(device_of(module)), costs):
            return profile_step(module, captured, job, name=name, device=device, costs=costs)
