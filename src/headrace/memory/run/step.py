"""A captured training step as a function whose gradients autograd computes by a schedule."""

# pyright: reportPrivateUsage=false

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from torch import Tensor
from torch._functorch import config
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    ParamAOTInput,
    PlainAOTInput,
)
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from headrace.facades import offered_by
from headrace.memory.errors import ScheduleError
from headrace.memory.measure.accumulate import input_memory
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.losses import refusing_gradients
from headrace.memory.run.accumulate import AddedGradients
from headrace.memory.run.code import freeing_code
from headrace.memory.run.differentiation import refuse_backward_passes
from headrace.memory.run.graphs import scheduled_graphs
from headrace.memory.schedule import Schedule


def scheduled_step(capture: Capture, schedule: Schedule) -> "ScheduledStep":
    """Return a function of all parameters, all buffers and the model's arguments.

    Parameters and buffers are those of each module once; of the arguments only tensors count. It
    returns what the model does. Buffers that the model changes are changed at its end; autograd
    runs the backward pass of the schedule. Gradients that the capture accumulates are added to
    those of the latest call's parameters, and autograd gets none. A capture serves any number of
    schedules.

    Raises
    ------
    ScheduleError
        If the schedule reads what is not there.
    """
    if capture.joint is None:
        raise ScheduleError("the joint graph is torch.compile's: it runs what was partitioned")
    gradients = AddedGradients()
    graphs = scheduled_graphs(capture, schedule, gradients)
    state = capture.joint._aot_state
    metadata = copy(state.fw_metadata)  # it will hold what this schedule saves
    metadata.dynamic_saved_tensors_idxs = {}
    metadata.bw_donated_idxs = []
    joint = replace(capture.joint, _aot_state=replace(state, fw_metadata=metadata))
    with config.patch({"donated_buffer": False}):
        step = aot_compile_joint_with_descriptors(
            joint,
            partition_fn=lambda *_, **__: (graphs.forward, graphs.backward),
            fw_compiler=_compile,
            bw_compiler=_compile,
        )
    inputs = capture.fx.find_nodes(op="placeholder")
    places = _places(capture.joint, inputs)
    names = {
        position: (places[position], str(inputs[position].meta["desc"].target))
        for positions in capture.accumulated.values()
        for position in positions
    }
    if names:
        step = gradients.called(step, names)
    returned = {input_memory(node) for node in capture.forward_outputs if isinstance(node, Node)}
    unused = [
        position
        for position, node in enumerate(capture.gradients)
        if node is None and input_memory(inputs[position]) not in returned
    ]
    # Behind an input without a gradient, autograd runs the leaf's hooks, too, by which
    # DistributedDataParallel takes an unused parameter for a used one.
    step = _with_inputs(step, unused, places, _without_gradient)
    # Gradients of one parameter's inputs are added in the order of the inputs, but those of views
    # newest first.
    shared = _shared_inputs(capture, without=names)
    run = _with_inputs(step, shared, places, lambda tensor: tensor.view_as(tensor))
    return ScheduledStep(run, capture.beside_loss, graphs.outputs_read)


def _places(joint: JointWithDescriptors, inputs: Sequence[Node]) -> dict[int, int]:
    """Return the places of the graph's inputs among the step's arguments, by their positions.

    The graph has buffers that share memory, and are written into, as this memory, before all other
    inputs, and a tensor with several names once.
    """
    names = [*map(ParamAOTInput, joint.params_spec), *map(BufferAOTInput, joint.buffers_spec)]
    places: dict[Any, int] = {name: place for place, name in enumerate(names)}
    plain = [node.meta["desc"] for node in inputs if isinstance(node.meta["desc"], PlainAOTInput)]
    places |= {argument: len(names) + argument.idx for argument in plain}
    return {
        position: places[node.meta["desc"]]
        for position, node in enumerate(inputs)
        if node.meta["desc"] in places
    }


def _without_gradient(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _shared_inputs(capture: Capture, *, without: Container[int]) -> list[int]:
    """Return the inputs that are one parameter of three modules or more, by position.

    In the reverse order of their gradients. The order of two makes no difference to their sum.
    """
    inputs = capture.fx.find_nodes(op="placeholder")
    places = {node: place for place, node in enumerate(capture.fx.nodes)}
    gradients = {
        position: places[node]
        for position, node in enumerate(capture.gradients)
        if node is not None and position not in without
    }
    modules = Counter(input_memory(inputs[position]) for position in gradients)
    shared = [position for position in gradients if modules[input_memory(inputs[position])] > 2]
    return sorted(shared, key=lambda position: gradients[position], reverse=True)


def _with_inputs(
    step: Callable[..., Any],
    positions: Iterable[int],
    places: Mapping[int, int],
    replaced: Callable[[Tensor], Tensor],
) -> Callable[..., Any]:
    """Return the step with the inputs at some positions replaced, in the order of these."""
    changed = [places[position] for position in positions if position in places]
    if not changed:
        return step

    def run(*args: Any) -> Any:
        inputs = list(args)
        for place in changed:
            inputs[place] = replaced(args[place])
        return step(*inputs)

    return run


@offered_by("headrace.memory")
@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step that runs by a schedule. Copies are the step itself; it cannot be pickled.

    Attributes
    ----------
    run : of all tensors.
    beside_loss : places of outputs that take no gradients; see `headrace.memory.measure.losses`.
    outputs_read : places of outputs that the backward pass reads.
    """

    run: Callable[..., Any]
    beside_loss: frozenset[int] = frozenset()
    outputs_read: frozenset[int] = frozenset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass."""
        leaves = pytree.tree_leaves((args, kwargs))
        return self.of_tensors([leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def of_tensors(self, tensors: list[Tensor]) -> Any:
        """Run the forward pass on all tensors in one list."""
        outputs = refusing_gradients(self.run(*tensors), self.beside_loss)
        refuse_backward_passes(outputs, self.outputs_read)
        return outputs

    def __deepcopy__(self, _copied: Mapping[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a fitted module cannot be pickled: save its state_dict(), and fit the model again "
            "after loading it"
        )


def _compile(gm: GraphModule, example_inputs: Any) -> Callable[[list[Any]], list[Any]]:  # noqa: ARG001
    return freeing_code(gm)
