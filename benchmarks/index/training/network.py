"""The throughput model in torch, as `headrace.index.plan.model` computes it in NumPy."""

from itertools import pairwise

import torch
from torch import nn

from headrace.index.plan.inputs import BUCKETS
from headrace.index.plan.model import CLASSES

CHANNELS = (2, 12, 16, 24)
IMAGE, KEYS, EMBEDDING, HIDDEN = 24, 32, 24, 96


class Network(nn.Module):
    """Image, vector and buckets to classes of throughput and log2 of the bytes per key."""

    def __init__(self, vector: int, dropout: float = 0.15) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise(CHANNELS)
        )
        self.image = nn.Linear(2 * CHANNELS[-1], IMAGE)
        self.vector = nn.Linear(vector, 64)
        self.keys = nn.Linear(64, KEYS)
        self.embedding = nn.Embedding(sum(BUCKETS.values()), EMBEDDING)
        self.joined = nn.Linear(IMAGE + KEYS + EMBEDDING, HIDDEN)
        self.inner = nn.Linear(HIDDEN, HIDDEN)
        self.classes = nn.Linear(HIDDEN, CLASSES)
        self.bytes = nn.Linear(HIDDEN, 1)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=0.3)

    def forward(
        self, image: torch.Tensor, vector: torch.Tensor, buckets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (traces, configurations, classes) and log2 of bytes (traces, ...)."""
        for layer in (self.first, self.second, self.third):
            image = layer(image).relu()
        pooled = torch.cat([image.mean(dim=(2, 3)), image.amax(dim=(2, 3))], dim=1)
        keys = self.keys(self.dropout(self.vector(self.dropout(vector)).relu())).relu()
        trace = torch.cat([self.image(self.dropout(pooled)).relu(), keys], dim=1)
        rows = self.embedding(buckets).sum(dim=1)
        joined = torch.cat(
            [
                trace[:, None].expand(-1, len(rows), -1),
                rows[None].expand(len(trace), -1, -1),
            ],
            dim=2,
        )
        hidden = self.inner(self.dropout(self.joined(joined).relu())).relu()
        return self.classes(hidden), self.bytes(hidden)[..., 0]
