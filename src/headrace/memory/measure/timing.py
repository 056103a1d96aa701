"""Time and workspace of the operators of a captured step: measured, or modelled by a roofline."""

# pyright: reportPrivateUsage=false

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from headrace.host_memory import last_level_cache_bytes
from headrace.memory.errors import CaptureError
from headrace.memory.graph import Graph, Implementation, Operator
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.captured import Capture, Stored, TracedCall
from headrace.memory.measure.sizes import ROUNDING, rounded_bytes
from headrace.memory.operators import attention, convolution, copies, loss, products, recurrent
from headrace.memory.operators.variant import as_traced, communicates, source, target_name
from headrace.roofline import Roofline

MIN_RUNS = 3
MAX_RUNS = 50
MEASURED_S = 0.05
"""An operator is run until these seconds have passed, between `MIN_RUNS` and `MAX_RUNS` times."""
_PIVOTS = ("pivots", "LU_pivots")
"""Names of arguments of ATen operators that are rows, counted from 1."""
_SCATTERED = (torch.ops.aten.masked_scatter.default, torch.ops.aten.masked_scatter_backward.default)
"""Operators with a mask that selects no more elements than another operand has."""
_CACHE_BYTES = 64 << 20
"""Of the last level, where the system does not tell."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run of an operator.

    Attributes
    ----------
    time_us : median over runs.
    workspace_bytes : at the peak, beside what the operator creates.
    spread_us : time between the quartiles of the runs; None: of one run, or read from the cache.
    """

    time_us: float
    workspace_bytes: int
    spread_us: float | None = None


def relative_spread(costs: Iterable[Cost]) -> float | None:
    """Return the times between quartiles as a share of all times; None where none was measured."""
    measured = [cost for cost in costs if cost.spread_us is not None]
    time_us = sum(cost.time_us for cost in measured)
    return sum(cost.spread_us or 0.0 for cost in measured) / time_us if time_us else None


def measured_graph(
    capture: Capture,
    device: torch.device,
    cache: MutableMapping[str, Cost] | None = None,
    *,
    single_runs: bool = False,
    report: Callable[[int], None] = lambda _measured: None,
) -> Graph:
    """Return the captured graph with times and workspaces as measured on a device.

    Each operator is run on random tensors of its shapes and strides, those of equal arguments once.
    Operators that exchange tensors with other ranks are not run, and cost nothing: each occurs once
    in a schedule.

    Parameters
    ----------
    cache : earlier costs, by operator, arguments and device; what is measured is added.
    single_runs : whether the time of an operator is that of one run, whatever is in the device's
        cache: for schedules whose memory counts, and not their speed.
    report : called with the number of implementations whose costs are known so far.
    """
    cache = {} if cache is None else cache
    where, evicting_bytes = device_name(device), _evicting_bytes(capture, device)
    if evicting_bytes < _cache_bytes(device):
        where += f", {evicting_bytes} bytes of a step"
    others = torch.empty(0 if single_runs else evicting_bytes, dtype=torch.uint8, device=device)
    count = 0

    def cost(call: TracedCall) -> Cost:
        nonlocal count
        report(count)
        count += 1
        # other ranks may have its cost in their cache, or run it more often in the same time
        if communicates(call.target):
            return Cost(0.0, 0)
        key = f"{_signature(capture, call)} on {where}"
        if key not in cache:
            try:
                cache[key] = _measure(capture, call, device, None if single_runs else others)
            except torch.OutOfMemoryError:
                if (device_bytes := memory_bytes(device)) is None:
                    raise
                return Cost(0.0, device_bytes)  # so that no plan has it
        return cache[key]

    return _with_costs(capture, cost)


def modelled(capture: Capture, device: Roofline) -> Graph:
    """Return the captured graph with times by a roofline; workspaces are unknown, and 0.

    An operator takes ``launch + max(flops / flops_per_s, bytes / bytes_per_s)``, with torch's own
    formulas for flops and with each tensor that it reads or creates moved once; copies in the
    host's memory take ``bytes / host_bytes_per_s`` beside that.

    Raises
    ------
    CaptureError : there are such copies, and that is not stated.
    """
    if capture.hosted and not device.host_bytes_per_s:
        raise CaptureError(
            f"{device.name} states no bandwidth to the host's memory, which offload needs"
        )
    return _with_costs(capture, lambda call: _roofline_cost(capture, call, device))


