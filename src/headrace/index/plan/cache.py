"""Sizes of an index that fit into one machine's cache and not into that of the model's training."""

from collections.abc import Mapping
from typing import Any, cast

from headrace.index.plan.model import LAST_LEVEL_CACHE, TRAINED_CACHE_BYTES
from headrace.index.plan.plan import IndexPlan
from headrace.units import size


def cache_text(plan: IndexPlan) -> str | None:
    """Return a line where the training saw no size like the plan's in the same cache, else None.

    The ranking by the throughput model is that of the machine that it was trained on. Which
    structure is best depends on whether keys come from memory or from the last-level cache.
    """
    cache_bytes = plan.provenance.get(LAST_LEVEL_CACHE)
    model: Any = plan.provenance.get("model")
    if not isinstance(model, Mapping):
        return None
    trained_bytes = cast(Mapping[str, Any], model).get(LAST_LEVEL_CACHE, TRAINED_CACHE_BYTES)
    if not isinstance(cache_bytes, int) or not isinstance(trained_bytes, int):
        return None
    keys = 2 ** min(plan.encoding.features["log2_final"], 64)
    index_bytes = round(keys * plan.chosen.bytes_per_key)
    if (index_bytes <= cache_bytes) == (index_bytes <= trained_bytes):
        return None
    fits = index_bytes <= cache_bytes
    decided = (
        "trials on this machine decided"
        if plan.chosen.trials
        else "plan with trials to have this machine decide"
    )
    return (
        f"The index ({size(index_bytes)}) {'fits' if fits else 'does not fit'} into this machine's "
        f"last-level cache ({size(cache_bytes)}), unlike in the training of the throughput model "
        f"({size(trained_bytes)}), which ranks as if its keys came from "
        f"{'memory' if fits else 'the cache'}; {decided}."
    )
