"""All overloads of torch's methods of process groups.

The bug: `group.allreduce(tensor, op)`, `group.broadcast(tensor, root=0)` and eleven more call forms
that torch declares, and that work with Gloo, raised "too many values to unpack" and the like. A
method written in Python replaces all overloads of torch's C++, and took the arguments of one.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from headrace.collectives.run.torch.overloads import METHODS
from tests.collectives.run.torch import overloads_job
from tests.collectives.run.torch.overloads_job import COLLECTIVES, signatures
from tests.conformance.launch import outputs, ranks, results

DECLARED = [
    (holder.__name__, signature)
    for holder in (dist.ProcessGroup, Backend)
    for signature in signatures(holder)
]


def test_every_method_is_declared_by_torch() -> None:
    assert {COLLECTIVES[signature.method] for _, signature in DECLARED} == set(METHODS)
    assert len(DECLARED) >= 60


@pytest.mark.parametrize(("holder", "signature"), DECLARED, ids=str)
def test_the_table_has_what_torch_declares(holder: str, signature: overloads_job.Signature) -> None:
    overloads = METHODS[COLLECTIVES[signature.method]].overloads
    names = [overload.names for overload in overloads]
    assert signature.names in names, f"{holder}.{signature} is not in the table"


def test_two_ranks_call_each_as_with_gloo() -> None:
    with ranks(2, Path(overloads_job.__file__)) as processes:
        texts = outputs(processes)
    for text, outcomes in zip(texts, results(texts), strict=True):
        assert len(outcomes) == 2 * len(DECLARED), text
        assert not {label: wrong for label, wrong in outcomes.items() if wrong}
        assert "ALONE ['gather_single']" in text  # all others are compared


def test_other_arguments_are_refused_as_torch_refuses_them() -> None:
    message = r"\(Tensor, str\), needs \(tensors, opts\) or .* or \(tensor, op, timeout\)"
    with pytest.raises(TypeError, match=message):
        METHODS["allreduce"].arguments((torch.zeros(1), "sum"), {})
    with pytest.raises(TypeError, match="root"):
        METHODS["broadcast"].arguments((torch.zeros(1),), {})
    with pytest.raises(TypeError, match="incompatible"):
        METHODS["barrier"].arguments((None, 1), {"timeout": None})
