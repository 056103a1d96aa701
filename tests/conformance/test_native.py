"""Every collective on the native executor, against NumPy.

Values are small integers, so that every type and every order of summation gives the same bits;
one test uses random floats and a rounding bound instead.
"""

import itertools
from collections.abc import Iterator
from functools import cache, reduce

import numpy as np
import pytest
import torch

from headrace import _native
from headrace._native import DataType, Operator
from headrace.collectives.demand import REDUCING, ROOTED, STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError, UnverifiedPlanError
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Program, Schedule, Transfer
from headrace.collectives.run.choose import Chooser
from headrace.errors import InputError
from headrace.executor import Executor
from tests.collectives.plan.template_cases import serves
from tests.conformance.groups import each, group
from tests.tiers import case
from tests.waiting import HANG_S

RANKS = (1, 2, 3, 5, 8)
SIZES = (0, 1, 13, 30_011)
TEMPLATES = (
    "ring",
    "direct",
    "full_exchange",
    "halving_doubling",
    "recursive_doubling",
    "double_binary_tree",
    "hierarchical",
    "exchange",
)
NUMPY = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@pytest.fixture(scope="module", params=[*RANKS, "3 over tls"])
def executors(request: pytest.FixtureRequest) -> Iterator[list[Executor]]:
    tls = isinstance(request.param, str)
    if tls and not _native.has_tls():
        pytest.skip("built without OpenSSL")
    ranks = 3 if tls else request.param
    with group(ranks, shared_memory=not tls, tls=tls) as made:
        yield made


@cache
def made(
    template: str, collective: Collective, ranks: int, root: int
) -> tuple[Program, Proof] | None:
    """The template's program with a chunk count it accepts, or None where it does not serve."""
    for chunks in (ranks, 2, 1):
        demand = Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)
        try:
            program = lower(getattr(templates, template)(demand, **arguments(template, ranks)))
        except ProgramError:
            continue
        return program, verify(program)
    return None


