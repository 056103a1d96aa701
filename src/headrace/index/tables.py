"""Types and limits of the native index, for planning without the native module.

Written by `pytest --regenerate tests/index/test_tables.py` from what native/index says
(`configuration.hpp`, `maps/types.hpp`): change it there.
"""

LEAVES = ("gapped", "log", "hashed", "perfect")
"""Types of leaves, in the order of the native enumeration."""

KEY_TYPES = {
    "uint64": (0, 18446744073709551615),
    "int64": (-9223372036854775808, 9223372036854775807),
    "float64": (-9007199254740992, 9007199254740992),
}
"""Types of keys: all integers from the first to the second are held exactly."""

VALUE_TYPES = {
    "uint32": (0, 4294967295),
    "int32": (-2147483648, 2147483647),
    "float32": (-16777216, 16777216),
    "uint64": (0, 18446744073709551615),
    "int64": (-9223372036854775808, 9223372036854775807),
    "float64": (-9007199254740992, 9007199254740992),
}
"""Types of values, likewise."""

INTEGER_LIMITS = {
    "fragment_keys": (8, 32768),
    "fragments": (2, 1048576),
    "initial_fragments": (2, 1048576),
    "leaf_keys": (16, 65536),
}
"""Fields of a configuration that are integers: least and most."""

NUMBER_LIMITS = {
    "fill": (0.3, 0.98),
    "max_search": (0.0, 1000000000.0),
    "max_shifts": (0.0, 1000000000.0),
    "insert_fraction": (0.0, 1.0),
}
"""Its other numbers: least and most."""
