"""The code of a schedule's graphs: results take the memory that was traced for them."""

import torch
from torch import Tensor, nn

from headrace.memory.adapt.fit import fitted_module
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.step import StepConditions, profile_step
from headrace.memory.operators.variant import as_traced
from headrace.memory.schedule import Schedule, plain_schedule
from tests.memory.programs import gradients, step_peak
from tests.memory.simulate import Simulator


class SlicesWritten(nn.Module):
    """Convolutions that read a slice of a buffer and write the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        buffer = torch.zeros(x.shape[0], 32, *x.shape[2:])
        buffer[:, :8] = x
        for index, layer in enumerate(self.layers):
            hidden = layer(buffer[:, 8 * index : 8 * index + 8].clone())
            buffer[:, 8 * index + 8 : 8 * index + 16] = hidden.mul_(0.5)
        return buffer[:, 8:].transpose(0, 1).square().mean()


def test_slices_written_in_place_take_the_memory_that_was_planned() -> None:
    # A step that wrote slices into one buffer took 92,104 bytes more than its budget, at every
    # budget: `aten.copy` of a slice is traced in the memory that the slice spans, and its kernel
    # copies the whole buffer that the slice is a part of.
    model, x = SlicesWritten(), torch.randn(4, 8, 12, 12)
    peaks: list[int] = []

    def plan(captured: Capture) -> dict[int, Schedule]:
        profile = profile_step(model, captured, StepConditions(), single_runs=True)
        schedule = plain_schedule(profile.graph)
        simulated = Simulator(profile.graph).run(schedule).peak_bytes
        peaks.append(simulated - profile.graph.resident_bytes)
        return {0: schedule}

    fitted = fitted_module(model, plan)
    gradients(fitted, x)
    assert step_peak(fitted, x) <= peaks[0]
    for value, expected in zip(gradients(fitted, x), gradients(model, x), strict=True):
        torch.testing.assert_close(value, expected)


def test_a_result_in_more_memory_than_traced_is_copied_out_of_it() -> None:
    whole = torch.arange(12.0).view(3, 4)
    row, column = as_traced(whole[1], (1,), 16), as_traced(whole[:, 1], (4,), 36)
    assert row.untyped_storage().nbytes() == 16
    assert column.untyped_storage().nbytes() == 36
    assert torch.equal(row, whole[1])
    assert torch.equal(column, whole[:, 1])
    assert column.stride() == (4,)
    assert as_traced(whole, (4, 1), 48) is whole
