"""Text to measure on: the user's, or that of every installation of Python."""

import ast
import hashlib
import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.attention.errors import AttentionError

_TOKEN_CHARACTERS = 8
"""More than a token of text has on average."""


def text_of_files(paths: Sequence[Path]) -> str:
    """Return the text of some files; of Python's own documentation where there are none.

    Raises
    ------
    AttentionError : a file cannot be read as UTF-8.
    """
    if not paths:
        return documentation()
    texts: list[str] = []
    for path in paths:
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise AttentionError(f"{path}: cannot be read as text: {error}") from error
    return "\n\n".join(texts)


@cache
def documentation() -> str:
    """Return the language reference that `pydoc` shows, and docstrings of the standard library."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    for source in sorted(Path(inspect.__file__).parent.glob("*.py")):
        texts.extend(_docstrings(source))
    return "\n\n".join(texts)


def _docstrings(source: Path) -> list[str]:
    tree = ast.parse(source.read_text(encoding="utf-8", errors="replace"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)
    ]
    return [docstring for docstring in docstrings if docstring]


def text_digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def token_samples(tokenizer: Any, text: str, samples: int, tokens: int, skip: int = 0) -> Tensor:
    """Return consecutive samples of a text: [samples, tokens].

    Parameters
    ----------
    skip : samples at the beginning to leave out.

    Raises
    ------
    AttentionError : the text is too short for one.
    """
    # Not all of the text: tokenizers are slow on megabytes.
    characters = (skip + samples) * tokens * _TOKEN_CHARACTERS
    numbers: list[int] = tokenizer(text[:characters])["input_ids"]
    while len(numbers) < (skip + samples) * tokens and characters < len(text):
        characters *= 2
        numbers = tokenizer(text[:characters])["input_ids"]
    count = min(samples, len(numbers) // tokens - skip)
    if count < 1:
        raise AttentionError(
            f"the text has {len(numbers)} tokens, needs {(skip + 1) * tokens}: pass more by --text"
        )
    part = numbers[skip * tokens : (skip + count) * tokens]
    return torch.tensor(part, dtype=torch.int64).reshape(count, tokens)
