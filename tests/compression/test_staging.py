"""Gradients of another device: on a double of one in this process, and on a GPU if there is one."""

import copy
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headrace import staging
from headrace.compression.averaging import Averager
from headrace.compression.codecs import loops
from headrace.compression.codecs.requests import AllReduce, Request, run_together
from headrace.compression.codecs.table import CODECS
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.finite import all_finite
from headrace.compression.policy import Policy
from headrace.compression.run import exchanger
from headrace.compression.run.hook import one_device
from tests.compression.device_double import DEVICE, DeviceTensor, Double, LateStaging

SHAPES = {"a.weight": (70, 40), "a.bias": (40,), "b.weight": (30, 40, 3), "norm": (5,)}
SPECS = [*(str(CodecSpec.parse(family)) for family in CODECS), "powersgd:2+fp16", "topk:5%+bf16"]
WAITING = {"mstopk": {"aten.nonzero.default", "aten.index.Tensor"}, "dgc": {"aten.nonzero.default"}}
"""Families that select as many elements as there are: operators that wait for their number."""

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture
def double() -> Double:
    return Double()


def gradients(step: int, rank: int) -> list[tuple[str, Tensor]]:
    random = torch.Generator().manual_seed(1000 * step + rank)
    return [(name, torch.randn(shape, generator=random)) for name, shape in SHAPES.items()]