def device_name(device: torch.device) -> str:
    """Return the name of comparable devices: a device's model, and the CPU's threads."""
    if device.type == "cpu":
        return f"cpu, {torch.get_num_threads()} threads"
    return str(torch.get_device_module(device).get_device_name(device))


def memory_bytes(device: torch.device) -> int | None:
    """Return the memory of an accelerator; None for the CPU, whose memory others use, too."""
    if device.type == "cpu":
        return None
    return int(torch.get_device_module(device).get_device_properties(device).total_memory)


def _with_costs(capture: Capture, cost: Callable[[TracedCall], Cost]) -> Graph:
    operators = tuple(
        operator if node is None else _costed(capture, index, node, cost)
        for index, (operator, node) in enumerate(
            zip(capture.graph.operators, capture.nodes, strict=True)
        )
    )
    return replace(capture.graph, operators=operators)


def _costed(
    capture: Capture, index: int, node: Node, cost: Callable[[TracedCall], Cost]
) -> Operator:
    operator = capture.graph.operators[index]
    ways: list[Implementation] = []
    for number, implementation in enumerate(operator.implementations):
        target = cast(Callable[..., Any], node.target)
        own = TracedCall(
            target=target, args=node.args, kwargs=node.kwargs, outputs=implementation.creates
        )
        measured = cost(capture.calls.get((index, number), own))
        ways.append(
            replace(
                implementation, time_us=measured.time_us, workspace_bytes=measured.workspace_bytes
            )
        )
    return replace(operator, implementations=tuple(ways))


def _mapped(capture: Capture, values: Any, convert: Callable[[Any], Any]) -> Any:
    """Return arguments of a call with fake tensors converted."""

    def convert_argument(value: Any) -> Any:
        if isinstance(value, Stored):
            return convert(capture.example(value.storage))
        return convert(value.meta["val"]) if isinstance(value, Node) else value

    return map_aggregate(values, convert_argument)


