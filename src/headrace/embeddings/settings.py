"""Settings of embeddings from the environment: the shared ones, and their own section."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from headrace.errors import InputError
from headrace.settings import Settings, on_or_off, one_of, whole_number, writable_file

SILENCE_S = 6
"""A segment that is lost four times in a row arrives 3 s late (0.2 s, doubled each time); twice
that leaves as much for a thread that waits for a processor."""


def _address(variable: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise InputError(f"{variable} is {text!r}, needs an address as 127.0.0.1:4000")
    return text


def _secret(_variable: str, text: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings(Settings):
    """Checked settings of embeddings, as ``headrace embeddings run`` sets them.

    Attributes
    ----------
    cacher : HEADRACE_EMBEDDINGS_CACHER, address of the job's cacher, "host:port"; unset: the
        processes of a job of one trainer are started.
    secret : HEADRACE_EMBEDDINGS_SECRET, which the processes of a job show each other.
    role : HEADRACE_EMBEDDINGS_ROLE, trainer or reader: whether a script trains, or serves the
        batches of its own data.
    cache_bytes : HEADRACE_EMBEDDINGS_CACHE_BYTES, size of each trainer's caches by the plan.
    silence_s : HEADRACE_EMBEDDINGS_SILENCE_S, seconds without a sign of life after which a process
        of a job counts as lost: it was stopped, or its host is cut off.
    adapt : HEADRACE_EMBEDDINGS_ADAPT, on or off: whether lookahead, prefetch and shares of batches
        follow the job while it runs.
    adapt_log : HEADRACE_EMBEDDINGS_ADAPT_LOG, file to which the cacher appends the changes, as
        lines of JSON.
    """

    cacher: Annotated[str | None, "HEADRACE_EMBEDDINGS_CACHER", _address] = None
    secret: Annotated[str | None, "HEADRACE_EMBEDDINGS_SECRET", _secret] = field(
        default=None, repr=False
    )
    role: Annotated[str, "HEADRACE_EMBEDDINGS_ROLE", one_of("trainer", "reader")] = "trainer"
    cache_bytes: Annotated[int | None, "HEADRACE_EMBEDDINGS_CACHE_BYTES", whole_number(1)] = None
    silence_s: Annotated[int, "HEADRACE_EMBEDDINGS_SILENCE_S", whole_number(1)] = SILENCE_S
    adapt: Annotated[bool, "HEADRACE_EMBEDDINGS_ADAPT", on_or_off] = True
    adapt_log: Annotated[Path | None, "HEADRACE_EMBEDDINGS_ADAPT_LOG", writable_file] = None


SETTINGS = EmbeddingSettings
