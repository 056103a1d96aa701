"""Settings of collectives from the environment: the shared ones, and their own section."""

from pathlib import Path
from typing import Annotated

from headrace.facades import public_value
from headrace.settings import (
    Settings,
    existing_file,
    on_or_off,
    one_of,
    whole_number,
    writable_file,
)

_MAX_CHANNELS = 64
_MAX_THREADS = 64


def _is_one(_variable: str, text: str) -> bool:
    return text == "1"


@public_value("headrace.collectives")
class CollectiveSettings(Settings):
    """Checked settings of collectives.

    Attributes
    ----------
    plan_book : HEADRACE_PLAN_BOOK, file with the plan book to choose plans from; unset: templates.
    channels : HEADRACE_CHANNELS, connections per pair of ranks, 1 to 64. Calls of over 256 KiB,
        and all-to-alls, between hosts are spread evenly over them: for networks that limit each
        connection.
    threads : HEADRACE_THREADS, limit of this rank's threads that move a group's bytes concurrently,
        1 to 64: for hosts with idle processors, where one thread is too slow for all connections.
    shared_memory : HEADRACE_SHARED_MEMORY, on or off: whether ranks of one host move data through
        shared memory (else through TCP).
    measure : HEADRACE_MEASURE, whether the start of a job on several hosts without a plan book
        measures the network (some 10 s) and plans for it: auto (unless a profile of these hosts is
        cached and valid), always, or off. Rank 0's applies.
    adapt : HEADRACE_ADAPT, on or off: whether plans are adapted to the network while the job runs,
        for jobs on several hosts with a plan book.
    adapt_log : HEADRACE_ADAPT_LOG, file to which rank 0 appends the events of adaptation, as lines
        of JSON.
    recorder_entries : TORCH_FR_BUFFER_SIZE, calls that torch's flight recorder keeps; those of
        headrace are recorded if it is set, and above 0.
    nccl_recorder_entries : TORCH_NCCL_TRACE_BUFFER_SIZE, the same where the former is not set.
    nan_check : TORCH_DIST_NAN_CHECK, "1" for torch to check the inputs of every call for NaN.
    """

    plan_book: Annotated[Path | None, "HEADRACE_PLAN_BOOK", existing_file] = None
    channels: Annotated[int, "HEADRACE_CHANNELS", whole_number(1, _MAX_CHANNELS)] = 1
    threads: Annotated[int, "HEADRACE_THREADS", whole_number(1, _MAX_THREADS)] = 1
    shared_memory: Annotated[bool, "HEADRACE_SHARED_MEMORY", on_or_off] = True
    measure: Annotated[str, "HEADRACE_MEASURE", one_of("auto", "off", "always")] = "auto"
    adapt: Annotated[bool, "HEADRACE_ADAPT", on_or_off] = True
    adapt_log: Annotated[Path | None, "HEADRACE_ADAPT_LOG", writable_file] = None
    recorder_entries: Annotated[int | None, "TORCH_FR_BUFFER_SIZE", whole_number(0)] = None
    nccl_recorder_entries: Annotated[
        int | None, "TORCH_NCCL_TRACE_BUFFER_SIZE", whole_number(0)
    ] = None
    nan_check: Annotated[bool, "TORCH_DIST_NAN_CHECK", _is_one] = False

    @property
    def observed(self) -> bool:
        """Return whether torch's own tools observe every call."""
        recorded = self.recorder_entries
        if recorded is None:
            recorded = self.nccl_recorder_entries
        return bool(recorded) or self.nan_check


SETTINGS = CollectiveSettings
