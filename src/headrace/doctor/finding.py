"""The result of one check."""

import enum
from dataclasses import dataclass

from headrace.facades import offered_by


@offered_by("headrace.doctor")
class Status(enum.Enum):
    """The outcome of a check: it works, it works within a limit that is named, or it does not."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@offered_by("headrace.doctor")
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    name : of the check; stages name it in their ``NEEDS`` and ``HELPS``.
    status : whether it works.
    text : the state that was observed, in a line.
    remedy : the command or setting that mends it; empty where nothing is to be done.
    """

    name: str
    status: Status
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as a value of JSON."""
        return {
            "name": self.name,
            "status": self.status.value,
            "text": self.text,
            "remedy": self.remedy,
        }
