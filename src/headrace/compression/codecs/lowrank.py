"""Codecs of matrices by factors of low rank: PowerSGD and ATOMO."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.compression.codecs.codec import Pieces, State, States
from headrace.compression.codecs.requests import (
    AllGather,
    AllReduce,
    Context,
    Exchanges,
    Request,
)
from headrace.compression.codecs.wire import WIRE_TYPES, from_wire, mean_from_wire, to_wire
from headrace.compression.families import CodecSpec
from headrace.compression.policy import low_rank
from headrace.staging import download, upload


@dataclass(slots=True)
class _Group:
    """Matrices of one shape, and their factors: left (b, r, rows), right (b, r, columns).

    A column of a factor lies side by side in memory: BLAS is 5 times as fast so, as r is small.
    """

    members: list[int]
    left: Tensor
    right: Tensor


@dataclass(slots=True)
class _FactorCodec(ABC):
    """A codec that takes every matrix with its shorter side as rows."""

    spec: CodecSpec

    def average(
        self, tensors: Pieces, mean: Pieces, states: States, context: Context, /
    ) -> Exchanges:
        """Average matrices; see `Codec.average`."""
        if any(matrix.numel() for matrix in tensors):
            wide = [_wide(matrix) for matrix in tensors], [_wide(matrix) for matrix in mean]
            yield from self._average(*wide, states, context)

    @abstractmethod
    def _average(
        self, matrices: Pieces, mean: Pieces, states: States, context: Context, /
    ) -> Exchanges:
        """Average matrices of which some have elements."""


class PowerSGD(_FactorCodec):
    """One step of subspace iteration a call (Vogels et al., 2019, Algorithm 1).

    P is the sum of the ranks' M Q, made orthonormal; Q is then the mean of the ranks' M' P, and
    P Q' the mean's estimate. A matrix of more rows than columns is taken transposed: P, whose side
    is the shorter one, then reaches all directions in turn.

    Q starts the next call (warm start): it is kept in ``state["right"]`` (its columns as rows, each
    of norm 1).
    One whose reduced values are zero or not finite keeps its former direction. Where the rank
    grows, columns drawn from the shared seed are appended; where it shrinks, the last ones wait in
    the state until it grows again.

    The residual is M less P and the rank's own, unaveraged Q (Algorithm 2). So it is bounded by M,
    where M less the mean accumulates the ranks' differences. The ranks' residuals add up as `Codec`
    asks, within rounding; with values of 2 bytes, what the sum of Q on the wire rounds is lost.

    A matrix for which factors are not fewer values than itself is summed uncoded, together with the
    P's.
    """

    __slots__ = ()

    def _average(
        self, matrices: Pieces, mean: Pieces, states: States, context: Context, /
    ) -> Exchanges:
        wire = WIRE_TYPES[self.spec.wire]
        groups, lefts, rights, dense = self._layout(matrices)
        self._start(groups, states, context)
        for index, left, right in _members(groups):
            _product(right, matrices[index].T, left)
        for index, part in _parts(dense, matrices, lefts):
            part.copy_(matrices[index])
        sent = to_wire(lefts, wire, context.ranks)
        if context.feedback and dense:
            from_wire(sent, lefts, context.ranks)
            for index, part in _parts(dense, matrices, lefts):
                matrices[index].sub_(part)
        yield [AllReduce(sent)]
        mean_from_wire(sent, lefts, context.ranks)
        for group in groups:
            group.left.copy_(orthonormal(group.left.mT).mT)
        for index, left, right in _members(groups):
            _product(left, matrices[index], right)
        sent = to_wire(rights, wire, context.ranks)
        if context.feedback:
            from_wire(sent, rights, context.ranks)
            for index, left, right in _members(groups):
                matrices[index].addmm_(left.T, right, alpha=-1)
        if groups:
            yield [AllReduce(sent)]
        for index, part in _parts(dense, matrices, lefts):
            mean[index].copy_(part)
        mean_from_wire(sent, rights, context.ranks)
        for index, left, right in _members(groups):
            torch.mm(left.T, right, out=mean[index])
        _keep(groups, states)

    def _layout(self, matrices: Sequence[Tensor]) -> tuple[list[_Group], Tensor, Tensor, list[int]]:
        """Return groups with factors that are views of two vectors, these, and uncoded matrices.

        The first vector, of the left factors, has room for the uncoded matrices at its end.
        """
        alike: dict[tuple[int, int, int], list[int]] = {}
        dense: list[int] = []
        for index, matrix in enumerate(matrices):
            rows, columns = matrix.shape
            rank = low_rank(rows, columns, int(self.spec.parameter))
            if rank:
                alike.setdefault((rows, columns, rank), []).append(index)
            else:
                dense.append(index)
        left = sum(len(members) * rows * rank for (rows, _, rank), members in alike.items())
        right = sum(len(members) * columns * rank for (_, columns, rank), members in alike.items())
        lefts = matrices[0].new_empty(left + sum(matrices[index].numel() for index in dense))
        rights = matrices[0].new_empty(right)
        groups: list[_Group] = []
        left = right = 0
        for (rows, columns, rank), members in alike.items():
            more_left, more_right = len(members) * rows * rank, len(members) * columns * rank
            groups.append(
                _Group(
                    members,
                    lefts[left : left + more_left].view(-1, rank, rows),
                    rights[right : right + more_right].view(-1, rank, columns),
                )
            )
            left, right = left + more_left, right + more_right
        return groups, lefts, rights, dense

    def _start(self, groups: list[_Group], states: Sequence[State], context: Context) -> None:
        """Set the right factors to the states' ones, completed by random columns."""
        generator = None
        for group in groups:
            _, rank, columns = group.right.shape
            for index, right in zip(group.members, group.right, strict=True):
                warm = states[index].get("right")
                have = 0
                if warm is not None and warm.shape[1] == columns:
                    have = min(rank, len(warm))
                    right[:have].copy_(warm[:have])
                if have < rank:
                    generator = generator or context.generator(own=False)
                    fresh = torch.randn(
                        (rank - have, columns),
                        generator=generator,
                        dtype=torch.float32,
                        device="cpu",
                    )
                    fresh = torch.nn.functional.normalize(fresh)
                    right[have:].copy_(upload(fresh, right.device))
                    states[index]["right"] = right.clone()


