"""One rank of a job whose calls torch's tools observe, run by test_observed.py."""

import json
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.errors import InputError

RANKS = 2
UNKNOWN = 100
TIMEOUT = timedelta(seconds=30)


def t(elements: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(elements, dtype=dtype)


def at_root(*tensors: torch.Tensor) -> list[torch.Tensor] | None:
    return list(tensors) if dist.get_rank() == 0 else None


# as torch.distributed has them; "group" and "async_op" are added
CALLS: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda **k: dist.all_reduce(t(), **k),
    "all_reduce int64": lambda **k: dist.all_reduce(t(6, torch.int64).view(2, 3), **k),
    "broadcast": lambda **k: dist.broadcast(t(), 0, **k),
    "reduce": lambda **k: dist.reduce(t(), 0, **k),
    "all_gather": lambda **k: dist.all_gather([t(), t()], t(), **k),
    "all_gather_into_tensor": lambda **k: dist.all_gather_into_tensor(t(8), t(), **k),
    "gather": lambda **k: dist.gather(t(), at_root(t(), t()), 0, **k),
    "scatter": lambda **k: dist.scatter(t(), at_root(t(), t()), 0, **k),
    "reduce_scatter": lambda **k: dist.reduce_scatter(t(), [t(), t()], **k),
    "reduce_scatter_tensor": lambda **k: dist.reduce_scatter_tensor(t(), t(8), **k),
    "all_to_all": lambda **k: dist.all_to_all([t(), t()], [t(), t()], **k),
    "all_to_all_single": lambda **k: dist.all_to_all_single(t(8), t(8), **k),
    "all_to_all_single, splits": lambda **k: dist.all_to_all_single(
        t(4), t(4), [2, 2], [2, 2], **k
    ),
    "barrier": lambda **k: dist.barrier(**k),
}
MESSAGES: dict[str, Callable[..., Any]] = {
    "send": lambda **k: (
        dist.isend(t(), 1, **k) if dist.get_rank() == 0 else dist.irecv(t(), 0, **k)
    ),
    "any": lambda **k: dist.isend(t(), 1, **k) if dist.get_rank() == 0 else dist.irecv(t(), **k),
}
# those of a group, which may be several calls to it, or a future
SEVERAL: dict[str, Callable[[Any], Any]] = {
    "coalesced": lambda g: g.allreduce_coalesced([t(), t(3)]),
    "all_gather_coalesced": lambda g: g.allgather_coalesced([[t(), t(2)]] * 2, [t(), t(2)]),
    "all_gather singles": lambda g: g.allgather_into_tensor_coalesced([t(8), t(4)], [t(), t(2)]),
    "reduce_scatter singles": lambda g: g.reduce_scatter_tensor_coalesced(
        [t(), t(2)], [t(8), t(4)]
    ),
}


@contextmanager
def group(backend: str = "headrace", **variables: str) -> Iterator[Any]:
    """Make a group of all ranks, with variables set in the environment."""
    os.environ.update(variables)
    try:
        made = dist.new_group(backend=backend, timeout=TIMEOUT)
    finally:
        for name in variables:
            del os.environ[name]
    try:
        yield made
    finally:
        dist.destroy_process_group(made)


def profiled(call: Callable[[], Any]) -> tuple[list[tuple[str, ...]], int, Any]:
    """Return torch's events (name, sizes, types) of a call, how many are headrace's, its work."""
    with profile(record_shapes=True) as found:
        work = call()
        if work is not None:
            work.wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    operators = sorted(
        (e["name"], str(e["args"].get("Input Dims")), str(e["args"].get("Input type")))
        for e in trace
        if e["name"].startswith("c10d::")
    )
    return operators, sum(e["name"].startswith("headrace:") for e in trace), work


def the_profiler_shows_what_it_shows_of_gloo() -> None:
    with group("gloo") as gloo, group() as own:
        for name, call in {**CALLS, **MESSAGES}.items():
            begin = call if name in MESSAGES else partial(call, async_op=True)
            expected, _, theirs = profiled(partial(begin, group=gloo))
            found, spans, ours = profiled(partial(begin, group=own))
            assert found == expected != [], (name, found, expected)
            if theirs._get_op_type() != UNKNOWN:  # as Gloo leaves it for a reduce_scatter
                assert ours._get_op_type() == theirs._get_op_type(), name
            unobserved = begin(group=own)
            unobserved.wait()
            assert unobserved._get_op_type() == ours._get_op_type() != UNKNOWN, name
            if name in CALLS:
                assert spans == 1, name
                expected, _, _ = profiled(partial(call, group=gloo))
                found, _, _ = profiled(partial(call, group=own))
                assert found == expected, (name, found, expected)
        for name, several in SEVERAL.items():
            expected, _, theirs = profiled(partial(several, gloo))
            found, _, ours = profiled(partial(several, own))
            assert found == expected != [], (name, found, expected)
            assert theirs._get_op_type() in (ours._get_op_type(), UNKNOWN), name


