"""float8 on the native executor, against torch's conversions: every pair of values.

float8_e4m3fn has no infinity: what is too large for it becomes its largest number, as in torch.
"""

import numpy as np
import pytest
import torch

from headrace._native import DataType, Operator
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.executor import Executor
from tests.conformance.groups import each, group

OPERATORS = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_pair_of_values(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    left, right = every.float().repeat_interleave(256), every.float().repeat(256)
    program = lower(templates.ring(Demand(collective=Collective.ALLREDUCE, ranks=2, chunks=2)))
    proof = verify(program)
    with group(2) as executors:
        for operator in (*OPERATORS, "avg"):
            buffers = [side.to(dtype).view(torch.uint8).numpy() for side in (left, right)]

            def one(executor: Executor, buffers: list[np.ndarray] = buffers) -> None:
                buffer = buffers[executor.rank]
                call = executor.prepare(
                    executor.load(program, proof),
                    [(buffer.ctypes.data, buffer.size, 1, 2)],
                    DataType[str(dtype).removeprefix("torch.")],
                    Operator.sum if operator == "avg" else Operator[operator],  # noqa: B023 - runs at once
                    operator == "avg",  # noqa: B023
                )
                executor.run(call)

            each(executors, one)
            wanted = OPERATORS.get(operator, torch.add)(left, right).to(dtype)
            if operator == "avg":
                wanted = (wanted.float() / 2).to(dtype)
            assert (buffers[0] == buffers[1]).all(), f"{operator}: ranks differ in bits"
            found = torch.from_numpy(buffers[0]).view(dtype)
            same = found.view(torch.uint8) == wanted.view(torch.uint8)
            if operator in ("min", "max"):  # torch takes either of -0 and +0
                same |= (found.float() == 0) & (wanted.float() == 0)
            same |= found.float().isnan() & wanted.float().isnan()
            assert same.all(), (operator, left[~same][:5], right[~same][:5], found[~same][:5])