def _members(groups: list[_Group]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (index, left factor, right factor) of every matrix."""
    for group in groups:
        yield from zip(group.members, group.left, group.right, strict=True)


def _product(factor: Tensor, matrix: Tensor, out: Tensor) -> None:
    """Write the product of a factor (r, n) and a matrix (n, m) to `out`.

    A vector counts as a matrix of two rows: BLAS's sums for a vector depend on how the matrix is
    aligned in memory, which changes when DDP forms its buckets anew, as after a resumption.
    """
    if len(factor) > 1:
        torch.mm(factor, matrix, out=out)
    else:
        out.copy_(_exact_product(factor.expand(2, -1), matrix)[:1])


def _exact_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of matrices in their type, whatever autocast a backward pass runs in."""
    return torch.mm(first, second, out=first.new_empty((len(first), second.shape[1])))


def _wide(matrix: Tensor) -> Tensor:
    """Return a view that has at least as many columns as rows."""
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _keep(groups: list[_Group], states: Sequence[State]) -> None:
    """Keep the directions of the right factors' columns, where they have one."""
    for group in groups:
        norms = torch.linalg.vector_norm(group.right, dim=2, keepdim=True)
        usable = (norms > 0) & norms.isfinite()
        group.right.div_(norms)
        for index, right, use in zip(group.members, group.right, usable, strict=True):
            warm = states[index]["right"][: len(right)]
            warm.copy_(torch.where(use, right, warm))


def _parts(
    dense: list[int], matrices: Sequence[Tensor], vector: Tensor
) -> list[tuple[int, Tensor]]:
    """Return the uncoded matrices' places in a vector: (index, view)."""
    sizes = [matrices[index].numel() for index in dense]
    views = vector[len(vector) - sum(sizes) :].split(sizes) if sizes else ()
    return [(i, view.view(matrices[i].shape)) for i, view in zip(dense, views, strict=True)]


def orthonormal(matrices: Tensor) -> Tensor:
    """Return orthonormal bases that span the columns of matrices (b, n, r), r at most n.

    By Householder reflections: columns that are zero or depend on those before give other
    directions, orthogonal to all; not finite input gives not finite output.
    """
    return torch.linalg.qr(matrices)[0]


class Atomo(_FactorCodec):
    """Sampled singular values (Wang et al., 2018: ATOMO with spectral atoms, Algorithm 1).

    Each of the rank's chosen number r of singular values and vectors is sent with probability p,
    divided by p. The p add up to r and are proportional to the singular values, where that is below
    1. So the mean is unbiased, and of the least variance. Sampling is systematic (one random
    number), which gives exactly r. With feedback, where a bias is corrected later, the r largest
    are sent as they are.

    Singular vectors are eigenvectors u of the product of M with itself transposed, on M's shorter
    side; the other factor is M' u. Any orthonormal u give an unbiased sum, so that the product's
    rounding matters only to the variance. Factors of all ranks are gathered: payloads grow with
    their number. A matrix for which factors are not fewer values than itself is summed uncoded.
    """

    __slots__ = ()

    def _average(
        self, matrices: Pieces, mean: Pieces, _states: States, context: Context, /
    ) -> Exchanges:
        wire = WIRE_TYPES[self.spec.wire]
        random = None if context.feedback else context.generator(own=True)
        factors: list[Tensor] = []
        ranks: list[int] = []
        for matrix in matrices:
            rows, columns = matrix.shape
            ranks.append(low_rank(rows, columns, int(self.spec.parameter)))
            if ranks[-1]:
                left, right = spectral_factors(matrix, ranks[-1], random)
                left, right = to_wire(left, wire), to_wire(right, wire)
                if context.feedback:
                    matrix.addmm_(left.float(), right.float().T, alpha=-1)
                factors += (left.flatten(), right.flatten())
        dense = [index for index, rank in enumerate(ranks) if not rank]
        values = matrices[0].new_empty(sum(matrices[index].numel() for index in dense))
        for index, part in _parts(dense, matrices, values):
            part.copy_(matrices[index])
        summed = to_wire(values, wire, context.ranks)
        if context.feedback and dense:
            from_wire(summed, values, context.ranks)
            for index, part in _parts(dense, matrices, values):
                matrices[index].sub_(part)
        requests: list[Request] = []
        if factors:
            sent = torch.cat(factors)
            requests.append(AllGather(sent, sent.new_empty((context.ranks, len(sent)))))
        if dense:
            requests.append(AllReduce(summed))
        yield requests
        mean_from_wire(summed, values, context.ranks)
        for index, part in _parts(dense, matrices, values):
            mean[index].copy_(part)
        if factors:
            self._sum(requests[0], ranks, mean)

    def _sum(self, gathered: Request, ranks: Sequence[int], mean: Sequence[Tensor]) -> None:
        """Write the mean of the products of all ranks' factors, in the order of the ranks."""
        assert isinstance(gathered, AllGather)
        begin = 0
        for result, rank in zip(mean, ranks, strict=True):
            if not rank:
                continue
            rows, columns = result.shape
            middle, end = begin + rows * rank, begin + (rows + columns) * rank
            for number, row in enumerate(gathered.received):
                left = row[begin:middle].view(rows, rank).float()
                right = row[middle:end].view(columns, rank).float().div_(len(gathered.received))
                if number:
                    result.addmm_(left, right.T)
                else:
                    torch.mm(left, right.T, out=result)
            begin = end


def spectral_factors(
    matrix: Tensor, rank: int, random: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return factors (rows, rank) and (columns, rank) of a matrix with at most as many rows.

    Parameters
    ----------
    random : samples singular values, so that the product is unbiased; None: takes the largest.
    """
    scale = matrix.abs().amax()
    largest = float(download(scale))
    if not math.isfinite(largest):  # no decomposition: the product is not finite, either
        return matrix.new_full((len(matrix), rank), torch.nan), matrix.new_ones(
            (matrix.shape[1], rank)
        )
    scaled = matrix / scale if largest > 0 else matrix
    squares, vectors = torch.linalg.eigh(_exact_product(scaled, scaled.T))  # ascending
    if random is None:
        left = vectors[:, -rank:].flip(1)
        return left, _exact_product(matrix.T, left)
    chances = sampling_chances(download(squares.clamp(min=0).sqrt().double()), rank)
    ends = chances.cumsum(0)
    places = torch.arange(rank, device="cpu") + torch.rand(
        1, generator=random, dtype=torch.float64, device="cpu"
    )
    sampled = torch.searchsorted(ends, places * (ends[-1] / rank), right=True)
    sampled.clamp_(max=len(chances) - 1)
    left = vectors[:, upload(sampled, matrix.device)]
    weights = upload(chances[sampled].reciprocal().float(), matrix.device)
    return left, _exact_product(matrix.T, left).mul_(weights)


def sampling_chances(values: Tensor, count: int) -> Tensor:
    """Return probabilities (n,) that add up to `count`, below n: proportional to `values`, or 1.

    Values below a thousandth of the largest have the chance of one of that size: rounding of the
    decomposition leaves them nonzero, and their weight must not be without bound.
    """
    largest = values.max()
    values = values.clamp(min=1e-3 * largest) if largest > 0 else torch.ones_like(values)
    certain = torch.zeros(len(values), dtype=torch.bool, device="cpu")
    while True:
        uncertain = torch.where(certain, 0, values)
        chances = torch.where(certain, 1, uncertain * ((count - certain.sum()) / uncertain.sum()))
        if not bool((chances > 1).any()):
            return chances
        certain |= chances >= 1
