"""Codecs on tensors of other devices: by torch's operators alone, and without mixing devices."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headrace.compression.codecs import loops
from headrace.compression.codecs.requests import Context, run_together
from headrace.compression.codecs.table import CODECS, make_codec
from headrace.compression.families import CodecSpec
from tests.compression.codecs.group import average

# Those whose operators do not depend on values, which tensors of no memory do not have; terngrad
# and the casts have no code of their own.
INDEPENDENT = ("fp8", "minmax", "qsgd", "randomk", "powersgd")


def shapes(family: str) -> list[tuple[int, ...]]:
    matrices = CodecSpec.parse(family).traits.matrices
    return [(40, 30), (30, 40), (3, 3)] if matrices else [(3001,)]


@pytest.mark.parametrize("family", CODECS)
def test_torch_operators_give_what_the_native_loops_give(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(0)
    given = [[torch.randn(s, generator=random) for s in shapes(family)] for _ in range(3)]
    for feedback in (False, True):
        native = average(family, given, feedback=feedback)
        with monkeypatch.context() as patched:
            patched.setattr(loops, "_arrays", lambda *_tensors: [])
            operators = average(family, given, feedback=feedback)
        for one, other in zip(native, operators, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", INDEPENDENT)
def test_operators_get_tensors_of_one_device(family: str) -> None:
    """By tensors without memory, which check the operators' shapes and devices."""
    codec = make_codec(family)
    for feedback in (False, True):
        with FakeTensorMode():
            given = [[torch.ones(s, device="cuda") for s in shapes(family)] for _ in range(2)]
            mean = [[torch.ones_like(each) for each in own] for own in given]
            states = [[{} for _ in own] for own in given]
            for step in range(2):
                contexts = [
                    Context(rank=rank, ranks=2, step=step, feedback=feedback) for rank in range(2)
                ]
                run_together(
                    [
                        codec.average(given[c.rank], mean[c.rank], states[c.rank], c)
                        for c in contexts
                    ]
                )
            kept = [v for own in states for s in own for v in s.values() if isinstance(v, Tensor)]
            assert all(each.is_cuda for each in [*kept, *mean[0], *given[0]])
