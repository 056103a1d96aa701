"""Implementations of operators that trade time for memory (4.4 and 4.5 of the paper).

`rewrite` splits and fuses nodes of a step's joint graph, with the same results, where that gives a
choice. `variants` finds the nodes that can be computed in other ways, and says what each way reads,
creates and overwrites.
"""

from headrace.memory.operators.copies import CopyStore, bfloat16_store, copy_variants, host_store
from headrace.memory.operators.table import is_rewritten, rewrite, variants
from headrace.memory.operators.variant import Creation, Intermediate, Variant

__all__ = [
    "CopyStore",
    "Creation",
    "Intermediate",
    "Variant",
    "bfloat16_store",
    "copy_variants",
    "host_store",
    "is_rewritten",
    "rewrite",
    "variants",
]
