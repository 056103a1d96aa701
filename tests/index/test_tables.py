"""The types and limits that planning reads without the native module are the native index's."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace import _native
from headrace.index import tables

HEAD = '''"""Types and limits of the native index, for planning without the native module.

Written by `pytest --regenerate tests/index/test_tables.py` from what native/index says
(`configuration.hpp`, `maps/types.hpp`): change it there.
"""
'''
TEXTS = {
    "LEAVES": "Types of leaves, in the order of the native enumeration.",
    "KEY_TYPES": "Types of keys: all integers from the first to the second are held exactly.",
    "VALUE_TYPES": "Types of values, likewise.",
    "INTEGER_LIMITS": "Fields of a configuration that are integers: least and most.",
    "NUMBER_LIMITS": "Its other numbers: least and most.",
}


def written(native: Mapping[str, Any]) -> str:
    assert set(native) == set(TEXTS)
    parts = [HEAD]
    for name, text in TEXTS.items():
        if isinstance(native[name], dict):
            rows = [f'    "{key}": {row!r},' for key, row in native[name].items()]
            parts.append(f"\n{name} = {{\n" + "\n".join(rows) + "\n}\n")
        else:
            names = ", ".join(f'"{leaf}"' for leaf in native[name])
            parts.append(f"\n{name} = ({names})\n")
        parts.append(f'"""{text}"""\n')
    return "".join(parts)


def test_the_tables_are_those_of_the_native_index(golden: Callable[[str, bytes], None]) -> None:
    text = written(_native.index_tables())
    golden("../../src/headrace/index/tables.py", text.encode())


def test_the_ranges_are_those_of_numpys_types() -> None:
    for name, (least, most) in tables.VALUE_TYPES.items():
        dtype = np.dtype(name)
        if dtype.kind == "f":
            assert most == -least
            assert float(dtype.type(most)) == most
            assert float(dtype.type(most + 1)) != most + 1
        else:
            limits = np.iinfo(dtype)
            assert (least, most) == (limits.min, limits.max)
