"""``headrace memory plan --largest-batch``: the largest batch with a schedule within a budget."""

from collections.abc import Callable
from dataclasses import replace

from headrace.errors import InputError
from headrace.functions import folder_on_path, named_function
from headrace.memory.cli.measure import ProfileOptions, profile_of
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.plan.largest import has_schedule, largest_below, largest_that_fits
from headrace.memory.profile import MemoryProfile
from headrace.roofline import UNNAMED_DEVICE
from headrace.units import size


def largest_batch(
    model: str, budget_bytes: int, options: ProfileOptions, report: Callable[[str], None]
) -> tuple[int, MemoryProfile]:
    """Return the largest batch whose step has a schedule within a budget, and its measured profile.

    Batches are captured, with costs by a roofline and no workspaces; only the largest that fits is
    measured. Where it does not fit then, the result is within a hundredth of the largest.

    Parameters
    ----------
    model : ``module:function`` of a function that takes a batch size.
    report : called with what is done.

    Raises
    ------
    BudgetError : not even one sample fits.
    InputError : the function's sample does not grow with the batch.
    """
    from headrace._native import ScheduleSearch

    with folder_on_path():
        function = named_function(model, arguments=("a batch size",))

    def profile(batch: int, *, modelled: bool) -> MemoryProfile:
        report(f"batch {batch}")
        with folder_on_path():  # it may import others of the folder itself
            model_and_sample = function(batch)
        device = UNNAMED_DEVICE if modelled else options.device
        return profile_of(model_and_sample, model, replace(options, device=device))

    batches: dict[object, int] = {}

    def modelled_fits(batch: int) -> bool:
        try:
            batch_profile = profile(batch, modelled=True)
        except CaptureError:
            if batch == 1:  # as of batch norms; a real failure comes again with the next
                return True
            raise
        shapes = tuple((tensor.name, tensor.shape) for tensor in batch_profile.inputs)
        if (earlier := batches.setdefault(shapes, batch)) != batch:
            raise InputError(
                f"{model} gives inputs of the same shapes for batches of {earlier} and {batch}: "
                "needs a sample of as many as it is asked for"
            )
        return has_schedule(batch_profile.graph, budget_bytes, ScheduleSearch)

    def fits(batch: int) -> bool:
        return has_schedule(profile(batch, modelled=False).graph, budget_bytes, ScheduleSearch)

    most = largest_that_fits(modelled_fits)
    if most and not fits(most):
        most = largest_below(fits, most)
    if not most:
        raise BudgetError(f"a batch of 1 does not fit into {size(budget_bytes)}")
    return most, profile(most, modelled=False)
