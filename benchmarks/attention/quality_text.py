"""Text of the quality section: what models are trained on, what plans are made on, and the rest."""

import ast
import importlib.util
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.attention.measure.text import documentation

_PIECE_CHARACTERS = 4096
_PIECES_PER_HELD_OUT = 5
_MOST_CHARACTERS_PER_TOKEN = 8
"""On average: SmolLM2's tokens have 3.9 characters."""
_PACKAGES = ("numpy", "scipy", "sklearn")
"""Installed with headrace; their docstrings lengthen the text of a full run's training."""


def byte_tokens(text: str) -> dict[str, list[int]]:
    """Return a text's bytes as tokens, as a tokenizer of Transformers returns them."""
    return {"input_ids": list(text.encode())}


def _pieces(held_out: bool) -> list[str]:
    text = documentation()
    pieces = [
        text[first : first + _PIECE_CHARACTERS] for first in range(0, len(text), _PIECE_CHARACTERS)
    ]
    return [
        piece
        for index, piece in enumerate(pieces)
        if (index % _PIECES_PER_HELD_OUT == 0) == held_out
    ]


@cache
def held_out_text() -> str:
    """Return the fifth of Python's documentation that no model here is trained on."""
    return "".join(_pieces(held_out=True))


@cache
def training_tokens(*, packages: bool) -> Tensor:
    """Return the other bytes of Python's documentation; with docstrings of packages, or without."""
    texts = _pieces(held_out=False)
    if packages:
        texts += [docstrings for name in _PACKAGES for docstrings in _docstrings(name)]
    return torch.frombuffer(bytearray("\n\n".join(texts).encode()), dtype=torch.uint8)


def _docstrings(package: str) -> list[str]:
    """Return the docstrings of an installed package's sources, but those of its tests."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts: list[str] = []
    for source in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in source.parts:
            continue
        tree = ast.parse(source.read_text(encoding="utf-8", errors="replace"))
        nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
        texts += [docstring for node in nodes if (docstring := ast.get_docstring(node))]
    return texts


def source_text(characters: int) -> str:
    """Return source code of Python's standard library: another domain than its documentation."""
    parts: list[str] = []
    length = 0
    for source in sorted(Path(ast.__file__).parent.glob("*.py")):
        parts.append(source.read_text(encoding="utf-8", errors="replace"))
        length += len(parts[-1])
        if length >= characters:
            break
    return "".join(parts)


def passkey_prompts(tokenizer: Any, tokens: int, count: int) -> list[tuple[Tensor, str]]:
    """Return prompts of so many tokens that hide a number in documentation, and the numbers."""
    generator = random.Random(0)
    characters = tokens * count * _MOST_CHARACTERS_PER_TOKEN
    filler = tokenizer(held_out_text()[:characters], add_special_tokens=False)["input_ids"]
    prompts: list[tuple[Tensor, str]] = []
    for index in range(count):
        passkey = str(generator.randrange(10_000, 100_000))
        fact = f"\n\nThe pass key is {passkey}. Remember it: {passkey} is the pass key.\n\n"
        question = "\n\nWhat is the pass key? The pass key is"
        inserted, asked = (
            tokenizer(part, add_special_tokens=False)["input_ids"] for part in (fact, question)
        )
        room = tokens - len(inserted) - len(asked)
        part = filler[index * room : (index + 1) * room]
        depth = generator.randrange(len(part))
        numbers = [*part[:depth], *inserted, *part[depth:], *asked]
        prompts.append((torch.tensor([numbers]), passkey))
    return prompts
