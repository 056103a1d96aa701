"""What the registered commands say of themselves: options that mean two things."""

import re
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from headrace.cli.verbs import verbs

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
