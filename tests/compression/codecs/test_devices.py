"""Codecs by torch's operators alone, as on other devices; see also ../test_staging.py."""

import pytest
import torch

from headrace.compression.codecs import loops
from headrace.compression.codecs.table import CODECS
from headrace.compression.families import CodecSpec
from tests.compression.codecs.group import average


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
