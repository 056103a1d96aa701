"""Settings of compression from the environment: the shared ones, and their own section."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headrace.settings import Settings, writable_file


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings(Settings):
    """Checked settings of compression.

    Attributes
    ----------
    compression_log : HEADRACE_COMPRESSION_LOG, file to which rank 0 appends the decisions on levels
        of compression, as lines of JSON.
    """

    compression_log: Annotated[Path | None, "HEADRACE_COMPRESSION_LOG", writable_file] = None


SETTINGS = CompressionSettings
