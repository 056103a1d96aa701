import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.measure.probes.probe import ACK_BYTES, Flow, Manner, Probe, segments
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Op
from headrace.errors import InputError


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    ranks = draw(st.integers(2, 6))
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1, max_size=4))
    return Probe(
        ranks=ranks,
        manner=draw(st.sampled_from(Manner)),
        chunks=draw(st.integers(1, 5)),
        flows=tuple(
            Flow(*(pair if draw(st.booleans()) else pair[::-1]), draw(st.integers(1, 1000)))
            for pair in chosen
        ),
    )


@settings(max_examples=60, deadline=None)
@given(probes())
def test_every_probe_is_a_program_that_verifies(probe: Probe) -> None:
    program = probe.program()
    assert verify(program).program_digest == program.digest


@settings(max_examples=30, deadline=None)
@given(probes())
def test_segments_cover_every_slot_and_nothing_else(probe: Probe) -> None:
    for rank in range(probe.ranks):
        sizes = probe.block_bytes(rank)
        rows = segments(sizes, probe.chunks, 1000, 500_000)
        assert sum(blocks * chunks for _, _, blocks, chunks in rows) == probe.demand.slots
        for side, start in zip(
            (rows[: probe.width], rows[probe.width :]), (1000, 500_000), strict=True
        ):
            assert side[0][0] == start
            for (address, size, _, _), (following, _, _, _) in itertools.pairwise(side):
                assert following == address + size


@settings(max_examples=30, deadline=None)
@given(probes())
def test_what_one_rank_sends_another_receives(probe: Probe) -> None:
    sizes = [probe.block_bytes(rank) for rank in range(probe.ranks)]
    for flow, out, back in zip(probe.flows, *probe.positions(), strict=True):
        sent, received = sizes[flow.src]
        other_sent, other_received = sizes[flow.dst]
        assert sent[out] == other_received[back] == probe.chunks * flow.chunk_bytes
        assert received[out] == other_sent[back] == probe.chunks * ACK_BYTES
    blocks = sum(int((side > 0).sum()) for both in sizes for side in both)
    assert blocks == 4 * len(probe.flows)


def test_ranks_that_take_no_part_run_no_step() -> None:
    probe = Probe(ranks=4, manner=Manner.AT_ONCE, chunks=4, flows=(Flow(2, 0, 1000),))
    assert set(probe.program().lanes["rank"].tolist()) == {0, 2}
    assert all((side == 0).all() for rank in (1, 3) for side in probe.block_bytes(rank))


def test_chunks_at_once_are_acknowledged_once_and_one_after_another_each() -> None:
    for manner, acknowledgements in ((Manner.AT_ONCE, 1), (Manner.ONE_AFTER_ANOTHER, 5)):
        probe = Probe(ranks=2, manner=manner, chunks=5, flows=(Flow(0, 1, 10),))
        program = probe.program()
        lane_rank = program.lanes["rank"][program.steps["lane"]]
        sends = program.steps["op"] == Op.SEND
        assert int((sends & (lane_rank == 0)).sum()) == 5
        assert int((sends & (lane_rank == 1)).sum()) == acknowledgements


def test_a_shape_tells_programs_apart_but_not_sizes() -> None:
    small = Probe(ranks=3, manner=Manner.AT_ONCE, chunks=4, flows=(Flow(2, 0, 1),))
    large = Probe(ranks=3, manner=Manner.AT_ONCE, chunks=4, flows=(Flow(2, 0, 10**6),))
    other = Probe(ranks=3, manner=Manner.AT_ONCE, chunks=4, flows=(Flow(0, 2, 1),))
    assert small.shape == large.shape
    assert small.program().digest == large.program().digest
    assert small.shape != other.shape
    assert small.program().digest != other.program().digest


@pytest.mark.parametrize(
    ("flows", "message"),
    [
        ((), "flows is empty"),
        ((Flow(0, 0, 1),), r"flows\[0\] is 0 -> 0"),
        ((Flow(0, 3, 1),), r"flows\[0\] is 0 -> 3, needs two different ranks of 0 to 2"),
        ((Flow(0, 1, 0),), r"flows\[0\].chunk_bytes is 0"),
        ((Flow(0, 1, 1), Flow(1, 0, 1)), r"flows\[1\] joins ranks 1 and 0 again"),
    ],
)
def test_a_wrong_flow_is_named(flows: tuple[Flow, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Probe(ranks=3, manner=Manner.AT_ONCE, chunks=1, flows=flows)
