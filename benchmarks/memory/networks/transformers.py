"""Transformers: a GPT-2 with as many layers as asked for, and a small vision transformer."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 50_257
"""Tokens of GPT-2 (Radford et al. 2019)."""


class Attention(nn.Module):
    """Self-attention of several heads, by `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, tokens, width = inputs.shape
        split = self.queries_keys_values(inputs).view(batch, tokens, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    """Attention and a perceptron of one hidden layer, each behind a layer norm and added."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width),
            Attention(width, heads, causal=causal, dropout=dropout),
            nn.Dropout(dropout),
        )
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        attended = inputs + self.attention(inputs)
        return attended + self.perceptron(attended)


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019) with random weights; the head shares the embedding's weight.

    Parameters
    ----------
    layers : number of `blocks`.
    width : of the hidden state, a multiple of 64: heads have 64 channels.
    context : the most tokens of a sequence.
    dropout : probability; 0 for the figures of memory and time.
    """

    def __init__(
        self,
        layers: int = 12,
        *,
        width: int = 768,
        vocabulary: int = VOCABULARY,
        context: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(
            *(Layer(width, width // 64, causal=True, dropout=dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the hidden state before the head, (batch, tokens, width)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(tokens))


class VisionTransformer(nn.Module):
    """ViT-S/16 (Dosovitskiy et al. 2021; its small size from Touvron et al. 2021)."""

    def __init__(
        self, classes: int = 1000, *, side: int = 224, width: int = 384, layers: int = 12
    ) -> None:
        super().__init__()
        patch = 16
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(
            *(Layer(width, width // 64, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        patches = self.patches(inputs).flatten(2).transpose(1, 2)
        summary = self.summary.expand(len(inputs), -1, -1)
        hidden = torch.cat([summary, patches], 1) + self.positions
        return self.head(self.norm(self.blocks(hidden))[:, 0])
