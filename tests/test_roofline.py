"""Files of modelled devices."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import InputError
from headrace.roofline import Roofline, load_roofline

P100: dict[str, Any] = {"name": "P100", "flops_per_s": 9.3e12, "bytes_per_s": 732e9, "launch_us": 5}


def written(folder: Path, content: object) -> Path:
    path = folder / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_device_is_read(tmp_path: Path) -> None:
    assert load_roofline(written(tmp_path, P100)) == Roofline(**P100)
    whole = {**P100, "host_bytes_per_s": 16e9}
    assert load_roofline(written(tmp_path, whole)).host_bytes_per_s == 16e9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([1], r"\[1\] is not an object"),
        ({**P100, "name": 3}, "field 'name': 3 is not a text"),
        ({"name": "P100"}, "field 'flops_per_s' is missing"),
        ({**P100, "bytes_per_s": 0}, "field 'bytes_per_s' is 0, needs 1 to 1e24"),
        ({**P100, "launch_us": -1}, "field 'launch_us' is -1, needs 0 to 1e24"),
        ({**P100, "launch_us": "5"}, "field 'launch_us': '5' is not a number"),
        ({**P100, "flops": 1}, "field 'flops' is unknown, needs one of name, flops_per_s"),
    ],
)
def test_files_that_are_none(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"device.json: {message}"):
        load_roofline(written(tmp_path, content))
