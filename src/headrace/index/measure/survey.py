"""Measuring a trace: from its operations to its profile."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.index.errors import TraceError
from headrace.index.measure.mix import operation_features, rank_operations, skew_tables
from headrace.index.measure.raster import loaded_image, trace_image
from headrace.index.measure.sample import fewer_finds, sample_trace
from headrace.index.measure.structure import key_structure
from headrace.index.profile import IndexProfile, TraceEncoding
from headrace.index.trace import Trace

SAMPLE = 6_000_000
"""Default limit of loaded keys and operations of a sample, together. A dozen candidates run it
within seconds. It is larger than caches: log leaves lose more than hashed ones do where a tree
outgrows these, so a small sample would choose them wrongly."""


def survey_trace(
    trace: Trace,
    *,
    most: int = SAMPLE,
    seed: int = 0,
    provenance: Mapping[str, Any] | None = None,
) -> IndexProfile:
    """Return the profile of a trace: its image, its keys' structure, features, and a sample.

    Parameters
    ----------
    most : limit of loaded keys and operations of the sample, together. Of a trace of finds and
        scans alone few operations are taken, and so more keys.

    Raises
    ------
    TraceError : the trace has neither keys nor operations.
    """
    if not len(trace.loaded) and not len(trace):
        raise TraceError("the trace has no keys and no operations, needs some")
    sample = _sorted_sample(trace, most, seed)
    thinned = fewer_finds(trace, most)
    return IndexProfile(
        encoding=encode_trace(sample, trace),
        sample=sample if thinned is trace else _sorted_sample(thinned, most, seed),
        loaded=len(trace.loaded),
        operations=len(trace),
        kind=trace.kind,
        provenance={"sample_limit": most, "seed": seed, **(provenance or {})},
    )


def _sorted_sample(trace: Trace, most: int, seed: int) -> Trace:
    sample = sample_trace(trace, most, seed)
    return replace(sample, loaded=np.sort(sample.loaded))  # once, in place of in every trial


def encode_trace(sample: Trace, unsampled: Trace) -> TraceEncoding:
    """Return the encoding of a trace by its sample; the image and the shares are of the whole."""
    ranked = rank_operations(sample)
    return TraceEncoding(
        image=trace_image(unsampled),
        loaded_image=loaded_image(unsampled),
        features=operation_features(ranked, unsampled),
        tables={**key_structure(ranked.keys), **skew_tables(ranked)},
    )
