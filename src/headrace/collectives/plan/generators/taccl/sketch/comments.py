"""JSON with comments, the syntax of sketch files."""

import json
import re
from collections import Counter
from typing import Any

from headrace.collectives.errors import SketchError
from headrace.files import load_json

_TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_MAX_BYTES = 1 << 22


def load_commented(text: str, source: str) -> Any:
    """Parse JSON in which ``// ...`` and ``/* ... */`` may stand outside texts.

    Raises
    ------
    SketchError : naming `source`, line and column; also for a duplicate key.
    """
    if len(text) > _MAX_BYTES:
        raise SketchError(f"{source}: is {len(text)} characters long, needs at most {_MAX_BYTES}")

    def blank(token: re.Match[str]) -> str:
        text = token.group()
        return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) < len(pairs):
            twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
            raise SketchError(f"{source}: field '{twice}' is given twice")
        return seen

    try:
        return load_json(_TOKENS.sub(blank, text), once)
    except json.JSONDecodeError as error:
        raise SketchError(
            f"{source}: line {error.lineno}, column {error.colno}: {error.msg}; needs JSON "
            "(comments are allowed)"
        ) from error
    except (RecursionError, ValueError) as error:
        raise SketchError(f"{source}: is no JSON that can be read: {error}") from error
