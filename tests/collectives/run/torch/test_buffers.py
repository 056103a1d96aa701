"""Binding tensors to segments: in place where possible, staged where not, never clobbered."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import ReduceOp

from headrace._native import DataType, Operator
from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch import checks
from headrace.collectives.run.torch.buffers import BlockLayout
from headrace.errors import InputError

KEPT = BlockLayout(1, 3, 1, keeps_inputs=True)


def test_contiguous_tensors_are_bound_where_they_are() -> None:
    tensor = torch.arange(10.0)
    bound = binding.in_place(tensor, 3)
    assert bound.segments == ((tensor.data_ptr(), 10, 1, 3),)
    assert bound.after is None
    moved = binding.in_place(tensor, 1, moved=True)
    assert moved.segments == ((tensor.data_ptr(), 40, 1, 1),)


def test_other_tensors_are_staged_and_copied_back() -> None:
    tensor = torch.arange(6.0).view(2, 3).t()
    bound = binding.in_place(tensor, 1)
    (staged,) = bound.keep
    assert bound.segments[0][0] == staged.data_ptr() != tensor.data_ptr()
    assert torch.equal(staged, tensor)
    staged += 1
    assert bound.after is not None
    bound.after()
    assert torch.equal(tensor, torch.arange(1.0, 7.0).view(2, 3).t())


def test_blocks_of_an_allgather_stay_where_they_are() -> None:
    blocks = [torch.zeros(4) for _ in range(3)]
    own = torch.ones(4)
    bound = binding.gathered(blocks, own, BlockLayout(1, 3, 2))
    assert bound.segments == tuple((block.data_ptr(), 16, 1, 2) for block in blocks)
    assert torch.equal(blocks[1], own)
    assert bound.after is None


@pytest.mark.parametrize("apart", [0, 2, 4])
def test_blocks_of_an_allgather_that_share_memory_are_received_apart(apart: int) -> None:
    """A rank that needs no result passed one tensor for all: what it sent was overwritten."""
    memory = torch.zeros(12)
    blocks = [memory[rank * apart :][:4] for rank in range(3)]
    bound = binding.gathered(blocks, torch.ones(4), BlockLayout(1, 3, 2))
    first, own, last = bound.keep[:3]
    assert [row[0] for row in bound.segments] == [part.data_ptr() for part in (first, own, last)]
    first.fill_(5.0)
    last.fill_(7.0)
    assert own.tolist() == [1.0] * 4
    assert (bound.after is None) == (apart == 4)
    if bound.after is not None:
        bound.after()
    assert blocks[2].tolist() == [7.0] * 4  # the last one's, as by Gloo


def test_blocks_are_brought_together_for_a_program_that_reaches_across() -> None:
    blocks = [torch.zeros(4) for _ in range(3)]
    bound = binding.gathered(blocks, torch.ones(4), BlockLayout(1, 3, 2, blockwise=False))
    ((address, size, count, chunks),) = bound.segments
    (whole,) = bound.keep
    assert (address, size, count, chunks) == (whole.data_ptr(), 16, 3, 2)
    whole[:16] = torch.full((4,), 7.0).view(torch.uint8)
    assert bound.after is not None
    bound.after()
    assert blocks[0].tolist() == [7.0] * 4
    assert blocks[1].tolist() == [1.0] * 4


def test_the_input_of_a_reduce_scatter_is_copied() -> None:
    source, output = torch.arange(6.0), torch.zeros(2)
    bound = binding.scattered([source], output, BlockLayout(1, 3, 1), moved=False)
    (whole,) = bound.keep
    assert bound.segments == ((whole.data_ptr(), 2, 3, 1),)
    whole *= 10
    assert bound.after is not None
    bound.after()
    assert output.tolist() == [20.0, 30.0]
    assert source.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_input_of_a_reduce_scatter_that_keeps_it_is_used_where_it_is() -> None:
    source, output = torch.arange(6.0), torch.zeros(2)
    bound = binding.scattered([source], output, KEPT, moved=False)
    address = source.data_ptr()
    assert bound.segments == (
        (address, 2, 1, 1),
        (output.data_ptr(), 2, 1, 1),
        (address + 16, 2, 1, 1),
    )
    assert output.tolist() == [2.0, 3.0]
    assert bound.after is None


def test_a_reduce_scatter_into_its_own_block_of_the_input_needs_no_copy() -> None:
    source = torch.arange(6.0)
    bound = binding.scattered([source], source[2:4], KEPT, moved=False)
    assert [row[0] - source.data_ptr() for row in bound.segments] == [0, 8, 16]
    # into another block: what is read must not be what is written
    bound = binding.scattered([source], source[0:2], KEPT, moved=False)
    assert bound.segments[1][0] == source.data_ptr() != bound.segments[0][0]
    copy = bound.keep[1]
    assert bound.segments[0][0] == copy.data_ptr()
    assert copy[:2].tolist() == [0.0, 1.0]
    assert source[:2].tolist() == [2.0, 3.0]  # begins as the own block


@pytest.mark.parametrize("moved", [False, True])
def test_a_scatter_lands_in_a_tensor_that_is_not_contiguous(moved: bool) -> None:
    output = torch.zeros(2, 2).t()
    bound = binding.scattered(
        None if moved else [torch.ones(12)], output, KEPT._replace(rank=0), moved=moved
    )
    bound.keep[0].fill_(7.0)
    assert bound.after is not None
    bound.after()
    assert (output == 7.0).all()


def test_an_all_to_all_in_place_sends_from_a_copy() -> None:
    tensor = torch.arange(4.0)
    sent, landing = binding.exchanged(tensor, tensor, BlockLayout(0, 2, 1)).segments
    assert landing[0] == tensor.data_ptr() != sent[0]


@pytest.mark.parametrize("splits", [None, ([1, 3], [3, 1])])
def test_an_all_to_all_whose_output_begins_within_its_input_sends_from_a_copy(
    splits: tuple[list[int], list[int]] | None,
) -> None:
    """Only equal addresses were taken for shared memory."""
    memory = torch.arange(6.0)
    for source, output in ((memory[:4], memory[2:]), (memory[2:], memory[:4])):
        bound = binding.exchanged(output, source, BlockLayout(0, 2, 1), splits)
        sent, landing = bound.keep
        assert bound.segments[0][0] == sent.data_ptr() != source.data_ptr()
        assert torch.equal(sent, source)
        assert landing is output
    halves = memory[:4], memory[4:]
    apart = binding.exchanged(halves[1], halves[0][:2], BlockLayout(0, 2, 1))
    assert apart.keep[0].data_ptr() == memory.data_ptr()  # beside each other is no overlap


def test_inputs_of_an_all_to_all_that_are_outputs_are_sent_from_copies() -> None:
    """Those of lists were sent from memory that messages arrived in."""
    tensors = [torch.full((3,), float(rank)) for rank in range(3)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    for outputs in (tensors, tensors[1:] + tensors[:1]):
        rows = binding.exchanged_lists(outputs, tensors, 1).segments
        assert not {address for address, *_ in rows[:3]}.intersection(addresses)
    memory = torch.zeros(9)
    outputs = [memory[2:4], torch.zeros(2), memory[5:7]]
    inputs = [memory[:2], memory[3:5], memory[7:9]]
    bound = binding.exchanged_lists(outputs, inputs, 1)
    copied = [a is not b for a, b in zip(bound.keep, inputs, strict=False)]
    assert copied == [False, True, False]  # no copy without need


def test_an_own_block_that_is_partly_its_place_is_moved() -> None:
    """torch refuses such copies: the call failed, on the ranks whose block it was."""
    memory = torch.arange(8.0)
    binding.gathered([memory[:6]], memory[1:3], BlockLayout(1, 3, 1))
    assert memory.tolist() == [0.0, 1.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
    memory = torch.arange(8.0)
    binding.gathered([memory[:2], memory[2:4]], memory[3:5], BlockLayout(1, 2, 1))
    assert memory.tolist() == [0.0, 1.0, 3.0, 4.0, 4.0, 5.0, 6.0, 7.0]
    memory = torch.arange(8.0)
    last = KEPT._replace(rank=2)
    bound = binding.scattered([memory[:6]], memory[5:7], last, moved=False)
    assert memory.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 5.0, 7.0]
    assert bound.segments[0][0] == memory.data_ptr()
    memory = torch.arange(8.0)
    lists = [memory[:2], memory[2:4], memory[4:6]]
    binding.scattered(lists, memory[5:7], last, moved=True)
    assert memory.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 5.0, 7.0]


def test_uneven_blocks_have_a_row_each() -> None:
    source, output = torch.zeros(5, 2), torch.zeros(3, 2)
    rows = binding.exchanged(output, source, BlockLayout(0, 2, 1), ([0, 3], [4, 1])).segments
    assert [size for _, size, _, _ in rows] == [32, 8, 0, 24]
    assert rows[1][0] == rows[0][0] + 32


@pytest.mark.parametrize(
    ("dtype", "op", "words"),
    [
        (torch.float32, ReduceOp.BXOR, "BXOR has no meaning on torch.float32"),
        (torch.complex64, ReduceOp.MAX, "MAX has no meaning on complex"),
        (torch.bool, ReduceOp.AVG, "AVG has no meaning on torch.bool"),
        (torch.float8_e5m2, ReduceOp.BAND, "BAND has no meaning on torch.float8_e5m2"),
        (torch.float8_e8m0fnu, ReduceOp.SUM, "float8_e8m0fnu cannot be reduced.*float8_e5m2"),
        (torch.float4_e2m1fn_x2, ReduceOp.MAX, "float4_e2m1fn_x2 cannot be reduced"),
    ],
)
def test_what_cannot_be_reduced_says_what_can(
    dtype: torch.dtype, op: ReduceOp.RedOpType, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        binding.arithmetic(dtype, ReduceOp(op))


def test_every_type_that_the_executor_reduces_is_taken() -> None:
    for name, dtype in DataType.__members__.items():
        found = binding.arithmetic(getattr(torch, name), ReduceOp(ReduceOp.MAX))
        assert found == (dtype, Operator.max, False)


def test_complex_numbers_are_added_as_pairs() -> None:
    assert binding.arithmetic(torch.complex128, ReduceOp(ReduceOp.AVG)) == (
        DataType.float64,
        Operator.sum,
        True,
    )
    assert binding.real(torch.zeros(3, dtype=torch.complex64)).shape == (3, 2)


def test_other_devices_and_layouts_are_refused() -> None:
    with pytest.raises(InputError, match=r"meta.*one device"):
        binding.check(torch.empty(2, device="meta"))
    with pytest.raises(InputError, match=r"sparse_coo.*dense tensors only"):
        binding.check(torch.eye(2).to_sparse())


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    nested: torch.Tensor = torch.nested.nested_tensor(parts, layout=layout)
    with pytest.raises(InputError, match=r"nested.*pass its values"):
        binding.check(nested)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors_are_refused() -> None:
    """An all-gather of them ended the process; a broadcast left each rank its own scale."""
    tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
    with pytest.raises(InputError, match=r"of torch.quint8, quantized.*int_repr\(\)"):
        binding.outgoing(tensor)
    with pytest.raises(InputError, match="quantized"):
        checks.one_dtype("all_gather", [tensor])


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_without_memory_is_refused_by_its_type() -> None:
    # It used to be called one whose storage was resized, as to the bytes that it had.
    with FakeTensorMode():
        tensor = torch.ones(3)
    with pytest.raises(InputError, match="a FakeTensor of shape .3,. has no memory of its own"):
        binding.check(tensor)
    resized = torch.ones(3)
    resized.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="its storage was resized to 0 bytes"):
        binding.check(resized)


@pytest.mark.parametrize("moved", [True, False])
def test_a_parameter_takes_the_result_of_a_scatter_and_of_a_reduce_scatter(moved: bool) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    bound = binding.scattered([torch.arange(6.0)], parameter, BlockLayout(1, 3, 1), moved=moved)
    assert bound.after is not None
    bound.after()
    assert parameter.tolist() == [2.0, 3.0]
    assert parameter.requires_grad
    assert parameter.is_leaf


def test_a_lazy_conjugate_takes_no_result() -> None:
    lazy = torch.zeros(4, dtype=torch.complex64).conj()
    plain = lazy.resolve_conj()
    for bind in (
        lambda: binding.in_place(lazy, 1),
        lambda: binding.gathered([lazy], plain[:2], BlockLayout(0, 2, 1)),
        lambda: binding.gathered([plain, lazy], plain, BlockLayout(0, 2, 1)),
        lambda: binding.gathered([plain, lazy], plain, BlockLayout(0, 2, 1, blockwise=False)),
        lambda: binding.gathered([plain, lazy], plain[:2], BlockLayout(0, 2, 1)),
        lambda: binding.scattered([plain], lazy[:2], BlockLayout(0, 2, 1), moved=False),
        lambda: binding.exchanged(lazy, plain, BlockLayout(0, 2, 1)),
        lambda: binding.exchanged_lists([plain, lazy], [plain, plain], 1),
        lambda: binding.flattened([plain, lazy]),
    ):
        with pytest.raises(InputError, match="lazy conjugate"):
            bind()


def test_a_lazy_conjugate_is_read_as_what_it_stands_for() -> None:
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj()
    (staged,) = binding.outgoing(lazy).keep
    assert not staged.is_conj()
    assert staged.tolist() == [1 - 2j, 3 + 4j]
    whole = torch.zeros(4, dtype=torch.complex64)
    binding.gathered([whole], lazy, BlockLayout(1, 2, 1))
    assert whole[2:].tolist() == [1 - 2j, 3 + 4j]


def test_blocks_that_may_differ_in_size_have_to_fit_a_frame() -> None:
    huge = torch.empty(1, dtype=torch.uint8).expand(1 << 32)  # takes no memory
    with pytest.raises(InputError, match=r"4294967296 bytes.*equal"):
        binding._framed(binding._split_rows(huge, [1 << 32, 0], 1))
    rows = binding._framed(binding._split_rows(huge, [(1 << 32) - 1, 1], 1))
    assert [size for _, size, _, _ in rows] == [(1 << 32) - 1, 1]