def sequence_numbers_are_as_with_gloo() -> None:
    with group("gloo") as gloo, group() as own:
        for each in (gloo, own):
            before = each._get_sequence_number_for_group()
            # Gloo's reduce_scatters are several collectives each
            calls = [call for name, call in CALLS.items() if "reduce_scatter" not in name]
            for count, call in enumerate(calls, 1):
                call(group=each)
                assert each._get_sequence_number_for_group() == before + count
            work = dist.all_reduce(t(), group=each, async_op=True)
            work.wait()
            assert work._get_sequence_number() == each._get_sequence_number_for_group()
        numbers = [None] * RANKS
        dist.all_gather_object(numbers, own._get_sequence_number_for_group())
        assert numbers[0] == numbers[1], numbers


def observed_calls_do_what_others_do() -> None:
    with group() as own:
        me = dist.get_rank()
        for observed in (False, True):
            with profile() if observed else torch.no_grad():
                work = dist.all_reduce(t() * (me + 1), group=own, async_op=True)
                work.wait()
                assert type(work).__name__ == "PendingWork"
                assert work.result()[0].tolist() == [3.0] * 4
                view = torch.tensor([1 + 2j, 3 + 4j]).conj().imag  # a negative view
                assert view.is_neg()
                dist.all_reduce(view, group=own)
                assert view.tolist() == [-4.0, -8.0], view
                source = torch.zeros(1)
                if me == 0:
                    dist.send(t(1), 1, group=own)
                else:
                    assert dist.recv(source, group=own) == 0
                try:
                    dist.all_gather([t(3), t(4), t(4)], t(4), group=own)
                except InputError:
                    pass
                else:
                    raise AssertionError("three blocks for two ranks")
                indices = torch.tensor([[me]])
                sparse = torch.sparse_coo_tensor(indices, t(1), (2,), check_invariants=True)
                dist.all_reduce(sparse, group=own)
                assert sparse.to_dense().tolist() == [1.0, 1.0]


def a_profiler_that_stops_before_the_calls_end() -> None:
    with group() as own:
        for _ in range(30):
            with profile():
                work = dist.all_reduce(t(), group=own, async_op=True)
            work.wait()


def torchs_operators() -> None:
    with group() as own:
        tensor = t()
        total = dist.ReduceOp.boxed(dist.ReduceOp(dist.ReduceOp.SUM))
        torch.ops.c10d.allreduce_([tensor], own.boxed(), total, None, False, -1)
        assert tensor.tolist() == [2.0] * 4


def hooks_are_called() -> None:
    with group() as own:
        seen: list[Any] = []
        own.register_pre_hook(7, lambda args: seen.append((args.name.name, args.input_tensors)))
        own.register_post_hook(8, lambda args: seen.append((args.name.name, args.op_id)))
        dist.all_reduce(t(3), group=own)
        assert [name for name, _ in seen] == ["ALLREDUCE"] * 2, seen
        assert seen[0][1][0].shape == (3,)
        own.unregister_pre_hook(7)
        own.unregister_post_hook(8)


def the_flight_recorder_records() -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        with group(**{name: "100"}) as own:
            options = own._dispatched.options
            assert options.backend == "headrace"
            assert options._timeout == TIMEOUT
            dist.all_reduce(t(3), group=own)
            dist.broadcast(t(5), 1, group=own, async_op=True).wait()
            entries = recorded(own)
            assert [
                (e["profiling_name"], e["input_sizes"], e["input_dtypes"], e["collective_seq_id"])
                for e in entries
            ] == [
                ("headrace:all_reduce", [[3]], ["Float"], 1),
                ("headrace:broadcast", [[5]], ["Float"], 2),
            ], entries
    with group() as own:
        dist.all_reduce(t(3), group=own)
        assert recorded(own) == []


def recorded(own: Any) -> list[dict[str, Any]]:
    dump = pickle.loads(_dump_fr_trace(True, False, False, backend="headrace"))
    return [e for e in dump.get("entries", []) if e["process_group"][0] == own.group_name]


def the_nan_check_checks() -> None:
    with group(TORCH_DIST_NAN_CHECK="1") as own:
        dist.all_reduce(t(), group=own)
        try:
            dist.all_reduce(t() * torch.nan, group=own)
        except RuntimeError as error:
            assert "NaN" in str(error), error
        else:
            raise AssertionError("NaN passed")


