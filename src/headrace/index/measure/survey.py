"""Measuring a trace: from its operations to its profile."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.index.errors import TraceError
from headrace.index.measure.mix import operation_features, skew_tables
from headrace.index.measure.raster import loaded_image, trace_image
from headrace.index.measure.sample import sample_trace
from headrace.index.measure.structure import key_structure
from headrace.index.profile import Encoding, IndexProfile
from headrace.index.trace import INSERT, Trace

SAMPLE = 3_000_000
"""Default limit of loaded keys and operations of a sample, together: larger than caches, and run by
a dozen candidates within seconds."""


def survey(
    trace: Trace,
    *,
    most: int = SAMPLE,
    seed: int = 0,
    provenance: Mapping[str, Any] | None = None,
) -> IndexProfile:
    """Return the profile of a trace: its image, its keys' structure, features, and a sample.

    Parameters
    ----------
    most : limit of loaded keys and operations of the sample, together.

    Raises
    ------
    TraceError : the trace has neither keys nor operations.
    """
    if not len(trace.loaded) and not len(trace):
        raise TraceError("the trace has no keys and no operations, needs some")
    sample = sample_trace(trace, most, seed)
    return IndexProfile(
        encoding=encode_trace(sample, trace),
        sample=sample,
        loaded=len(trace.loaded),
        operations=len(trace),
        kind=trace.kind,
        provenance={"sample_limit": most, "seed": seed, **(provenance or {})},
    )


def encode_trace(sample: Trace, whole: Trace) -> Encoding:
    """Return the encoding of a trace by its sample; the image and the shares are of the whole."""
    inserted = sample.keys[sample.operations == INSERT]
    keys = np.unique(np.concatenate([sample.loaded, inserted]))
    return Encoding(
        image=trace_image(whole),
        loaded_image=loaded_image(whole),
        features=operation_features(sample, whole, keys),
        tables={**key_structure(keys), **skew_tables(sample, keys)},
    )
