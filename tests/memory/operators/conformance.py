"""Every variant of a model's joint graph against the default: one suite for all operators."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.descriptors import TangentAOTInput
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from headrace.memory.exactness import Exactness
from headrace.memory.operators import Intermediate, Variant, variants

Chosen = dict[Node, Variant]


def joint_graph(model: nn.Module, *inputs: Tensor) -> GraphModule:
    """Return the joint graph of a training step."""
    with ExitStack() as stack:
        return aot_export_joint_with_descriptors(stack, model, inputs).graph_module


class Step:
    """A training step on fixed values, run with chosen variants.

    Parameters
    ----------
    rewrite : changes the joint graph before variants are found.
    poison : whether gradients have NaN and infinity in them.
    """

    def __init__(
        self,
        model: nn.Module,
        *inputs: Tensor,
        rewrite: Callable[[GraphModule], object] = lambda _: None,
        poison: bool = False,
        exactness: Exactness = Exactness.ROUNDED,
    ) -> None:
        self.module = joint_graph(model, *inputs)
        rewrite(self.module)
        self.graph = self.module.graph
        self.module.graph.lint()
        torch.manual_seed(5)
        tied = [each for _, each in model.named_parameters(remove_duplicate=False)]
        values = [*tied, *model.buffers(), *inputs]
        self.values: dict[Node, Tensor] = {}
        primals = iter(values)
        for node in self.graph.find_nodes(op="placeholder"):
            if isinstance(node.meta["desc"], TangentAOTInput):
                value = torch.randn(node.meta["val"].shape, device=inputs[0].device)
                if poison and value.numel() > 2:
                    value.view(-1)[0] = float("nan")
                    value.view(-1)[1] = float("inf")
                self.values[node] = _laid_out(value, node.meta["val"])
            else:
                self.values[node] = next(primals).detach()
        self.variants = variants(self.graph, exactness)
        self.expected = self.run({})

    def run(self, chosen: Chosen) -> list[Tensor | None]:
        """Return outputs and gradients; overwriting happens on copies of all that is read."""
        torch.manual_seed(0)
        values: dict[Any, Any] = {node: value.clone() for node, value in self.values.items()}
        for node in self.graph.nodes:
            if node.op == "get_attr":
                values[node] = getattr(self.module, node.target)
            elif node.op == "call_function":
                self._run_node(node, values, chosen)
        outputs: Any = self.graph.output_node().args[0]
        return [values[each] if isinstance(each, Node) else None for each in outputs]

    def _run_node(self, node: Node, values: dict[Any, Any], chosen: Chosen) -> None:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        variant = chosen.get(node)
        if variant is None:
            values[node] = node.target(*args, **kwargs)  # pyright: ignore
            return
        read = {each: values[each] for each in variant.reads}
        if variant.overwrites is not None:
            read[variant.overwrites] = copy(read[variant.overwrites])
        made = variant.target(*_filled(variant.args, read))
        single = isinstance(node.meta["val"], torch.Tensor) and len(variant.creates) == 1
        made = (made,) if single else made
        assert len(made) == len(variant.creates), variant.name
        self._check(node, variant, read, made)
        if isinstance(node.meta["val"], torch.Tensor):
            values[node] = made[variant.creates.index(0)]
        else:
            values[node] = [None] * len(node.meta["val"])
        for creation, value in zip(variant.creates, made, strict=True):
            if isinstance(creation, Intermediate):
                values[creation] = value
            elif isinstance(values[node], list):
                values[node][creation] = value

    def _check(self, node: Node, variant: Variant, read: Any, made: tuple[Any, ...]) -> None:
        val = node.meta["val"]
        for creation, value in zip(variant.creates, made, strict=True):
            if isinstance(creation, Intermediate):
                traced = creation.value
            else:
                traced = val if isinstance(val, torch.Tensor) else val[creation]
            found = (value.shape, value.dtype, value.stride())
            assert found == (traced.shape, traced.dtype, traced.stride()), (variant.name, creation)
            assert value.untyped_storage().nbytes() == traced.untyped_storage().nbytes()
        pointers = [each.untyped_storage().data_ptr() for each in made if each.numel()]
        assert len(set(pointers)) == len(pointers), "results share a storage"
        for each, value in read.items():
            shared = value.numel() > 0 and value.untyped_storage().data_ptr() in pointers[:1]
            assert not shared or each is variant.overwrites, variant.name
            assert not value.numel() or value.untyped_storage().data_ptr() not in pointers[1:]


def copy(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides."""
    return _laid_out(tensor, tensor)


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=tensor.device)
    return made.copy_(tensor)


def _filled(value: Any, values: dict[Any, Any]) -> Any:
    if isinstance(value, Node | Intermediate):
        return values[value]
    if isinstance(value, list | tuple):
        return type(value)(_filled(each, values) for each in value)
    return value


def combinations(step: Step) -> list[tuple[str, Chosen]]:
    """Return every variant once, with variants that create or read its intermediates."""
    creators: dict[Intermediate, tuple[Node, Variant]] = {}
    readers: dict[Intermediate, tuple[Node, Variant]] = {}
    every = [(node, each) for node, offered in step.variants.items() for each in offered]
    for node, variant in every:
        creators.update(dict.fromkeys(_intermediates(variant.creates), (node, variant)))
        readers.update(dict.fromkeys(_intermediates(variant.reads), (node, variant)))
    found: list[tuple[str, Chosen]] = []
    for node, variant in every:
        chosen: Chosen = {node: variant, **_without_absent(step, node, variant)}
        chosen.update(readers[each] for each in _intermediates(variant.creates))
        chosen.update(creators[each] for each in _intermediates(variant.reads))
        found.append((f"{node.name} {variant.name}", chosen))
    return found


def _without_absent(step: Step, node: Node, variant: Variant) -> Chosen:
    """Return variants, of the readers of outputs that a variant does not create, that read none."""
    val = node.meta["val"]
    if isinstance(val, torch.Tensor):
        return {}
    absent = [use for use in node.users if use.args[1] not in variant.creates]
    return {
        reader: way
        for element in absent
        for reader in element.users
        for way in step.variants[reader]
        if element not in way.reads and not _intermediates(way.reads)
    }


def _intermediates(values: Any) -> list[Intermediate]:
    return [each for each in values if isinstance(each, Intermediate)]


def check(
    model: nn.Module, *inputs: Tensor, rounding: float = 1e-5, **options: Any
) -> Counter[str]:
    """Compare every variant of a step with the default; return the variants' names.

    Parameters
    ----------
    rounding : relative to the largest element of a result, for variants that are not exact.
    """
    step = Step(model, *inputs, **options)
    for name, chosen in combinations(step):
        exact = all(each.exactness is Exactness.EXACT for each in chosen.values())
        for found, expected in zip(step.run(chosen), step.expected, strict=True):
            if expected is None:
                assert found is None
            else:
                assert found is not None
                _compare(name, found, expected, 0.0 if exact else rounding)
    return Counter(each.name for offered in step.variants.values() for each in offered)


def _compare(name: str, found: Tensor, expected: Tensor, rounding: float) -> None:
    assert found.shape == expected.shape, name
    assert torch.equal(found.isnan(), expected.isnan()), name
    one, other = (each.masked_fill(each.isnan(), 0.0) for each in (found, expected))
    if rounding == 0.0:
        assert torch.equal(one, other), name
        assert torch.equal(one.signbit(), other.signbit()), name
        return
    scale = other.abs().max().item() if other.numel() else 1.0
    torch.testing.assert_close(one, other, rtol=rounding, atol=rounding * scale, msg=name)
