"""Fields of a testbed file; errors name the place, what was found and what is allowed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import TestbedError
from headrace.testbed.rates import parse_rate

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_NAME_ALLOWED = "a lower-case letter, then up to 30 lower-case letters, digits or '-'"


class Fields:
    """Checks of single fields; `source` names the file in errors."""

    def __init__(self, source: str) -> None:
        self.source = source

    def check_fields(self, where: str, table: Mapping[str, Any], allowed: Sequence[str]) -> None:
        """Reject unknown fields: mostly spelling mistakes."""
        for field in table:
            if field not in allowed:
                raise TestbedError(
                    f"{self.source}: field '{where}{field}' is unknown, needs one of "
                    f"{', '.join(allowed)}"
                )

    def table_at(self, field: str, found: Any) -> Mapping[str, Any]:
        """Return `found` if it is a table."""
        if not isinstance(found, dict):
            raise self.wrong(field, found, "a table")
        return found

    def name_at(self, field: str, found: Any) -> str:
        """Return `found` if it can be part of the kernel's names."""
        if not isinstance(found, str) or not _NAME.fullmatch(found):
            raise self.wrong(field, found, _NAME_ALLOWED)
        return found

    def rate_at(self, field: str, found: Any) -> int:
        """Return a rate in bytes a second."""
        try:
            return parse_rate(found)
        except TestbedError as error:
            raise TestbedError(f"{self.source}: field '{field}': {error}") from None

    def wrong(self, field: str, found: Any, allowed: str) -> TestbedError:
        """Return the error about one field."""
        state = "is missing" if found is None else f"is {found!r}"
        return TestbedError(f"{self.source}: field '{field}' {state}, needs {allowed}")
