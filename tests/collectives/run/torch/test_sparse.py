"""Sparse data of other ranks is checked before it is used."""

import pytest
import torch

from headrace.collectives.run.torch import sparse
from headrace.errors import CommunicationError, InputError

TENSOR = torch.sparse_coo_tensor(
    torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3), check_invariants=True
)
OWN = sparse._own_part(TENSOR)


def heads(*own: torch.Tensor) -> torch.Tensor:
    return torch.stack(own)


def test_room_is_made_for_as_many_elements_as_were_told() -> None:
    told = heads(sparse._head(TENSOR, 2), sparse._head(TENSOR, 4))
    own, other = sparse._parts(told, TENSOR, OWN)
    assert (own.indices.shape, own.values.shape) == ((1, 2), (2, 3))
    assert (other.indices.shape, other.values.shape) == ((1, 4), (4, 3))


@pytest.mark.parametrize("count", [5, 1 << 62, (1 << 64) - 1])
def test_a_rank_cannot_claim_more_elements_than_there_are(count: int) -> None:
    told = heads(sparse._head(TENSOR, 2), sparse._head(TENSOR, count))
    with pytest.raises(CommunicationError, match=rf"rank 1 has {count} elements .* for 4"):
        sparse._parts(told, TENSOR, OWN)


def test_tensors_of_many_dimensions_are_compared_by_a_digest() -> None:
    many, more = (
        torch.sparse_coo_tensor(size=[1000] * large + [1] * (63 - large), check_invariants=True)
        for large in (6, 5)
    )
    own = sparse._own_part(many)
    same = heads(sparse._head(many, 0), sparse._head(many, 0))
    assert len(sparse._parts(same, many, own)) == 2
    with pytest.raises(InputError, match="differ"):
        sparse._parts(heads(sparse._head(many, 0), sparse._head(more, 0)), many, own)


@pytest.mark.parametrize("index", [-1, 4, 1 << 62])
def test_indices_outside_of_the_tensor_are_an_error_that_names_their_rank(index: int) -> None:
    bad = sparse._Part(torch.tensor([[0, index]]), torch.ones(2, 3))
    with pytest.raises(CommunicationError, match=r"rank 1 sent indices outside .* \(4, 3\)"):
        sparse._sum([OWN, bad], TENSOR)
