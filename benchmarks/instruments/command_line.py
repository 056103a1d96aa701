"""Checks of the registered commands: JSON, examples, and options with two meanings."""

import inspect
import re
import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from headrace.cli.answers import schema_of
from headrace.cli.app import verbs

_STEM = re.compile(r"[^,;:.(]*")
"""Of a help text: what it says before its first detail."""

QUANTITIES = ("SIZE", "TIME", "RATE", "COUNT")
"""Names in the help of quantities with units; see `headrace.cli.options`."""

Meaning = tuple[str, str]
"""Type, with its unit, and the beginning of the help text."""


def options_with_two_meanings() -> dict[str, dict[Meaning, list[str]]]:
    """Return the options whose type, unit or help text differ among verbs: the verbs by meaning."""
    meanings: dict[str, dict[Meaning, list[str]]] = {}
    for path, verb in verbs():
        for parameter in verb.params:
            if parameter.param_type_name == "option":
                (stem,) = _STEM.findall(parameter.help or "")[:1]
                for name in [*parameter.opts, *parameter.secondary_opts]:
                    by_meaning = meanings.setdefault(name, {})
                    by_meaning.setdefault((_type_name(parameter), stem.strip()), []).append(path)
    return {name: by_meaning for name, by_meaning in meanings.items() if len(by_meaning) > 1}


def examples() -> dict[str, list[list[str]]]:
    """Return the commands of every verb's help, as words; those of other programs are left out."""
    return {path: _examples(verb) for path, verb in verbs()}


def _examples(verb: Any) -> list[list[str]]:
    _, _, text = (inspect.getdoc(verb.callback) or "").partition("Example: ")
    commands = " ".join(text.partition("\n\n")[0].split()).split("; ")
    return [words[1:] for words in map(shlex.split, commands) if words[:1] == ["headrace"]]


def verbs_without_example() -> list[str]:
    """Return the verbs whose help has no command of theirs, or one with an option they lack."""
    registered = dict(verbs())
    return [
        path
        for path, commands in examples().items()
        if not any(_fits(words, path, registered[path]) for words in commands)
    ]


def _fits(words: list[str], path: str, verb: Any) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    options = {name for parameter in verb.params for name in parameter.opts}
    named = {word.partition("=")[0] for word in own if word.startswith("-")}
    return words[: len(path.split())] == path.split() and named <= options


def verbs_without_json() -> list[str]:
    """Return the verbs that take no ``--json``, or whose schema leaves the result open."""
    return [
        path
        for path, verb in verbs()
        if not any("--json" in parameter.opts for parameter in verb.params)
        or not _has_fields(schema_of(path, verb.callback))
    ]


def _has_fields(schema: Mapping[str, Any]) -> bool:
    result = schema["properties"]["result"]
    if "$ref" in result:
        result = schema["$defs"][result["$ref"].rpartition("/")[2]]
    return bool(result.get("properties"))


def _type_name(parameter: Any) -> str:
    """Return the type of one value of an option, by its unit where it has one."""
    if parameter.metavar in QUANTITIES:
        return parameter.metavar
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return "choice"
    return str(getattr(kind, "__name__", kind))
