"""Cross entropy of a linear layer over a large vocabulary, in chunks of rows (4.5.2).

The logits of a language model are its largest tensors: rows * vocabulary. `fuse_losses` makes one
node of the pattern ``mm | addmm -> log_softmax -> nll_loss_forward`` and one of its backward pass.
Their default is the same calls, so the same bits. Variants never have all logits at once:

- ``in n chunks`` computes them chunk by chunk, and again in the backward pass (one product more);
- ``with gradients in n chunks`` computes gradients in the forward pass, of a loss whose gradient is
  1; the backward pass multiplies them by what it is.

At most two chunks of logits are live at a time. Rounding: the loss is summed chunk by chunk in
float32 or wider, the weight's gradient is accumulated chunk by chunk in its own type.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import Node

from headrace.memory.exactness import Exactness
from headrace.memory.operators.graphs import erase_dependents, insert_call, insert_elements
from headrace.memory.operators.variant import (
    Intermediate,
    Offers,
    Variant,
    argument,
    aten,
    fake,
    source,
)

CHUNKS = (4, 16)
"""Numbers of chunks that are offered, where there are so many rows."""
_rounded = partial(
    Variant,
    exactness=Exactness.ROUNDED,
    note="sums over chunks of rows: loss and gradients differ by rounding",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Constants of a loss.

    Attributes
    ----------
    reduction : 1 is the mean, 2 the sum.
    ignored : target of rows that do not count.
    dtype : of the logits before the softmax, where it is not that of their product.
    """

    reduction: int
    ignored: int
    dtype: torch.dtype | None


