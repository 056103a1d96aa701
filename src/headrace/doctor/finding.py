"""The result of one check."""

import enum

from headrace.facades import offered_by, public_value


@offered_by("headrace.doctor")
class Status(enum.Enum):
    """The outcome of a check: it works, it works within a limit that is named, or it does not."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@public_value("headrace.doctor")
class CheckFinding:
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

    @classmethod
    def ok(cls, name: str, text: str) -> "CheckFinding":
        """Return the finding of a check of what works."""
        return cls(name=name, status=Status.OK, text=text)

    @classmethod
    def limited(cls, name: str, text: str, *, remedy: str) -> "CheckFinding":
        """Return the finding of a check of what works within a limit, which `text` names."""
        return cls(name=name, status=Status.LIMITED, text=text, remedy=remedy)

    @classmethod
    def missing(cls, name: str, text: str, *, remedy: str = "") -> "CheckFinding":
        """Return the finding of a check of what does not work."""
        return cls(name=name, status=Status.MISSING, text=text, remedy=remedy)

    def to_json(self) -> dict[str, str]:
        """Return it as a value of JSON."""
        return {
            "name": self.name,
            "status": self.status.value,
            "text": self.text,
            "remedy": self.remedy,
        }