def moved(pairs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [(name, DeviceTensor(tensor.clone())) for name, tensor in pairs]


def plainly(value: Any) -> Any:
    """Return a state with the device's tensors in host memory."""
    if isinstance(value, dict):
        return {key: plainly(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(each) for each in value]
    return value.inner if isinstance(value, DeviceTensor) else value


def close(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return all(close(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Tensor):
        return torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    return one == other


def groups(spec: str, ranks: int) -> list[Averager]:
    policy = Policy(codec=spec, smallest=100)
    return [Averager(policy, SHAPES, rank=rank, ranks=ranks, seed=3) for rank in range(ranks)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("spec", "ranks"),
    [*((spec, 2) for spec in SPECS), *(("topk:1%", n) for n in (1, 3, 5)), ("minmax:4", 3)],
)
def test_a_device_gives_what_the_cpu_gives_without_waiting(
    spec: str, ranks: int, double: Double
) -> None:
    family = CodecSpec.parse(spec).family
    ours, theirs = groups(spec, ranks), groups(spec, ranks)
    for step in range(3):
        given = [gradients(step, rank) for rank in range(ranks)]
        if step == 1:  # not finite: nothing is kept
            given[-1][0][1][3, 3] = torch.inf
        there = [moved(own) for own in given]
        run_together([each.average(own) for each, own in zip(theirs, given, strict=True)])
        before = double.reads
        with double:
            run_together([each.average(own) for each, own in zip(ours, there, strict=True)])
        assert [each.finite for each in ours] == [each.finite for each in theirs]
        assert close(plainly(there), [list(own) for own in given]), step
        waited = double.reads - before
        if family not in (*WAITING, "atomo"):
            # for the flag of the step, counts and indices; and what is drawn on the CPU is copied
            assert waited <= 5 * ranks, (step, waited)
    assert set(double.waits) <= WAITING.get(family, set())
    for one, other in zip(ours, theirs, strict=True):
        mine, other_s = one.state_dict()["parameters"], other.state_dict()["parameters"]
        kept = [k["residual"] for k in mine.values() if k["residual"] is not None]
        assert all(isinstance(each, DeviceTensor) for each in kept)
        assert close(plainly(mine), other_s)
        assert CodecSpec.parse(spec).traits.feedback == bool(kept)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spec", ["powersgd:2", "dgc:5%", "minmax:4"])
def test_states_that_were_loaded_elsewhere_follow_the_gradient(spec: str, double: Double) -> None:
    whole = groups(spec, 2)
    for step in range(2):
        given = [gradients(step, rank) for rank in range(2)]
        run_together([each.average(own) for each, own in zip(whole, given, strict=True)])
    again = groups(spec, 2)
    for each, state in zip(again, [each.state_dict() for each in whole], strict=True):
        each.load_state_dict(copy.deepcopy(state))
    for step in range(2, 4):
        given = [gradients(step, rank) for rank in range(2)]
        there = [moved(own) for own in given]
        run_together([each.average(own) for each, own in zip(whole, given, strict=True)])
        with double:
            run_together([each.average(own) for each, own in zip(again, there, strict=True)])
        assert close(plainly(there), [list(own) for own in given])


@pytest.mark.slow
def test_all_operators_that_run_on_a_device_have_kernels_of_cuda(double: Double) -> None:
    used = double.used
    for spec in SPECS:
        ours = groups(spec, 2)
        with double:
            for step in range(2):
                there = [moved(gradients(step, rank)) for rank in range(2)]
                run_together([each.average(own) for each, own in zip(ours, there, strict=True)])
    keys = ("CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    names = {str(operator).replace(".default", "").replace("aten.", "aten::") for operator in used}
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [name for name in names if not any(has(name, key) for key in keys)] == []
    assert len(names) > 40


def test_finite_is_told_of_extreme_values_without_overflow(double: Double) -> None:
    huge = torch.full((70_000,), 3e38)
    for place, value in ((None, 0.0), (0, torch.nan), (69_999, torch.inf), (5, -torch.inf)):
        given = huge.clone()
        if place is not None:
            given[place] = value
        with double:
            there = all_finite(DeviceTensor(given))
        assert bool(all_finite(given)) == bool(plainly(there)) == (place is None)
    assert bool(all_finite(huge[:0]))


class Echoes:
    """Stands for torch.distributed: a group of one, whose sums arrive when they are waited for."""

    def __init__(self, late: LateStaging) -> None:
        self.order: list[int] = []
        self.copied: list[int] = []  # payloads whose copies had begun before each sum
        self._late = late

    def all_reduce(self, tensor: Tensor, group: object, async_op: bool) -> "Echo":
        assert not isinstance(tensor, DeviceTensor)
        self.order.append(tensor.numel())
        self.copied.append(self._late.copies)
        return Echo(tensor)


class Echo:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> None:
        self._tensor.mul_(2)


class One:
    def size(self) -> int:
        return 1


@pytest.mark.parametrize("fails", [False, True])
def test_payloads_are_exchanged_in_order_when_their_copies_have_arrived(
    fails: bool, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LateStaging()
    echoes = Echoes(late)
    monkeypatch.setattr(exchanger.dist, "all_reduce", echoes.all_reduce)
    monkeypatch.setattr(exchanger, "staging_of", lambda _device: late)
    sizes = [300_000, 10, 20, 400_000, 70_000, 5]
    tensors = [torch.full((size,), float(index + 1)) for index, size in enumerate(sizes)]

    def one(tensor: Tensor) -> Any:
        request: Request = AllReduce(tensor)
        yield [request]
        if fails and tensor.numel() == 5:
            raise ConnectionError

    with double:
        there = [DeviceTensor(tensor) for tensor in tensors]
        running = exchanger.Exchanger(One())  # type: ignore[arg-type]
        if fails:
            with pytest.raises(ConnectionError):
                running.run([one(tensor) for tensor in there])
        else:
            running.run([one(tensor) for tensor in there])
    # small ones travel together, after those that fill a pack
    assert echoes.order == [300_000, 400_000, 70_000, 35]
    assert echoes.copied[0] == 3  # others were encoded until the first one's copy had arrived
    assert late.copies == 4
    for index, tensor in enumerate(tensors):
        assert bool((tensor == 2.0 * (index + 1)).all()), index
    assert double.waits == []


@gpu
@pytest.mark.parametrize("spec", SPECS)
def test_a_gpu_gives_what_the_cpu_gives(spec: str) -> None:
    ours, theirs = groups(spec, 2), groups(spec, 2)
    for step in range(3):
        given = [gradients(step, rank) for rank in range(2)]
        there = [[(n, g.cuda()) for n, g in own] for own in given]
        run_together([each.average(own) for each, own in zip(theirs, given, strict=True)])
        run_together([each.average(own) for each, own in zip(ours, there, strict=True)])
        for (name, mine), (_, mean) in zip(there[0], given[0], strict=True):
            assert mine.is_cuda
            assert torch.equal(mine, dict(there[1])[name])
            torch.testing.assert_close(mine.cpu(), mean, rtol=1e-3, atol=1e-3)


@gpu
def test_copies_of_a_gpu_follow_the_stream() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    staged = staging.staging_of(device)
    assert staged is not None
    assert staged is staging.staging_of(device)
    busy = torch.randn(4000, 4000, device=device)
    for _ in range(20):
        busy = busy @ busy * 1e-3
    tensor = torch.ones(1_000_000, device=device).add_(1)
    host, ready = staged.to_host(tensor)
    assert host.is_pinned()
    tensor.zero_()  # after the copy
    ready.synchronize()
    assert bool((host == 2).all())
    staged.to_device(host, tensor)
    assert float(tensor.sum()) == 2_000_000

    def work() -> None:
        with staged.beside(begun):
            assert torch.cuda.current_stream(device) != torch.cuda.default_stream(device)
            tensor.add_(1)
            ends.append(staged.mark())

    ends: list[torch.cuda.Event] = []
    for _ in range(20):
        busy = busy @ busy * 1e-3
    tensor.fill_(5)
    begun = staged.mark()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    staged.follow(ends[0])
    tensor.mul_(2)
    assert bool((tensor == 12).all())


def test_loops_take_tensors_of_other_devices_than_the_cpu(double: Double) -> None:
    with double:
        given = DeviceTensor(torch.randn(1000))
        out = torch.empty(125, dtype=torch.uint8, device=DEVICE)
        loops.pack_signs(given, out)
    expected = torch.empty(125, dtype=torch.uint8)
    loops.pack_signs(plainly(given), expected)
    assert torch.equal(plainly(out), expected)
    assert staging.download(expected) is expected


def test_the_double_tells_what_a_gpu_would_wait_for_or_refuse(double: Double) -> None:
    with double:
        there = DeviceTensor(torch.ones(3))
        float(there.sum())
        there[there > 0] = 2.0
        there.cpu()
        with pytest.raises(AssertionError, match="several devices"):
            there.add_(torch.ones(3))
        assert len(double.waits) == 2, double.waits
        staging.download(there)
        assert double.reads == 1
    host, copied = LateStaging().to_host(there)
    assert not torch.equal(host, plainly(there))
    copied.synchronize()
    assert torch.equal(host, plainly(there))


def test_parameters_of_several_or_unknown_devices_and_groups_without_a_cpu_are_refused() -> None:
    class Group:
        _device_types = (torch.device("cuda"),)

    class Both:
        _device_types = (torch.device("cpu"), torch.device("cuda"))

    here = torch.ones(2)
    with FakeTensorMode():
        there = torch.ones(2, device="cuda:1")
    for group, parameters, problem in (
        (Both(), {"a": here, "b": there}, "'b' is on cuda:1, needs the CPU or a CUDA device, the"),
        (Both(), {"a": torch.ones(2, device="meta")}, "'a' is on meta"),
        (Group(), {"a": there}, 'no backend for the CPU.*init_process_group\\("headrace"\\)'),
    ):
        with pytest.raises(CompressionError, match=problem):
            one_device(parameters, group)  # type: ignore[arg-type]
    assert one_device({"a": there, "b": there}, Both()) == torch.device("cuda:1")  # type: ignore[arg-type]
    assert one_device({}, Group()) == torch.device("cpu")  # type: ignore[arg-type]