Operands = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None, Options]
"""Operands of a loss, in the order of the attributes of `_Rows`."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Operands of a chunk, or of all rows.

    Attributes
    ----------
    hidden : (rows, width).
    weight_t : (width, vocabulary).
    bias : (vocabulary), or None.
    target : (rows), indices in the vocabulary.
    weights : (vocabulary), of classes in the loss, or None.
    """

    hidden: Tensor
    weight_t: Tensor
    bias: Tensor | None
    target: Tensor
    weights: Tensor | None
    options: Options

    def log_probabilities(self) -> Tensor:
        if self.bias is None:
            logits = torch.mm(self.hidden, self.weight_t)
        else:
            logits = torch.addmm(self.bias, self.hidden, self.weight_t)
        if self.options.dtype is not None:
            logits = logits.to(self.options.dtype)
        return aten._log_softmax.default(logits, 1, False)

    def loss(self, log_probabilities: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
        return aten.nll_loss_forward.default(
            log_probabilities, self.target, self.weights, reduction, self.options.ignored
        )

    def chunks(self, count: int) -> Iterator[tuple[slice, "_Rows"]]:
        rows = self.hidden.shape[0]
        step = max(-(-rows // count), 1)
        for begin in range(0, rows, step):
            part = slice(begin, min(begin + step, rows))
            yield part, replace(self, hidden=self.hidden[part], target=self.target[part])

    def row_weights(self, dtype: torch.dtype) -> Tensor:
        """Return each row's weight in the loss; 0 if it is ignored."""
        counted = self.target != self.options.ignored
        if self.weights is None:
            return counted.to(dtype)
        class_weights = self.weights[self.target.masked_fill(~counted, 0)]
        return torch.where(counted, class_weights.to(dtype), 0)

    def logit_gradients(self, log_probabilities: Tensor, scale: Tensor) -> Tensor:
        """Overwrite log probabilities with gradients of logits: ``(p - onehot) * scale``."""
        counted = self.target != self.options.ignored
        gradients = log_probabilities.exp_()
        columns = self.target.masked_fill(~counted, 0)[:, None]
        gradients.scatter_add_(1, columns, gradients.new_full((1, 1), -1.0).expand(columns.shape))
        gradients.mul_(scale[:, None])
        return gradients.to(self.hidden.dtype)


class _Sums:
    """Gradients of weight, hidden and bias, accumulated over chunks."""

    def __init__(self, rows: _Rows, output_mask: tuple[bool, bool, bool]) -> None:
        self.rows = rows
        width, vocabulary = rows.weight_t.shape
        hidden = rows.hidden
        self.weight = hidden.new_zeros((vocabulary, width)) if output_mask[0] else None
        self.hidden = hidden.new_empty(hidden.shape) if output_mask[1] else None
        self.bias = hidden.new_zeros((1, vocabulary)) if output_mask[2] else None

    def add(self, part: slice, grad: Tensor) -> None:
        if self.weight is not None:
            self.weight.addmm_(grad.t(), self.rows.hidden[part])
        if self.hidden is not None:
            torch.mm(grad, self.rows.weight_t.t(), out=self.hidden[part])
        if self.bias is not None:
            self.bias.add_(grad.sum(0, keepdim=True))

    def gradients(self) -> tuple[Tensor, ...]:
        return tuple(
            gradient for gradient in (self.weight, self.hidden, self.bias) if gradient is not None
        )


def linear_cross_entropy(operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, sum of the rows' weights, and log probabilities (rows, vocabulary)."""
    rows = _Rows(*operands)
    log_probabilities = rows.log_probabilities()
    loss, total = rows.loss(log_probabilities, rows.options.reduction)
    return loss, total, log_probabilities


def linear_cross_entropy_backward(
    grad: Tensor,
    log_probabilities: Tensor,
    total: Tensor,
    operands: Operands,
    output_mask: tuple[bool, bool, bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of weight (vocabulary, width), hidden and bias (1, vocabulary).

    Parameters
    ----------
    grad : of the loss.
    output_mask : which of the three.
    """
    hidden, weight_t, _, target, weights, options = operands
    of_logits = aten.nll_loss_backward.default(
        grad, log_probabilities, target, weights, options.reduction, options.ignored, total
    )
    of_logits = aten._log_softmax_backward_data.default(
        of_logits, log_probabilities, 1, log_probabilities.dtype
    ).to(hidden.dtype)
    gradients: list[Tensor] = []
    if output_mask[0]:
        gradients.append(torch.mm(of_logits.t(), hidden))
    if output_mask[1]:
        gradients.append(torch.mm(of_logits, weight_t.t()))
    if output_mask[2]:
        gradients.append(of_logits.sum(0, keepdim=True))
    return tuple(gradients)


def linear_cross_entropy_in_chunks(operands: Operands, chunks: int) -> tuple[Tensor, Tensor]:
    """Return loss and sum of the rows' weights."""
    rows = _Rows(*operands)
    losses: list[Tensor] = []
    for _, chunk in rows.chunks(chunks):
        losses.append(chunk.loss(chunk.log_probabilities(), 2)[0])
    return _reduced(losses, rows)


def linear_cross_entropy_backward_in_chunks(
    grad: Tensor,
    total: Tensor,
    operands: Operands,
    output_mask: tuple[bool, bool, bool],
    chunks: int,
) -> tuple[Tensor, ...]:
    """Return the gradients of weight, hidden and bias; logits are computed again."""
    rows = _Rows(*operands)
    return _gradients(
        rows, grad / total if rows.options.reduction == 1 else grad, output_mask, chunks
    )


def linear_cross_entropy_with_gradients(
    operands: Operands, output_mask: tuple[bool, bool, bool], chunks: int
) -> tuple[Tensor, ...]:
    """Return loss, sum of the rows' weights, and gradients for a gradient of the loss of 1."""
    rows = _Rows(*operands)
    dtype = rows.options.dtype or rows.hidden.dtype
    scale = torch.ones((), dtype=dtype, device=rows.hidden.device)
    if rows.options.reduction == 1:
        scale = scale / rows.row_weights(dtype).sum()
    losses: list[Tensor] = []
    gradients = _gradients(rows, scale, output_mask, chunks, losses)
    return *_reduced(losses, rows), *gradients


def scaled_gradients(grad: Tensor, first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Overwrite the first gradient with its product with `grad`; return it and the others'."""
    return first.mul_(grad), *(gradient * grad for gradient in others)


def _gradients(
    rows: _Rows,
    scale: Tensor,
    output_mask: tuple[bool, bool, bool],
    chunks: int,
    losses: list[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    sums = _Sums(rows, output_mask)
    for part, chunk in rows.chunks(chunks):
        log_probabilities = chunk.log_probabilities()
        if losses is not None:
            losses.append(chunk.loss(log_probabilities, 2)[0])
        weights = chunk.row_weights(log_probabilities.dtype)
        row_scale = torch.where(weights == 0, 0, weights * scale)  # 0 where no row counts
        sums.add(part, chunk.logit_gradients(log_probabilities, row_scale))
        del log_probabilities
    return sums.gradients()


def _reduced(losses: list[Tensor], rows: _Rows) -> tuple[Tensor, Tensor]:
    dtype = rows.options.dtype or rows.hidden.dtype
    wide = torch.promote_types(dtype, torch.float32)
    total = rows.row_weights(wide).sum()
    loss = torch.zeros((), dtype=wide, device=rows.hidden.device)
    for chunk_loss in losses:
        loss = loss + chunk_loss.to(wide)
    if rows.options.reduction == 1:
        loss = loss / total
    return loss.to(dtype), total.to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """Nodes of a loss in a joint graph.

    Attributes
    ----------
    product : ``mm`` or ``addmm``.
    gradients : of weight, hidden and bias, or None.
    """

    product: Node
    softmax: Node
    loss: Node
    loss_backward: Node
    gradients: tuple[Node | None, Node | None, Node | None]
    options: Options

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        """Nodes of hidden, transposed weight, and bias or None."""
        if self.product.target is aten.mm.default:
            return *self.product.args, None  # pyright: ignore[reportReturnType]
        bias, hidden, weight_t = self.product.args
        return hidden, weight_t, bias


_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def fuse_losses(graph: FxGraph) -> int:
    """Make two nodes of every loss of a linear layer in a joint graph; return how many."""
    patterns = [
        pattern
        for node in graph.find_nodes(op="call_function", target=aten.nll_loss_forward.default)
        if (pattern := _matched(node)) is not None
    ]
    for pattern in patterns:
        _fuse(graph, pattern)
    return len(patterns)


def _matched(loss: Node) -> _Pattern | None:
    softmax = cast(Node, loss.args[0])
    reduction = argument(loss, "reduction")
    if softmax.target is not aten._log_softmax.default or reduction not in (1, 2):
        return None
    product, dtype = _product_of(softmax)
    backward = [u for u in softmax.users if u.target is aten.nll_loss_backward.default]
    if product is None or len(backward) != 1 or not _read_only_by_backward(softmax, loss):
        return None
    gradients = _gradients_of(backward[0], product)
    if gradients is None:
        return None
    return _Pattern(
        product=product,
        softmax=softmax,
        loss=loss,
        loss_backward=backward[0],
        gradients=gradients,
        options=Options(reduction, argument(loss, "ignore_index"), dtype),
    )


def _product_of(softmax: Node) -> tuple[Node | None, torch.dtype | None]:
    """Return the product whose rows the softmax normalizes, and the type that it converts to."""
    if softmax.args[1] not in (1, -1) or softmax.args[2] or fake(softmax).dim() != 2:
        return None, None
    dtype = None
    node = cast(Node, softmax.args[0])
    while len(node.users) == 1:
        if node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs:
            same = fake(node).shape == fake(softmax).shape
            return (node if same else None), dtype
        if _is_conversion(node) and dtype is None:
            dtype = cast(torch.dtype, node.kwargs["dtype"])
        elif node.target not in _RESHAPES:
            break
        node = cast(Node, node.args[0])
    return None, None


def _is_conversion(node: Node) -> bool:
    """Return whether a node changes the type and nothing else."""
    if node.target is not aten._to_copy.default or "dtype" not in node.kwargs:
        return False
    options = {"dtype", "layout", "device"}
    before = fake(cast(Node, node.args[0]))
    return options.issuperset(node.kwargs) and before.device == fake(node).device


def _read_only_by_backward(softmax: Node, loss: Node) -> bool:
    """Return whether log probabilities have no reader beside the loss and its backward pass."""
    waiting = list(softmax.users)
    while waiting:
        node = waiting.pop()
        if node.target in (aten.detach.default, aten.alias.default):
            waiting.extend(node.users)
        elif node is not loss and node.target not in (
            aten.nll_loss_backward.default,
            aten._log_softmax_backward_data.default,
        ):
            return False
    return True


def _gradients_of(
    backward: Node, product: Node
) -> tuple[Node | None, Node | None, Node | None] | None:
    """Return the nodes of the gradients of weight, hidden and bias, or None if there are others."""
    users = list(backward.users)
    if len(users) != 1 or users[0].target is not aten._log_softmax_backward_data.default:
        return None
    node = users[0]
    while len(node.users) == 1:
        (user,) = node.users
        if user.target not in _RESHAPES and not _is_conversion(user):
            break
        node = user
    if fake(node).shape != fake(product).shape or fake(node).dtype != fake(product).dtype:
        return None
    hidden = product.args[-2]
    gradients: dict[str, Node] = {}
    for user in node.users:
        kind, gradient = _gradient(user, node, hidden)
        if kind is None or gradient is None or kind in gradients:
            return None
        gradients[kind] = gradient
    return gradients.get("weight"), gradients.get("hidden"), gradients.get("bias")


def _gradient(user: Node, of_logits: Node, hidden: Any) -> tuple[str | None, Node | None]:
    if user.target is aten.mm.default and user.args[0] is of_logits:
        return "hidden", user
    if user.target is aten.t.default and len(user.users) == 1:
        (product,) = user.users
        if product.target is aten.mm.default and product.args == (user, hidden):
            return "weight", product
    if user.target is aten.sum.dim_IntList and user.args == (of_logits, [0], True):
        return "bias", user
    return None, None


def _fuse(graph: FxGraph, pattern: _Pattern) -> None:
    loss, backward = pattern.loss, pattern.loss_backward
    operands = (*pattern.operands, loss.args[1], argument(loss, "weight"), pattern.options)
    values = (*loss.meta["val"], fake(pattern.softmax))
    forward = insert_call(graph, loss, linear_cross_entropy, (operands,), values)
    elements = insert_elements(graph, loss, forward)
    output_mask = tuple(gradient is not None for gradient in pattern.gradients)
    gradients = [gradient for gradient in pattern.gradients if gradient is not None]
    args = (backward.args[0], elements[2], elements[1], operands, output_mask)
    values = tuple(map(fake, gradients))
    fused = insert_call(graph, backward, linear_cross_entropy_backward, args, values)
    for old, new in zip(gradients, insert_elements(graph, backward, fused), strict=True):
        old.replace_all_uses_with(new)
    for use in list(loss.users):
        use.replace_all_uses_with(elements[cast(int, use.args[1])])
    erase_dependents(graph, pattern.product)


def _with_gradients(node: Node, backward: Node, chunks: int) -> tuple[Intermediate, ...]:
    """Return the gradients that the forward pass creates, as intermediates."""
    return tuple(
        Intermediate(node=node, name=f"gradient {index} in {chunks} chunks", value=value)
        for index, value in enumerate(backward.meta["val"])
    )


def _hidden(forward: Node) -> Tensor:
    return fake(cast(Any, forward.args[0])[0])


def _counts(forward: Node) -> list[int]:
    return [count for count in CHUNKS if count <= _hidden(forward).shape[0]]


def _forward(node: Node) -> list[Variant]:
    backward = _backward_of(node)
    (operands,) = node.args
    variants: list[Variant] = []
    for count in _counts(node):
        target, args = linear_cross_entropy_in_chunks, (operands, count)
        variants.append(
            _rounded(name=f"in {count} chunks", target=target, args=args, creates=(0, 1))
        )
        if backward is not None:
            variants.append(
                _rounded(
                    name=f"with gradients in {count} chunks",
                    target=linear_cross_entropy_with_gradients,
                    args=(operands, backward.args[-1], count),
                    creates=(0, 1, *_with_gradients(node, backward, count)),
                )
            )
    return variants


def _backward_of(node: Node) -> Node | None:
    """Return the backward node, unless gradients are too small for their type unscaled."""
    if _hidden(node).dtype == torch.float16:
        return None
    for element in node.users:
        for user in element.users:
            if user.target is linear_cross_entropy_backward:
                return user
    return None


def _backward(node: Node) -> list[Variant]:
    grad, log_probabilities, total, operands, output_mask = node.args
    forward = cast(Node, source(log_probabilities)).args[0]
    assert isinstance(forward, Node)
    outputs = tuple(range(len(node.meta["val"])))
    variants: list[Variant] = []
    for count in _counts(forward):
        variants.append(
            _rounded(
                name=f"in {count} chunks",
                target=linear_cross_entropy_backward_in_chunks,
                args=(grad, total, operands, output_mask, count),
                creates=outputs,
            )
        )
        if _backward_of(forward) is node:
            gradients = _with_gradients(forward, node, count)
            variants.append(
                _rounded(
                    name=f"with gradients in {count} chunks",
                    target=scaled_gradients,
                    args=(grad, *gradients),
                    creates=outputs,
                    overwrites=gradients[0],
                )
            )
    return variants


OFFERS: dict[Any, Offers] = {
    linear_cross_entropy: _forward,
    linear_cross_entropy_backward: _backward,
}