def _signature(capture: Capture, call: TracedCall) -> str:
    """Return the properties that the cost of a call depends on, beside the device.

    Sizes of storages belong to it: ``aten.copy`` of a slice copies the storage, and a result in
    more memory than traced is copied out of it.
    """

    def text(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [text(element) for element in value]
        if isinstance(value, torch.Tensor):
            offset, nbytes = value.storage_offset(), value.untyped_storage().nbytes()
            return f"{value.dtype}{tuple(value.shape)}{value.stride()}+{offset} of {nbytes}"
        return str(value)

    args = _mapped(capture, (call.args, dict(call.kwargs)), text)
    results = [text(capture.example(storage)) for storage in call.outputs]
    return f"{target_name(call.target)}{args} -> {results}"


def _measure(
    capture: Capture, call: TracedCall, device: torch.device, others: torch.Tensor | None
) -> Cost:
    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),  # a step has its conversions as operators
        torch.random.fork_rng(_accelerators(device)),
    ):
        args, kwargs = map_aggregate(
            (call.args, dict(call.kwargs)), lambda value: _example_of(capture, value, device)
        )
        _make_valid(call.target, args)
        traced = [capture.example(storage) for storage in call.outputs]
        layouts = [(output.stride(), output.untyped_storage().nbytes()) for output in traced]

        def prepare() -> Callable[[], object]:
            fresh = recurrent.with_fresh_graph(call.target, args)

            def run() -> object:
                outputs = _tensors(call.target(*fresh, **kwargs))
                return [
                    as_traced(output, *layout)
                    for output, layout in zip(outputs, layouts, strict=False)
                ]

            return run

        try:
            prepare()()  # compiles, reserves, fills caches
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                f"{target_name(call.target)} cannot be timed on tensors of the types that torch "
                f"traces for it: {str(error).splitlines()[0]}; leave it outside of what is fitted"
            ) from error
        allocations = allocations_of(lambda: prepare()(), device)
        kept_bytes = allocations.kept_bytes
        if recurrent.frees_graph(call.target):  # which is allocated here, and freed by the run
            graph_bytes = allocations_of(prepare, device).kept_bytes
            kept_bytes = graph_bytes + sum(map(rounded_bytes, traced))
        step = ROUNDING.get(device.type, 1)
        workspace = max(allocations.peak_bytes - kept_bytes, 0)
        workspace = -(-workspace // step) * step
        if others is None:
            return Cost(1e6 * stopwatch(device)(prepare()), workspace)
        times = _times_us(prepare, device, others)
        quartile = len(times) // 4
        return Cost(times[len(times) // 2], workspace, times[-1 - quartile] - times[quartile])


def _accelerators(device: torch.device) -> list[torch.device]:
    return [] if device.type == "cpu" else [device]


def _example_of(capture: Capture, argument: Any, device: torch.device) -> Any:
    """Return a value for an argument of a call."""
    if isinstance(argument, Stored):
        example = _example(capture.example(argument.storage), device)
        fill = capture.fills.get(argument.storage)
        return example if fill is None else example.fill_(fill)
    if not isinstance(argument, Node):
        return argument
    value = argument.meta["val"]
    if _is_read_by_the_host(argument):  # nor is it where it is traced
        return torch.zeros(value.shape, dtype=value.dtype)
    return _example(value, device)


def _make_valid(target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Set pivots that an operator reads to 1, the first row, and masks of copied elements to none.

    Kernels refuse others.
    """
    operator = getattr(target, "target", target)  # of one that copies activations, too
    parameters = operator._schema.arguments if isinstance(operator, OpOverload) else ()
    for parameter, argument in zip(parameters, args, strict=False):
        if parameter.name in _PIVOTS:
            argument.fill_(1)
        elif parameter.name == "mask" and operator in _SCATTERED:
            argument.untyped_storage().fill_(0)  # which may be expanded


def _is_read_by_the_host(node: Node) -> bool:
    """Return whether a node is a seed or an offset that attention returns in the host's memory."""
    returned = source(node)
    if returned.target is not getitem:
        return False
    forward, index = returned.args
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
    return isinstance(forward, Node) and forward.target is efficient and index in (2, 3)


def _example(value: Any, device: torch.device) -> Any:
    """Return a tensor of the same geometry: floats from 0.5 to 1, zeros as indices.

    Such floats are probabilities, too, which kernels check.
    What is traced in the host's memory is made there, pinned.
    """
    if isinstance(value, list | tuple):
        return [_example(element, device) for element in value]
    if not isinstance(value, torch.Tensor):
        return value
    length = value.untyped_storage().nbytes() // value.dtype.itemsize
    flat = torch.zeros(length, dtype=value.dtype, device=device)
    if value.dtype.is_floating_point and value.dtype.itemsize > 1:
        flat.uniform_(0.5, 1.0)
    elif value.dtype.is_floating_point:  # types of 8 bits have no random numbers
        flat.fill_(0.75)
    elif value.dtype == torch.bool:
        flat.bernoulli_(0.5)
    if value.device.type == "cpu" != device.type:
        flat = flat.cpu().pin_memory()
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def _times_us(
    prepare: Callable[[], Callable[[], object]], device: torch.device, others: torch.Tensor
) -> list[float]:
    """Return the times of some runs, in order of size; on an accelerator those of its kernels.

    Before each run the device's cache is filled with other data, as within a step, where most
    operators find little of their operands there. Warm, those of ResNet-50 took a fifth less.

    Parameters
    ----------
    prepare : returns the run, ready to be timed.
    others : what the cache is filled with.
    """
    seconds = stopwatch(device)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < MIN_RUNS or (
        len(times) < MAX_RUNS and time.perf_counter() - begin < MEASURED_S
    ):
        run = prepare()
        others.zero_()
        times.append(seconds(run) * 1e6)
    return sorted(times)


def stopwatch(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """Return a function that runs another one and returns its seconds.

    On an accelerator these are between two events of its stream, on which other work goes before:
    kernels wait for their launch no longer than within a step.
    """
    if device.type != "cpu":
        runtime = torch.get_device_module(device)
        stream = runtime.current_stream(device)
        begin, end = (runtime.Event(enable_timing=True) for _ in range(2))

        def between_events(run: Callable[[], object]) -> float:
            begin.record(stream)
            run()
            end.record(stream)
            end.synchronize()
            return begin.elapsed_time(end) * 1e-3

        return between_events
    # of one thread the processor time, which other processes prolong little
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def on_cpu(run: Callable[[], object]) -> float:
        before = clock()
        run()
        return clock() - before

    return on_cpu


def _evicting_bytes(capture: Capture, device: torch.device) -> int:
    """Return the bytes that may lie between two operators of a step in the device's cache.

    All of it, or all that the step itself has, up to a power of two: a small step stays in a large
    cache, and to fill that between its operators would take longer than they do.
    """
    storages = sum(storage.nbytes for storage in capture.graph.storages)
    step_bytes = storages + sum(capture.graph.resident.values())
    return min(1 << step_bytes.bit_length(), _cache_bytes(device))


def _cache_bytes(device: torch.device) -> int:
    """Return the bytes of the last cache of a device."""
    if device.type != "cpu":
        properties = torch.get_device_module(device).get_device_properties(device)
        return int(getattr(properties, "L2_cache_size", 0)) or _CACHE_BYTES
    return last_level_cache_bytes() or _CACHE_BYTES


def _roofline_cost(capture: Capture, call: TracedCall, device: Roofline) -> Cost:
    read: list[torch.Tensor] = []
    args, kwargs = _mapped(capture, (call.args, dict(call.kwargs)), lambda value: value)
    map_aggregate((args, kwargs), lambda value: read.extend(_tensors(value)))
    created = [capture.example(storage) for storage in call.outputs]
    moved = sum(tensor.numel() * tensor.dtype.itemsize for tensor in (*read, *created))
    flops = _flops(capture, call, args, kwargs)
    seconds = max(flops / device.flops_per_s, moved / device.bytes_per_s)
    operands = {operand.storage for operand in call.args if isinstance(operand, Stored)}
    if hosted := capture.hosted & operands.union(call.outputs):
        transferred = sum(capture.example(storage).nbytes for storage in hosted)
        seconds += transferred / device.host_bytes_per_s
    return Cost(device.launch_us + seconds * 1e6, 0)


def _flops(capture: Capture, call: TracedCall, args: Any, kwargs: Any) -> float:
    """Return an ATen operator's flops by its formula, or those of the operators that we call."""
    if not isinstance(call.target, OpOverload):
        if (products := recurrent.flops(call.target, args)) is not None:
            return products
        if getattr(call.target, "__module__", "") not in _WITH_PRODUCTS:
            return 0.0  # loops over blocks of elements, which take minutes to trace
        mode = next(iter(capture.fx.nodes)).meta["val"].fake_mode
        count = FlopCounterMode(
            display=False, custom_mapping={torch.ops.aten.addmm_: _product_flops}
        )
        with suppress(DataDependentOutputException), mode, count:
            call.target(*args, **kwargs)
        return float(count.get_total_flops())
    formulas: Mapping[Any, Callable[..., float]] = flop_registry
    formula = formulas.get(call.target.overloadpacket)
    if formula is None or not call.outputs:
        return 0.0
    node = capture.bases[call.outputs[0]][0]
    return float(formula(*args, **kwargs, out_val=node.meta["val"]))


_WITH_PRODUCTS = {module.__name__ for module in (attention, convolution, copies, loss, products)}
"""Modules of the functions that call matrix products or convolutions."""


def _product_flops(_sum: torch.Size, a: torch.Size, b: torch.Size, **_options: Any) -> int:
    """Return the flops of ``addmm_``, for which torch has no formula; by shapes."""
    return 2 * a.numel() * b[1]


def _tensors(value: Any) -> list[torch.Tensor]:
    values: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    return [tensor for tensor in values if isinstance(tensor, torch.Tensor)]
