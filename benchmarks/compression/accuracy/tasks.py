"""Three small tasks: graded generated images, handwritten digits, characters of text.

Every task is made from its seed alone: data, initial weights and the order of the samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

IMAGES, TEST_IMAGES = 20_000, 8_000
SIDE = 16
CLASSES = 10
CONTEXT = 32
"""Characters that the language model sees at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task, and the training that suits it.

    Attributes
    ----------
    data : of a seed: inputs and targets to train with, inputs and targets to test with.
    model : of initial weights by torch's seed; inputs -> logits (..., classes).
    batch : of all workers together.
    rate : learning rate for `batch`; it is divided by ten at each of `decays` (epochs).
    window : epochs between the norms that Accordion compares; the paper's are 10 of 200 to 300.
    low, high : gentle and harsh codec.
    ladder : levels of AdaQS, from harsh to gentle.
    augment : changes a batch's inputs, by a generator.
    clip : largest norm of the mean gradient.
    """

    name: str
    data: Callable[[int], tuple[Tensor, Tensor, Tensor, Tensor]]
    model: Callable[[], nn.Module]
    epochs: int
    batch: int
    rate: float
    decays: tuple[int, ...]
    window: int
    low: str
    high: str
    ladder: tuple[str, ...]
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    clip: float = math.inf
    weight_decay: float = 0.0


# ---- images ------------------------------------------------------------------------------------


def graded_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 16, 16) and their classes 0 to 9.

    A class is an outline (disc, square, cross, ring, triangle) and one of two textures in it:
    stripes that lean to the left or to the right, by an angle that differs between images.
    Difficulty is graded evenly from easy to hard: with it noise grows and contrast falls; position
    and size vary.
    """
    label = torch.randint(CLASSES, (count,), generator=generator)
    shape, texture = label % 5, label // 5
    uniform = torch.rand(count, 8, generator=generator)
    difficulty = uniform[:, 0]
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    x = x[None] - (uniform[:, 1, None, None] - 0.5) * 0.6
    y = y[None] - (uniform[:, 2, None, None] - 0.5) * 0.6
    size = (0.55 + 0.25 * uniform[:, 3])[:, None, None]
    x, y = x / size, y / size
    radius = (x * x + y * y).sqrt()
    outlines = torch.stack(
        [
            radius < 1,
            (x.abs() < 0.9) & (y.abs() < 0.9),
            (x.abs() < 0.35) & (y.abs() < 1) | (y.abs() < 0.35) & (x.abs() < 1),
            (radius < 1) & (radius > 0.55),
            (y < 0.8) & (y > 2 * x.abs() - 1),
        ]
    ).float()
    inside = outlines[shape, torch.arange(count)]
    lean = (0.35 + 0.5 * uniform[:, 4]) * (2.0 * texture - 1)
    phase = 2 * math.pi * uniform[:, 5, None, None]
    along = x * lean.cos()[:, None, None] + y * lean.sin()[:, None, None]
    stripes = 0.6 + 0.4 * torch.sin(7 * along + phase)
    contrast = (1.2 - 0.7 * difficulty)[:, None, None]
    noise = torch.randn(count, SIDE, SIDE, generator=generator)
    image = contrast * inside * stripes + (0.15 + 0.55 * difficulty)[:, None, None] * noise
    return ((image - 0.25) / 0.6)[:, None], label


def image_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 20,000 images to train with and 8,000 to test with."""
    generator = torch.Generator().manual_seed(1000 + seed)
    inputs, targets = graded_images(IMAGES + TEST_IMAGES, generator)
    return inputs[:IMAGES], targets[:IMAGES], inputs[IMAGES:], targets[IMAGES:]


def image_model() -> nn.Module:
    """Return a convolutional network of 31,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


# ---- digits ------------------------------------------------------------------------------------


def digit_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's 1,797 digits of 8 x 8: 897 to train with, 900 to test with.

    Those to train with come four times in an epoch, each time moved and with other noise, so that
    an epoch has steps enough for its mean gradient to be more than noise.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    inputs = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    targets = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(2000 + seed))
    train, test = order[:897].repeat(4), order[897:]
    return inputs[train], targets[train], inputs[test], targets[test]


def shifted(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return images moved by up to one pixel, with noise."""
    down, right = torch.randint(-1, 2, (2,), generator=generator).tolist()
    padded = nn.functional.pad(inputs, (1, 1, 1, 1), value=-1.0)
    moved = padded[..., 1 + down : 9 + down, 1 + right : 9 + right]
    return moved + 0.3 * torch.randn(inputs.shape, generator=generator)


def digit_model() -> nn.Module:
    """Return a network of three layers and 26,000 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


# ---- characters --------------------------------------------------------------------------------


@cache
def characters() -> tuple[Tensor, int]:
    """Return the text of Python's own language reference as numbers, and how many there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    common = sorted(alphabet, key=text.count, reverse=True)[:95]
    numbers = {character: number for number, character in enumerate(common)}
    return torch.tensor([numbers.get(character, 95) for character in text]), 96


def character_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sequences of 32 characters and their successors: a tenth of the text is for tests."""
    numbers, _ = characters()
    rows = numbers[: (len(numbers) - 1) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    following = numbers[1 : rows.numel() + 1].view(-1, CONTEXT)
    blocks = torch.arange(len(rows)) // 64  # neighbours stay together
    test = (blocks % 10) == seed % 10
    return rows[~test][::8], following[~test][::8], rows[test], following[test]


class CharacterModel(nn.Module):
    """Recurrent model of characters: 96 x 24 embedding, 64 gated units, logits."""

    def __init__(self) -> None:
        super().__init__()
        count = characters()[1]
        self.embedding = nn.Embedding(count, 24)
        self.recurrent = nn.GRU(24, 64, batch_first=True)
        self.output = nn.Linear(64, count)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of the next character at every position."""
        return self.output(self.recurrent(self.embedding(inputs))[0])


TASKS = {
    task.name: task
    for task in (
        Task(
            name="images",
            data=image_data,
            model=image_model,
            epochs=16,
            batch=256,
            rate=0.1,
            decays=(11,),
            window=5,
            low="topk:10%",
            high="topk:0.6%",
            ladder=("topk:0.6%", "topk:1%", "topk:2%", "topk:5%", "topk:10%"),
            weight_decay=5e-4,
        ),
        Task(
            name="digits",
            data=digit_data,
            model=digit_model,
            epochs=46,
            batch=64,
            rate=0.05,
            decays=(32,),
            window=14,
            low="topk:10%",
            high="topk:0.03%",
            ladder=(
                "topk:0.03%",
                "topk:0.2%",
                "topk:0.5%",
                "topk:1%",
                "topk:2%",
                "topk:5%",
                "topk:10%",
            ),
            augment=shifted,
            weight_decay=5e-4,
        ),
        Task(
            name="characters",
            data=character_data,
            model=CharacterModel,
            epochs=24,
            batch=32,
            rate=0.5,
            decays=(18,),
            window=3,
            low="topk:10%",
            high="topk:4%",
            ladder=("topk:4%", "topk:7%", "topk:10%"),
            clip=1.0,
        ),
    )
}
"""By name. The harsh levels were chosen with one or two seeds: they lose a point or more of the
images and digits. The characters are still being learned at the end, and lose whatever was not sent
on the way: their harsh level is milder."""