def arguments(template: str, ranks: int) -> dict[str, object]:
    """Two groups, of uneven size for an odd number of ranks, where a template needs any."""
    if template not in ("hierarchical", "exchange"):
        return {}
    everyone = tuple(range(ranks))
    return {"groups": tuple(filter(None, (everyone[: ranks // 2], everyone[ranks // 2 :])))}


def meant_for(template: str, collective: Collective, ranks: int) -> bool:
    """Return whether a template has to serve a collective, by a table of the tests."""
    return serves(template, Demand(collective=collective, ranks=ranks))


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` as the executor's type; those that NumPy does not have are kept as bits."""
    if dtype == "bfloat16" or dtype.startswith("float8"):
        kept = torch.from_numpy(values.astype(np.float32)).to(getattr(torch, dtype))
        return kept.view(torch.uint16 if dtype == "bfloat16" else torch.uint8).numpy()
    return values.astype(np.uint8 if dtype == "bool" else dtype)


def contributions(ranks: int, size: int, dtype: str, operator: str) -> list[np.ndarray]:
    random = np.random.default_rng(size + ranks)
    # float8_e5m2 has whole numbers up to 8 only.
    narrow = dtype == "bool" or dtype.startswith("float8")
    high = {"product": 3, "narrow": 2}.get("narrow" if narrow else operator, 8)
    return [random.integers(0, high, size) for _ in range(ranks)]


def expected(inputs: list[np.ndarray], dtype: str, operator: str) -> np.ndarray:
    if dtype == "bool":
        operator = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(
            operator, operator
        )
    if operator == "avg":
        total = reduce(np.add, inputs)
        exact = total // len(inputs) if "int" in dtype else total / len(inputs)
        return stored(exact, dtype)
    return stored(reduce(NUMPY[operator], inputs), dtype)


def combining(operator: str) -> Operator:
    return Operator.sum if operator == "avg" else Operator[operator]


def run_collective(
    executors: list[Executor],
    program: Program,
    proof: Proof,
    buffers: list[np.ndarray],
    dtype: str = "float32",
    operator: str = "sum",
) -> None:
    """Run on one buffer a rank, cut into equal blocks."""
    demand = program.demand
    sides = 2 if demand.collective is Collective.ALL_TO_ALL else 1
    blocks = demand.blocks if demand.collective in STANDARD else demand.slots // demand.chunks

    def one(executor: Executor) -> None:
        buffer = buffers[executor.rank]
        block = buffer.size // (sides * blocks)
        side = buffer.nbytes // sides
        rows = [(buffer.ctypes.data + i * side, block, blocks, demand.chunks) for i in range(sides)]
        loaded = executor.load(program, proof)
        arithmetic = (DataType[dtype], combining(operator), operator == "avg")
        executor.run(executor.prepare(loaded, rows, *arithmetic, deadline_s=HANG_S))

    each(executors, one)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("collective", list(STANDARD))
def test_every_template_delivers(executors: list[Executor], collective: Collective) -> None:
    ranks = len(executors)
    roots = {0, ranks - 1} if collective in ROOTED else {0}
    for template, size, root in itertools.product(TEMPLATES, SIZES, roots):
        with case(template, f"{size} elements", f"root {root}"):
            found = made(template, collective, ranks, root)
            assert (found is not None) == meant_for(template, collective, ranks)
            if found is not None:  # others serve this collective (tested below)
                delivers(executors, *found, size)


def delivers(executors: list[Executor], program: Program, proof: Proof, size: int) -> None:
    ranks = len(executors)
    demand = Demand(collective=program.demand.collective, ranks=ranks, root=program.demand.root)
    buffers = [np.full(demand.slots * size, -1, np.int32) for _ in range(ranks)]
    for rank, buffer in enumerate(buffers):
        blocks = buffer.reshape(demand.slots, size)
        for slot, item, _ in demand.initial(rank):
            blocks[slot] = 100 * item + rank + np.arange(size)
    run_collective(executors, program, proof, buffers, "int32")
    for rank, buffer in enumerate(buffers):
        blocks = buffer.reshape(demand.slots, size)
        for slot, item, mask in demand.final(rank):
            parts = [100 * item + r + np.arange(size) for r in range(ranks) if mask >> r & 1]
            assert (blocks[slot] == sum(parts)).all(), (rank, slot)


@pytest.mark.parametrize("collective", list(STANDARD))
@pytest.mark.parametrize("ranks", RANKS)
def test_every_collective_has_a_template(collective: Collective, ranks: int) -> None:
    serving = {name for name in TEMPLATES if made(name, collective, ranks, 0)}
    assert serving == {name for name in TEMPLATES if meant_for(name, collective, ranks)}
    assert "direct" in serving


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", list(DataType.__members__))
def test_types_and_operators(executors: list[Executor], dtype: str) -> None:
    found = made("ring", Collective.ALLREDUCE, len(executors), 0)
    assert found is not None
    for operator, size in itertools.product([*Operator.__members__, "avg"], SIZES):
        with case(operator, f"{size} elements"):
            combines(executors, *found, dtype, operator, size)


def combines(
    executors: list[Executor], program: Program, proof: Proof, dtype: str, operator: str, size: int
) -> None:
    inputs = contributions(len(executors), size, dtype, operator)
    buffers = [stored(values, dtype) for values in inputs]
    if not _native.supports(DataType[dtype], combining(operator)):
        assert operator in ("band", "bor", "bxor")
        if len(executors) > 1:
            with pytest.raises(InputError, match="no meaning"):
                run_collective(executors, program, proof, buffers, dtype, operator)
        return
    run_collective(executors, program, proof, buffers, dtype, operator)
    if operator == "avg" and dtype == "bool":
        return  # an average of truth values: only that it ends is asked for
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, expected(inputs, dtype, operator))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("collective", sorted(REDUCING))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_random_floats_within_rounding(
    executors: list[Executor], collective: Collective, dtype: str
) -> None:
    ranks, size = len(executors), 1009
    random = np.random.default_rng(3)
    demand = Demand(collective=collective, ranks=ranks)
    inputs = [random.standard_normal(demand.blocks * size).astype(dtype) for _ in range(ranks)]
    exact = np.sum([values.astype(np.float64) for values in inputs], axis=0)
    # n - 1 roundings of partial sums, none larger than the sum of magnitudes.
    magnitude = np.sum([np.abs(values.astype(np.float64)) for values in inputs], axis=0)
    bound = (ranks - 1) * np.finfo(dtype).eps * magnitude + np.finfo(dtype).tiny
    for template in TEMPLATES:
        found = made(template, collective, ranks, 0)
        assert (found is not None) == meant_for(template, collective, ranks)
        if found is None:
            continue
        buffers = [values.copy() for values in inputs]
        run_collective(executors, *found, buffers, dtype)
        results = []
        for rank, buffer in enumerate(buffers):
            for block, _, _ in demand.final(rank):
                part = slice(block * size, (block + 1) * size)
                assert (np.abs(buffer[part] - exact[part]) <= bound[part]).all()
                results.append(buffer[part])
        if collective is Collective.ALLREDUCE:
            assert all((result == results[0]).all() for result in results), "ranks differ in bits"


def test_average_of_a_part_leaves_the_rest_alone(executors: list[Executor]) -> None:
    ranks = len(executors)
    found = made("direct", Collective.REDUCE_SCATTER, ranks, 0)
    assert found is not None
    buffers = [np.full(ranks * 10, rank + 1, np.float64) for rank in range(ranks)]
    run_collective(executors, *found, buffers, "float64", "avg")
    for rank, buffer in enumerate(buffers):
        assert (buffer[rank * 10 : (rank + 1) * 10] == (ranks + 1) / 2).all()


def test_unproven_and_altered_programs_are_refused(executors: list[Executor]) -> None:
    ranks = len(executors)
    first = made("ring", Collective.ALLREDUCE, ranks, 0)
    other = made("ring", Collective.ALLGATHER, ranks, 0)
    assert first is not None
    assert other is not None
    with pytest.raises(UnverifiedPlanError, match="verify the plan again"):
        executors[0].load(first[0], other[1])
    with pytest.raises(UnverifiedPlanError, match="verifier"):
        executors[0].load(first[0], Proof(program_digest=first[0].digest, verifier_version=0))


def test_demands_of_ones_own_run_natively(executors: list[Executor]) -> None:
    """An uneven exchange and a custom demand that combines, straight on the executor."""
    ranks = len(executors)
    uneven = Demand.all_to_all_v([[(s + 2 * d) % 3 for d in range(ranks)] for s in range(ranks)])
    total = Demand.custom(  # all ranks' slots 0 are summed at the last rank, in slot 1
        ranks=ranks,
        slots=2,
        before=[(r, 0, 0, (r,)) for r in range(ranks)],
        after=[(ranks - 1, 1, 0, tuple(range(ranks)))],
    )
    last = ranks - 1
    sums = [
        Transfer(last, last, 0, 1),
        *(Transfer(r, last, 0, 1, reduce=True) for r in range(last)),
    ]
    schedules = (templates.direct(uneven), Schedule.of(total, sums))
    for size, schedule in itertools.product((0, 1, 5_003), schedules):
        demand, program = schedule.demand, lower(schedule)
        buffers = [np.full(demand.slots * size, -1, np.int64) for _ in range(ranks)]
        for rank, buffer in enumerate(buffers):
            for slot, item, _ in demand.initial(rank):
                buffer.reshape(demand.slots, size)[slot] = 100 * item + rank + np.arange(size)
        run_collective(executors, program, verify(program), buffers, "int64")
        for rank, buffer in enumerate(buffers):
            for slot, item, mask in demand.final(rank):
                parts = [100 * item + r + np.arange(size) for r in range(ranks) if mask >> r & 1]
                assert (buffer.reshape(demand.slots, size)[slot] == sum(parts)).all()


def test_a_custom_demand_is_not_averaged(executors: list[Executor]) -> None:
    ranks = len(executors)
    demand = Demand.custom(ranks=ranks, slots=1, before=[(0, 0, 0, (0,))], after=[])
    program = lower(Schedule.of(demand, []))
    loaded = executors[0].load(program, verify(program))
    with pytest.raises(InputError, match="use 'sum' and divide"):
        executors[0].prepare(loaded, [(0, 0, 1, 1)], average=True)


@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.ALLGATHER])
def test_calls_that_are_spread_over_connections_give_the_same_results(
    collective: Collective,
) -> None:
    ranks, channels = 3, 2
    choice = Chooser(ranks, channels=channels).choose(collective, 1 << 20)
    size = ranks * 90_001
    buffers = [np.full(size, 10.0 + rank, np.float32) for rank in range(ranks)]
    with group(ranks, channels, shared_memory=False) as executors:
        run_collective(executors, choice.program, choice.proof, buffers)
    for rank, buffer in enumerate(buffers):
        if collective is Collective.ALLREDUCE:
            assert (buffer == 33.0).all(), rank
        else:
            assert (buffer.reshape(ranks, -1) == [[10.0], [11.0], [12.0]]).all(), rank
