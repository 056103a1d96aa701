import torch
from torch import Tensor, nn

from tests.memory.operators.conformance import check


class Dropped(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32, probability: float = 0.3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5], dtype=dtype))
        self.dropout = nn.Dropout(probability)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.dropout(x * self.weight) * self.weight)


def test_masks_as_bits_are_exact_and_draw_the_same_numbers() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in ((3, 37), (0, 2), (1,), (2, 3, 4, 5)):
            x = torch.randn(shape).to(dtype).requires_grad_()
            found = check(Dropped(dtype), x, poison=True)
            assert found["with bits"] == found["from bits"] == 2
    x = torch.randn(4, 3, 6, 5)
    for view in (x.to(memory_format=torch.channels_last), x[:, ::2], x.transpose(1, 3)):
        assert check(Dropped(), view.requires_grad_(), poison=True)["from bits"] == 2
    for probability in (0.0, 1.0):
        check(Dropped(probability=probability), torch.randn(9, requires_grad=True))
