"""Events as lines of JSON that every reader takes."""

import json
import math
from pathlib import Path

from headrace.job.records import Records


def refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    """An error of NaN was written as ``NaN``, which readers other than Python's refuse."""
    records = Records(tmp_path / "log")
    records.add("observed", error=math.nan, norms={"a": math.inf, "b": (1.5, -math.inf)})
    line = (tmp_path / "log").read_text()
    row = json.loads(line, parse_constant=refuse)
    assert (row["error"], row["norms"]) == (None, {"a": None, "b": [1.5, None]})
    assert math.isnan(records.events[0]["error"])
