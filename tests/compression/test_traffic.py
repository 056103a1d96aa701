"""Predicted bytes and phases against the requests of the codecs, in groups of one process.

Codecs take the sizes of their payloads from the module that predicts them. So they are compared,
too, with what messages between ranks carry, and with the codecs' definitions, which stand here.
"""

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from headrace.compression.codecs.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Context,
    Exchanges,
    Request,
)
from headrace.compression.codecs.table import CODECS, make_codec
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


@pytest.mark.sampled(4)
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


class Messages:
    """Exchanges by messages between the ranks of a process, in rings; `sent` counts their bytes."""

    def __init__(self, ranks: int) -> None:
        self.sent = [0] * ranks

    def run(self, running: list[Exchanges]) -> None:
        """Run the generators of all ranks."""
        while lists := [batch for batch in (next(each, None) for each in running) if batch]:
            for together in zip(*lists, strict=True):
                self._complete(together)

    def _take(self, source: int, values: Tensor) -> Tensor:
        message = values.contiguous().view(torch.uint8).numpy().tobytes()
        self.sent[source] += len(message)
        return torch.frombuffer(bytearray(message), dtype=values.dtype).view(values.shape)

    def _complete(self, together: tuple[Request, ...]) -> None:
        match together[0]:
            case AllReduce():
                self._sum([each.tensor for each in together if isinstance(each, AllReduce)])
            case AllToAll():
                exchanges = [each for each in together if isinstance(each, AllToAll)]
                for (rank, to), (source, other) in product(enumerate(exchanges), repeat=2):
                    row = other.sent[rank]
                    to.received[source] = row if source == rank else self._take(source, row)
            case AllGather():
                gathers = [each for each in together if isinstance(each, AllGather)]
                self._gather([each.sent for each in gathers], [each.received for each in gathers])

    def _gather(self, sent: list[Tensor], received: list[Tensor]) -> None:
        """Pass every rank's row around the ring."""
        ranks = len(sent)
        for rank in range(ranks):
            received[rank][rank] = sent[rank]
        for step, rank in product(range(1, ranks), range(ranks)):
            row, source = (rank - step) % ranks, (rank - 1) % ranks
            received[rank][row] = self._take(source, received[source][row])

    def _sum(self, tensors: list[Tensor]) -> None:
        """Sum by a reduce-scatter and an allgather around the ring."""
        ranks = len(tensors)
        bounds = [part * tensors[0].numel() // ranks for part in range(ranks + 1)]
        parts = [[each.view(-1)[b:e] for b, e in pairwise(bounds)] for each in tensors]
        for step, rank in product(range(ranks - 1), range(ranks)):
            part, source = (rank - step - 2) % ranks, (rank - 1) % ranks
            parts[rank][part] += self._take(source, parts[source][part])
        for step, rank in product(range(ranks - 1), range(ranks)):
            part, source = (rank - step - 1) % ranks, (rank - 1) % ranks
            parts[rank][part].copy_(self._take(source, parts[source][part]))


ELEMENTS, MATRIX = 40_000, (200, 120)
KEPT = ELEMENTS // 100
SUMMED: dict[str, float] = {
    "none": 4 * ELEMENTS,
    "bf16": 2 * ELEMENTS,
    "fp16": 2 * ELEMENTS,
    "fp8": ELEMENTS * (1 + 4 / 1024),  # a scale for each bucket
    "minmax:4": ELEMENTS * (4 / 8 + 8 / 1024),  # minimum and step
    "minmax:3": ELEMENTS * (3 / 8 + 8 / 1024),
    "qsgd:2": ELEMENTS * (2 / 8 + 4 / 512),  # a norm
    "terngrad": ELEMENTS * (2 / 8 + 4 / 1024),
    "sign": ELEMENTS / 8,
    "randomk:1%": 4 * KEPT,  # all ranks know the indices
    "powersgd:4": 4 * 4 * sum(MATRIX),
    "powersgd:2+bf16": 2 * 2 * sum(MATRIX),
}
"""Bytes of codecs of which a rank sends 2(n-1)/n, by their definitions."""
GATHERED: dict[str, float] = {
    "topk:1%": KEPT * (4 + 4),  # index and value
    "mstopk:1%": KEPT * (4 + 4),
    "dgc:1%+fp16": KEPT * (4 + 2),
    "atomo:4": 4 * 4 * sum(MATRIX),
}
"""Bytes of codecs of which a rank sends n-1."""


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_messages_carry_the_bytes_of_the_definitions_and_of_the_formula(ranks: int) -> None:
    assert {CodecSpec.parse(name).family for name in (*SUMMED, *GATHERED)} == set(CODECS)
    for name, payload in (*SUMMED.items(), *GATHERED.items()):
        spec = CodecSpec.parse(name)
        shape = MATRIX if spec.traits.matrices else (ELEMENTS,)
        random = torch.Generator().manual_seed(ranks)
        tensors = [[torch.randn(shape, generator=random)] for _ in range(ranks)]
        expected, _ = average(name, tensors)
        given = [[each.clone() for each in own] for own in tensors]
        means = [[torch.empty(shape)] for _ in range(ranks)]
        messages, codec = Messages(ranks), make_codec(name)
        messages.run(
            [
                codec.average(
                    given[rank],
                    means[rank],
                    [{}],
                    Context(rank=rank, ranks=ranks, seed=7, feedback=False),
                )
                for rank in range(ranks)
            ]
        )
        for (mean,) in means:  # sums in another order
            close = torch.isclose(mean, expected[0][0], rtol=1e-2, atol=1e-2)
            assert float(close.float().mean()) > 0.999, name
        times = ranks - 1 if name in GATHERED else 2 * (ranks - 1) / ranks
        padding = 64 * ranks * times  # buckets that are not full, numbers in front, alignment
        out = sum(messages.sent) / ranks
        assert payload * times <= out <= payload * times + padding, (name, ranks, out)
        assert max(messages.sent) - min(messages.sent) <= padding
        predicted = sum(sent_bytes(each, ranks) for each in transfers(spec, [shape], ranks))
        assert out == pytest.approx(predicted, abs=1e-6), (name, ranks)


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
