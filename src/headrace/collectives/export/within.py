"""Check of a program against a runtime's limits, without the proof of an export."""

from headrace.collectives.errors import ProgramError
from headrace.collectives.export import msccl_xml, mscclpp_json
from headrace.collectives.export.limits import check_limits
from headrace.collectives.export.runtimes import (
    JSON,
    RUNTIMES,
    STRICTEST,
    XML,
    extremes,
    refused,
    runtime_of,
)
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.program import Program
from headrace.errors import VerificationError

MAX_CHUNKS = 64
"""Chunks a block, at most, that are tried for a runtime."""


def chunk_counts() -> list[int]:
    """Return the powers of two up to `MAX_CHUNKS`: they divide the element counts of most calls."""
    return [1 << k for k in range(MAX_CHUNKS.bit_length())]


def forbidden(program: Program, runtime: str) -> str:
    """Return the limit that keeps `program` from being exported for a runtime, or ''.

    Parameters
    ----------
    runtime : of `RUNTIMES`, or the strictest of both formats.
    """
    forms = (XML, JSON) if runtime == STRICTEST else (RUNTIMES[runtime].form,)
    try:
        for form in forms:
            limits = runtime_of(runtime, form)
            if form == JSON:
                findings = mscclpp_json.beyond(program, limits)
            else:
                algorithm = msccl_xml.fitted_algorithm(program, Target(), limits)
                findings = [*refused(extremes(algorithm), limits), *check_limits(algorithm)]
            if fatal := [finding for finding in findings if finding.fatal]:
                return f"{form}: {fatal[0]}"
    except (ProgramError, VerificationError) as error:
        return str(error)
    return ""