def the_debug_level_detail_changes_nothing() -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with group() as own:
            dist.all_reduce(t(), group=own)
            model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=own)
            model(torch.ones(1, 2)).sum().backward()
            dist.monitored_barrier(own)
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def traced(call: Callable[..., Any], mode: str, **options: Any) -> list[str]:
    """Return the operators that `make_fx` records of a call."""

    def traced_call(tensor: torch.Tensor) -> torch.Tensor:
        work = call(**options)
        if work is not None:
            work.wait()
        return tensor

    graph = make_fx(traced_call, tracing_mode=mode)(t()).graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def modes_are_passed_what_they_are_of_gloo() -> None:
    with group("gloo") as gloo, group() as own:
        before = own._get_sequence_number_for_group()
        for name, call in CALLS.items():
            for asynchronous in (False, True):
                theirs, ours = (
                    traced(call, "fake", group=g, async_op=asynchronous) for g in (gloo, own)
                )
                assert any(operator.startswith("c10d.") for operator in theirs)
                assert ours == theirs, name
        with FakeTensorMode():
            for call in CALLS.values():
                call(group=own)
            dist.all_reduce(torch.empty(2, device="cuda"), group=own)
            fake = t()
        work = dist.all_reduce(fake, group=own, async_op=True)
        work.wait()
        assert own._get_sequence_number_for_group() == before
        for mode in ("real", "symbolic"):
            theirs, ours = (traced(CALLS["all_reduce"], mode, group=g) for g in (gloo, own))
            assert ours == theirs
        counts = []
        for counted in (gloo, own):
            with CommDebugMode() as mode:
                for call in CALLS.values():
                    call(group=counted)
            counts.append(mode.get_comm_counts())
        assert counts[0] == counts[1] != {}


def calls_under_modes_and_transforms_do_what_others_do() -> None:
    me = dist.get_rank()

    class CallingMode(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function.namespace == "c10d":
                blocks = t(RANKS)
                dist.all_gather_into_tensor(blocks, t(1) * (me + 1), group=own)
                assert blocks.tolist() == [1.0, 2.0]
            return function(*args, **(kwargs or {}))

    with group() as own:
        for asynchronous in (False, True):

            def norm(tensor: torch.Tensor, begin: bool = asynchronous) -> torch.Tensor:
                total = (tensor * 2).view(2, 2).t()  # not contiguous
                blocks = [torch.zeros_like(tensor) for _ in range(RANKS)]
                works = [
                    dist.all_reduce(total, group=own, async_op=begin),
                    dist.all_gather(blocks, tensor, group=own, async_op=begin),
                ]
                for work in works:
                    if work is not None:
                        work.wait()
                return (total * total + blocks[1].view(2, 2)).sum()

            assert norm(t() * (me + 1)) == 4 * 6 * 6 + 4 * 2
            assert torch.func.functionalize(norm)(t() * (me + 1)) == 4 * 6 * 6 + 4 * 2
            assert torch.func.grad(norm)(t() * (me + 1)).tolist() == [2.0 * 6 * 2] * 4
        pair = TwoTensor(t(), t() + 1)
        dist.all_reduce(pair, group=own)
        assert pair.a.tolist() == [2.0] * 4
        assert pair.b.tolist() == [4.0] * 4
        total = t(4).view(2, 2).t()
        work = dist.all_reduce(total, group=own, async_op=True)
        with FakeTensorMode():
            work.wait()
        assert total.tolist() == [[2.0] * 2] * 2
        with CallingMode():
            dist.all_reduce(total, group=own)
        assert total.tolist() == [[4.0] * 2] * 2


CHECKS: list[Callable[[], None]] = [
    the_profiler_shows_what_it_shows_of_gloo,
    sequence_numbers_are_as_with_gloo,
    observed_calls_do_what_others_do,
    a_profiler_that_stops_before_the_calls_end,
    torchs_operators,
    hooks_are_called,
    the_flight_recorder_records,
    the_nan_check_checks,
    the_debug_level_detail_changes_nothing,
    modes_are_passed_what_they_are_of_gloo,
    calls_under_modes_and_transforms_do_what_others_do,
]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    results = {}
    for check in CHECKS:
        if sys.argv[1:] and check.__name__ not in sys.argv[1:]:
            continue
        try:
            check()
            results[check.__name__] = ""
        except Exception:  # every check is to be reported
            results[check.__name__] = traceback.format_exc()
        dist.barrier()
    dist.destroy_process_group()
    print("\nRESULTS", json.dumps(results), flush=True)


if __name__ == "__main__":
    import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

    main()
