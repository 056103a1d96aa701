"""Attention written as products and a softmax, by a kernel that stores no probabilities.

`fuse_attentions` makes one node of ``bmm -> scale, mask -> softmax -> bmm`` and one of its backward
pass. Their default is the same calls, so the same bits, and the probabilities are stored. The
variants are the CPU's kernel: it stores the logarithm of each row's sum, computes probabilities
again block by block, and is faster. Attention with dropout stays as it is, as does attention whose
probabilities are read elsewhere. On a GPU nothing is fused.
"""

# pyright: reportPrivateUsage=false

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import Node

from headrace.memory.exactness import Exactness
from headrace.memory.operators.graphs import erase_dependents, insert_call, insert_elements
from headrace.memory.operators.variant import Intermediate, Offers, Variant, aten, fake, source

_by_kernel = partial(
    Variant,
    name="by kernel",
    exactness=Exactness.ROUNDED,
    note="probabilities are computed block by block",
)
_RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.expand.default,
)
_SCALES = {
    aten.mul.Scalar: 1,
    aten.mul.Tensor: 1,
    aten.div.Scalar: -1,
    aten.div.Tensor: -1,
}
"""Exponents of the constant that an operator multiplies with."""
_FILLS = (aten.masked_fill.Scalar,)
_ADDS = (aten.add.Tensor,)
_LINKS = {str(each): each for each in (*_RESHAPES, *_SCALES, *_FILLS, *_ADDS)}
_kernel = aten._scaled_dot_product_flash_attention_for_cpu.default
_kernel_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls in order: name of the operator, arguments after the value; None is the mask."""

    calls: tuple[tuple[str, tuple[Any, ...]], ...]

    def __call__(self, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the value after all calls."""
        for name, args in self.calls:
            value = _LINKS[name](
                value, *(mask if argument is None else argument for argument in args)
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductOptions:
    """Constants of an attention.

    Attributes
    ----------
    scores, gradients : of the first product's result before the softmax, and of the softmax's
        gradient before the products of the backward pass.
    safe : whether the softmax of a row that is masked whole is 0.
    heads : batch and heads, whose product is the batch of the products.
    scale : of the first product, of all that `scores` does.
    """

    scores: Chain
    gradients: Chain
    safe: bool
    heads: tuple[int, int]
    scale: float


def attention_by_products(
    query: Tensor, key_t: Tensor, value: Tensor, mask: Tensor | None, options: ProductOptions
) -> tuple[Tensor, Tensor]:
    """Return the attention, and its probabilities as the softmax returns them.

    Parameters
    ----------
    query, value : (batch, queries or keys, channels).
    key_t : (batch, channels, keys).
    mask : what `options.scores` reads beside the product, or None.
    """
    scores = options.scores(aten.bmm.default(query, key_t), mask)
    if options.safe:
        probabilities = aten._safe_softmax.default(scores, -1)
    else:
        probabilities = aten._softmax.default(scores, -1, False)
    del scores
    rows = probabilities.reshape(query.shape[0], query.shape[1], key_t.shape[2])
    return aten.bmm.default(rows, value), probabilities


def attention_backward_by_products(
    grad: Tensor,
    query: Tensor,
    key_t: Tensor,
    value: Tensor,
    probabilities: Tensor,
    mask: Tensor | None,
    options: ProductOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, transposed key and value."""
    rows = probabilities.reshape(query.shape[0], query.shape[1], key_t.shape[2])
    of_value = aten.bmm.default(rows.transpose(1, 2), grad)
    of_scores = aten.bmm.default(grad, value.transpose(1, 2)).view(probabilities.shape)
    of_scores = aten._softmax_backward_data.default(
        of_scores, probabilities, -1, probabilities.dtype
    )
    of_scores = options.gradients(of_scores, mask)
    of_key = aten.bmm.default(query.transpose(1, 2), of_scores)
    return aten.bmm.default(of_scores, key_t.transpose(1, 2)), of_key, of_value


def attention_by_kernel(
    query: Tensor, key_t: Tensor, value: Tensor, mask: Tensor | None, options: ProductOptions
) -> tuple[Tensor, Tensor]:
    """Return the attention, and the logarithm of each row's sum (batch, queries)."""
    inputs, added = _kernel_inputs(query, key_t, value, mask, options)
    out, sums = _kernel(*inputs, 0.0, False, attn_mask=added, scale=options.scale)
    out = out.reshape(*query.shape[:2], value.shape[2])
    return out, sums.reshape(query.shape[:2]).contiguous()


def attention_backward_by_kernel(
    grad: Tensor,
    query: Tensor,
    key_t: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    mask: Tensor | None,
    options: ProductOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, transposed key and value."""
    inputs, added = _kernel_inputs(query, key_t, value, mask, options)
    shape = inputs[0].shape[:2]
    gradients = _kernel_backward(
        grad.reshape(*shape, *grad.shape[1:]),
        *inputs,
        out.reshape(*shape, *out.shape[1:]),
        sums.reshape(*shape, -1).transpose(1, 2).contiguous().transpose(1, 2),
        0.0,
        False,
        attn_mask=added,
        scale=options.scale,
    )
    of_query, of_key, of_value = (each.reshape(-1, *each.shape[2:]) for each in gradients)
    return of_query.contiguous(), of_key.transpose(1, 2).contiguous(), of_value.contiguous()


def _kernel_inputs(
    query: Tensor, key_t: Tensor, value: Tensor, mask: Tensor | None, options: ProductOptions
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Return query, key and value (batch, heads, rows, channels), and the mask to be added.

    Heads are part of the batch unless the mask tells them apart: the kernel's layout is then that
    of the products.
    """
    apart = mask is not None and any(each != 1 for each in mask.shape[:-2])
    shape = options.heads if apart else (query.shape[0], 1)
    inputs = tuple(
        each.reshape(*shape, *each.shape[1:]) for each in (query, key_t.transpose(1, 2), value)
    )
    # the kernel reads a query of another stride wrongly (torch 2.15), and some versions a key
    inputs = tuple(each if each.stride(-1) == 1 else each.contiguous() for each in inputs)
    if mask is None:
        return cast(Any, inputs), None
    if mask.dtype == torch.bool:  # of what does not count
        mask = query.new_zeros(mask.shape).masked_fill_(mask, float("-inf"))
    mask = mask.to(query.dtype)  # the kernel takes no integers
    if mask.dim() == 3 and options.heads[1] == 1:
        mask = mask.unsqueeze(1)  # its first dimension is the batch's
    full_shape = (*shape, query.shape[1], key_t.shape[2])
    return cast(Any, inputs), mask.reshape((1,) * (4 - mask.dim()) + mask.shape).expand(full_shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """Nodes of an attention in a joint graph.

    Attributes
    ----------
    product : of queries and keys; `softmax` and `out` follow.
    first : the first node of its backward pass.
    grad : of `out`.
    gradients : of query, transposed key and value.
    """

    product: Node
    softmax: Node
    out: Node
    first: Node
    grad: Node
    gradients: tuple[Node, Node, Node]
    mask: Node | None
    options: ProductOptions


def fuse_attentions(graph: FxGraph) -> int:
    """Make two nodes of every attention that is written as products; return how many."""
    patterns = [
        pattern
        for target in (aten._softmax.default, aten._safe_softmax.default)
        for node in graph.find_nodes(op="call_function", target=target)
        if (pattern := _matched(node)) is not None
    ]
    for pattern in patterns:
        _fuse(graph, pattern)
    return len(patterns)


def _matched(softmax: Node) -> _Pattern | None:
    value = fake(softmax)
    if value.device.type != "cpu" or softmax.args[1] not in (-1, value.dim() - 1):
        return None
    if value.dtype != fake(cast(Node, softmax.args[0])).dtype or value.dim() not in (3, 4):
        return None
    before = _before(softmax)
    rows = _through_views(softmax)
    backward = _only_backward(softmax)
    if before is None or rows is None or backward is None:
        return None
    product, scores, mask = before
    if not _has_rows_of(product, softmax, mask):
        return None
    outs = [use for use in rows.users if use.target is aten.bmm.default and use.args[0] is rows]
    after = _after(backward, mask)
    of_value = _of_transposed(rows)
    if len(outs) != 1 or after is None or of_value is None or len(rows.users) != 2:
        return None
    chain, of_scores = after
    grads = _gradients(product, of_scores, outs[0], of_value, backward)
    scale = _scale(scores, mask)
    if grads is None or scale is None:
        return None
    heads = value.shape[:2] if value.dim() == 4 else (value.shape[0], 1)
    return _Pattern(
        product=product,
        softmax=softmax,
        out=outs[0],
        first=min((of_value, cast(Node, _product_before(backward))), key=_places(softmax)),
        grad=cast(Node, of_value.args[1]),
        gradients=(*grads, of_value),
        mask=mask,
        options=ProductOptions(
            scores=scores,
            gradients=chain,
            safe=softmax.target is aten._safe_softmax.default,
            heads=cast(Any, tuple(heads)),
            scale=scale,
        ),
    )


def _places(first: Node) -> Any:
    order = {node: index for index, node in enumerate(first.graph.nodes)}
    return order.__getitem__


def _call(node: Node, mask: Node | None) -> tuple[tuple[str, tuple[Any, ...]], Node | None] | None:
    """Return a node as a link of a chain, and the mask; None if it is none."""
    if node.target not in (*_RESHAPES, *_SCALES, *_FILLS, *_ADDS) or node.kwargs:
        return None
    value, *args = node.args
    if not isinstance(value, Node):
        return None
    for place, operand in enumerate(args):
        if isinstance(operand, Node):
            if (mask is not None and operand is not mask) or node.target in _SCALES:
                return None
            mask, args[place] = operand, None
    return (str(node.target), tuple(args)), mask


def _before(softmax: Node) -> tuple[Node, Chain, Node | None] | None:
    """Return the product of queries and keys, and what is between it and the softmax."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    mask: Node | None = None
    node = cast(Node, softmax.args[0])
    while node.target is not aten.bmm.default:
        link = _call(node, mask)
        if link is None or len(node.users) != 1:
            return None
        call, mask = link
        calls.append(call)
        node = cast(Node, node.args[0])
    return (node, Chain(tuple(reversed(calls))), mask) if len(node.users) == 1 else None


def _has_rows_of(product: Node, softmax: Node, mask: Node | None) -> bool:
    """Return whether the softmax's rows are the product's, and the mask is added to these."""
    rows, shape = fake(product).shape, fake(softmax).shape
    if mask is None:
        return rows[-1] == shape[-1]
    node = cast(Node, softmax.args[0])
    while mask not in node.args:
        node = cast(Node, node.args[0])
    return rows[-2:] == shape[-2:] and fake(node).shape == shape


def _through_views(softmax: Node) -> Node | None:
    """Return the probabilities as the second product reads them."""
    aliases = (aten.detach.default, aten.alias.default)
    node = softmax
    while True:
        users = [use for use in node.users if use.target not in aliases]
        if len(users) != 1 or users[0].target not in _RESHAPES:
            return node if node.target in _RESHAPES or len(users) == 2 else None
        if fake(users[0]).numel() != fake(node).numel():
            return None
        node = users[0]


def _only_backward(softmax: Node) -> Node | None:
    """Return the softmax's gradient, where it alone reads the probabilities beside the product."""
    gradients: list[Node] = []
    waiting = [use for use in softmax.users if use.target in (aten.detach.default,)]
    while waiting:
        node = waiting.pop()
        if node.target is aten.detach.default:
            waiting += node.users
        elif node.target is aten._softmax_backward_data.default:
            gradients.append(node)
        else:
            return None
    gradients = list(dict.fromkeys(gradients))
    return gradients[0] if len(gradients) == 1 and source(gradients[0].args[1]) is softmax else None


def _after(backward: Node, mask: Node | None) -> tuple[Chain, Node] | None:
    """Return the calls between the softmax's gradient and the last products, and their output."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    node = backward
    while len(node.users) == 1:
        (node,) = node.users
        link = _call(node, mask)
        if link is None or link[1] is not mask or node.target in _ADDS:
            return None
        calls.append(link[0])
    return Chain(tuple(calls)), node


def _of_transposed(node: Node) -> Node | None:
    """Return the product of a node's transpose with another one."""
    for use in node.users:
        if use.target is aten.transpose.int and len(use.users) == 1:
            (product,) = use.users
            if product.target is aten.bmm.default and product.args[0] is use:
                return product
    return None


def _product_before(backward: Node) -> Node | None:
    """Return the product of the output's gradient and the transposed value."""
    node = cast(Node, backward.args[0])
    while node.target in _RESHAPES and len(node.users) == 1:
        node = cast(Node, node.args[0])
    return node if node.target is aten.bmm.default and len(node.users) == 1 else None


def _gradients(
    product: Node, of_scores: Node, out: Node, of_value: Node, backward: Node
) -> tuple[Node, Node] | None:
    """Return the gradients of query and transposed key, if all products are as expected."""
    query, key_t = product.args
    before = _product_before(backward)
    if before is None or before.args[0] is not of_value.args[1]:
        return None
    if not _is_transpose(before.args[1], out.args[1]) or len(of_scores.users) != 2:
        return None
    uses = list(of_scores.users)
    of_query = [e for e in uses if e.args[0] is of_scores and _is_transpose(e.args[1], key_t)]
    of_key = [e for e in uses if e.args[1] is of_scores and _is_transpose(e.args[0], query)]
    if len(of_query) != 1 or len(of_key) != 1:
        return None
    if any(use.target is not aten.bmm.default for use in uses):
        return None
    return of_query[0], of_key[0]


def _is_transpose(node: Any, of: Any) -> bool:
    return isinstance(node, Node) and node.target is aten.transpose.int and node.args == (of, 1, 2)


def _scale(scores: Chain, mask: Node | None) -> float | None:
    """Return the scale of the products; None if the kernel cannot compute the chain."""
    scale, masked = 1.0, False
    for name, args in scores.calls:
        target = _LINKS[name]
        if target in _SCALES:
            if masked and mask is not None and fake(mask).dtype != torch.bool:
                return None
            scale *= cast(float, args[0]) ** _SCALES[target]
        elif target in (*_FILLS, *_ADDS):
            is_fill = target in _FILLS
            if masked or args[0] is not None or (is_fill and args[1] != float("-inf")):
                return None
            if mask is None or (fake(mask).dtype == torch.bool) is not is_fill:
                return None
            masked = True
    return scale if (masked or mask is None) and scale > 0 else None


def _fuse(graph: FxGraph, pattern: _Pattern) -> None:
    operands = (*pattern.product.args, pattern.out.args[1])
    mask, options = pattern.mask, pattern.options
    values = (fake(pattern.out), fake(pattern.softmax))
    args = (*operands, mask, options)
    forward = insert_call(graph, pattern.out, attention_by_products, args, values)
    out, probabilities = insert_elements(graph, pattern.out, forward)
    args = (pattern.grad, *operands, probabilities, mask, options)
    values = tuple(map(fake, pattern.gradients))
    backward = insert_call(graph, pattern.first, attention_backward_by_products, args, values)
    gradients = insert_elements(graph, pattern.first, backward)
    for old, new in zip((pattern.out, *pattern.gradients), (out, *gradients), strict=True):
        old.replace_all_uses_with(new)
    erase_dependents(graph, pattern.product)


def _sums(node: Node) -> Intermediate:
    query = fake(cast(Node, node.args[0]))
    wide = torch.promote_types(query.dtype, torch.float32)
    sums = query.new_empty(query.shape[:2], dtype=wide)
    return Intermediate(node=node, name="sums", value=sums)


def _is_same_width(node: Node) -> bool:
    query, value = (fake(cast(Node, node.args[index])) for index in (0, 2))
    return query.shape[2] == value.shape[2]


def _forward(node: Node) -> list[Variant]:
    if not _is_same_width(node):
        return []
    creates = (0, _sums(node))
    return [_by_kernel(target=attention_by_kernel, args=node.args, creates=creates)]


def _backward(node: Node) -> list[Variant]:
    *operands, probabilities, mask, options = node.args
    forward = cast(Node, cast(Node, probabilities).args[0])
    out = next((use for use in forward.users if use.args[1] == 0), None)
    if out is None or not _is_same_width(forward):
        return []
    args = (*operands, out, _sums(forward), mask, options)
    return [_by_kernel(target=attention_backward_by_kernel, args=args, creates=(0, 1, 2))]


OFFERS: dict[Any, Offers] = {
    attention_by_products: _forward,
    attention_backward_by_products: _backward,
}
