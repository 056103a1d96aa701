"""Predicted bytes and phases against the requests of the codecs, in groups of one process."""

import math
from itertools import product

import pytest
import torch

from headrace.compression.codecs.requests import AllGather, AllReduce, AllToAll, Request
from headrace.compression.codecs.table import CODECS
from headrace.compression.errors import CompressionError
from headrace.compression.families import FAMILIES, CodecSpec
from headrace.compression.traffic import (
    TRANSFERS,
    PayloadTransfer,
    buffer_bytes,
    sent_bytes,
    transfers,
)
from tests.compression.codecs.group import average

SHAPES = (
    [(0,)],
    [(1,)],
    [(30, 40)],
    [(64, 3, 3, 3), (17, 5), (200,)],
    [(300, 100), (2, 2), (1, 700)],
)
PARAMETERS = {"bits": ("2", "3", "4", "8"), "rank": ("1", "4"), "share": ("1%", "30%"), "": ("",)}
KINDS = {AllReduce: "allreduce", AllToAll: "all_to_all", AllGather: "allgather"}


def specs(family: str) -> list[CodecSpec]:
    traits = FAMILIES[family]
    return [
        CodecSpec.parse(f"{family}{':' if parameter else ''}{parameter}{wire}")
        for parameter in PARAMETERS[traits.parameter]
        for wire in ("", "+bf16", "+fp16")[: 3 if traits.wires else 1]
    ]


def requests(spec: CodecSpec, shapes: list[tuple[int, ...]], ranks: int) -> list[list[Request]]:
    """Return the requests of every rank in one call, in order."""
    if spec.traits.matrices:
        matrices = [shape for shape in shapes if len(shape) > 1]
        sizes = [(shape[0], math.prod(shape[1:])) for shape in matrices]
    elif spec.family in {"none", "bf16", "fp16"}:
        sizes = shapes
    else:
        sizes = [(sum(math.prod(shape) for shape in shapes),)]
    random = torch.Generator().manual_seed(ranks)
    tensors = [[torch.randn(size, generator=random) for size in sizes] for _ in range(ranks)]
    seen: list[list[Request]] = [[] for _ in range(ranks)]
    average(str(spec), tensors, observe=lambda rank, request: seen[rank].append(request))
    return seen


@pytest.mark.parametrize("family", sorted(TRANSFERS.keys() & CODECS.keys()))
def test_codecs_ask_for_the_predicted_bytes(family: str) -> None:
    for spec, shapes, ranks in product(specs(family), SHAPES, (1, 2, 3, 5, 8)):
        if spec.traits.matrices:
            shapes = [shape for shape in shapes if len(shape) > 1]
        predicted = transfers(spec, shapes, ranks)
        assert [each.phase for each in predicted] == sorted(each.phase for each in predicted)
        expected = [(each.collective, each.payload_bytes) for each in predicted]
        for own in requests(spec, list(shapes), ranks):
            asked = [(KINDS[type(request)], request.payload_bytes) for request in own]
            assert asked == expected, (spec, shapes, ranks)


def held(own: list[Request]) -> int:
    """Return the bytes of all storages of a rank's requests."""
    tensors = [request.tensor for request in own if isinstance(request, AllReduce)]
    for request in own:
        if not isinstance(request, AllReduce):
            tensors += [request.sent, request.received]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(("codec", "bits"), [("sign", 1), ("minmax:4", 4)])
def test_sharded_codecs_send_and_hold_the_same_at_any_number_of_ranks(
    codec: str, bits: int
) -> None:
    spec, elements = CodecSpec.parse(codec), 100_000
    buffers = {}
    for ranks in (2, 3, 4, 5, 6, 7, 8):
        formula = elements * bits / 8 * 2 * (ranks - 1) / ranks
        out = sum(sent_bytes(each, ranks) for each in transfers(spec, [(elements,)], ranks))
        assert formula <= out <= 1.05 * formula
        every = [held(own) for own in requests(spec, [(elements,)], ranks)]
        assert set(every) == {buffer_bytes(spec, [(elements,)], ranks)}
        buffers[ranks] = every[0]
    assert max(buffers.values()) <= 1.01 * buffers[2]


def test_bytes_out_of_a_rank_are_those_of_the_bandwidth_optimal_algorithms() -> None:
    for collective, sent in (("allreduce", 120.0), ("all_to_all", 60.0), ("allgather", 240.0)):
        assert sent_bytes(PayloadTransfer(collective=collective, payload_bytes=80), 4) == sent
        assert sent_bytes(PayloadTransfer(collective=collective, payload_bytes=80), 1) == 0


def test_casts_hold_one_payload_and_none_sums_in_place() -> None:
    shapes = [(10, 10), (7,)]
    assert buffer_bytes(CodecSpec.parse("none"), shapes, 4) == 0
    assert buffer_bytes(CodecSpec.parse("bf16"), shapes, 4) == 214
    assert transfers(CodecSpec.parse("bf16"), [], 4) == ()
    assert buffer_bytes(CodecSpec.parse("sign"), [(0, 3)], 4) == 0


def test_a_family_without_traffic_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TRANSFERS, "sign")
    with pytest.raises(CompressionError, match="codec sign has no traffic, needs one of none"):
        transfers(CodecSpec.parse("sign"), [(4,)], 2)
