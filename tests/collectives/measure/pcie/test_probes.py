"""Files of recorded probes: three forms, and errors that say where."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.instruments.simulated_hardware import SimulatedBox, simulate_probes
from headrace.collectives.measure.pcie.probes import HardwareProbes
from headrace.errors import ArtifactError, InputError

ROWS = [["loopback", None, None, 0, 1.9], ["alone", 1, None, 0, 12.0], ["pair", 0, 1, 0, 6.0]]


def same(one: HardwareProbes, two: HardwareProbes) -> bool:
    columns = ("probe", "gpu", "other", "cpu", "value")
    return (one.cpus, one.gpus) == (two.cpus, two.gpus) and all(
        np.array_equal(getattr(one, name), getattr(two, name)) for name in columns
    )


def test_artifact_json_and_csv_say_the_same(tmp_path: Path) -> None:
    probes = HardwareProbes.from_bytes(json.dumps({"cpus": 1, "gpus": 2, "rows": ROWS}).encode())
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in ROWS]
    (tmp_path / "csv").write_text("\n".join(["probe,gpu,other,cpu,value", *lines]))
    assert same(HardwareProbes.load(tmp_path / "csv"), probes)
    probes.save(tmp_path / "artifact")
    assert same(HardwareProbes.load(tmp_path / "artifact"), probes)


def test_what_was_not_measured_is_left_out() -> None:
    rows = [*ROWS, ["alone", 0, None, 0, None]]
    probes = HardwareProbes.from_bytes(json.dumps({"cpus": 1, "gpus": 2, "rows": rows}).encode())
    assert len(probes.value) == len(ROWS)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (["alone", 2, None, 0, 1.0], r"rows\[3\]: field 'gpu' is 2, needs 0 to 1"),
        (["alone", None, None, 0, 1.0], r"rows\[3\]: field 'gpu' is -1, needs 0 to 1"),
        (["pair", 1, 1, 0, 1.0], r"rows\[3\]: field 'other' is 1, the same as 'gpu'"),
        (["pair", 1, None, 0, 1.0], r"rows\[3\]: field 'other' is -1, needs 0 to 1"),
        (["alone", 1, None, 1, 1.0], r"rows\[3\]: field 'cpu' is 1, needs 0 to 0"),
        (["alone", 1, None, 0, -1.0], r"rows\[3\]: field 'value' is -1.0, needs a finite number"),
        (["alone", 1, None, 0, "fast"], r"'rows\[3\].value': 'fast' is not a number"),
        (["alone", 1.5, None, 0, 1.0], r"'rows\[3\].gpu': 1.5 is not an integer"),
        (["alone", 1 << 40, None, 0, 1.0], r"'rows\[3\].gpu' is \d+, needs -1 to 63"),
        (["guess", 1, None, 0, 1.0], r"'rows\[3\].probe' is 'guess', needs one of loopback"),
        (["alone", 1, None], r"'rows\[3\]' has 3 cells"),
    ],
)
def test_wrong_rows_are_named(row: list[object], says: str) -> None:
    text = json.dumps({"cpus": 1, "gpus": 2, "rows": [*ROWS, row]})
    with pytest.raises(ArtifactError, match=says):
        HardwareProbes.from_bytes(text.encode())


@pytest.mark.parametrize("name", ["probe", "gpu", "other", "cpu"])
def test_numbers_of_devices_are_integers(name: str) -> None:
    """Of an artifact, which has a type for each column: half a GPU was an index error."""
    probes = HardwareProbes.from_bytes(json.dumps({"cpus": 1, "gpus": 2, "rows": ROWS}).encode())
    halves = getattr(probes, name) + 0.5
    with pytest.raises(ArtifactError, match=f"column '{name}' has type float64, needs integers"):
        replace(probes, **{name: halves})


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        HardwareProbes.load(tmp_path / "nowhere")
    (tmp_path / "x").write_text('{"gpus": 2, "rows": []}')
    with pytest.raises(ArtifactError, match=r"x: field 'cpus' is missing"):
        HardwareProbes.load(tmp_path / "x")
    for raw, says in (
        (b'{"cpus": 1, "gpus": 1, "rows": 3}', "field 'rows': 3 is not a list"),
        (b'{"cpus": 1000, "gpus": 1, "rows": []}', "field 'cpus' is 1000, needs 1 to 64"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "byte 0 is no UTF-8"),
        (b"gpu,value\n1,2", "the first line is 'gpu,value', needs 'probe,gpu,other,cpu,value'"),
        (b"", "the first line is ''"),
    ):
        with pytest.raises(ArtifactError, match=says):
            HardwareProbes.from_bytes(raw)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_refused(raw: bytes) -> None:
    for prefix in (b"", b"{", b"probe,gpu,other,cpu,value\n", b'{"cpus":1,"gpus":1,"rows":['):
        try:
            HardwareProbes.from_bytes(prefix + raw)
        except InputError:
            continue


def test_equal_seeds_give_equal_tables() -> None:
    box = SimulatedBox(switch_cpu=(0, 1), gpu_switch=(0, 0, 1))
    one, two, other = (simulate_probes(box, seed=seed) for seed in (3, 3, 4))
    assert same(one, two)
    assert not same(one, other)
    assert one.to_artifact().digest == two.to_artifact().digest


def test_a_box_knows_its_switches() -> None:
    with pytest.raises(InputError, match=r"gpu_switch\[1\] is 1, needs 0 to 0"):
        SimulatedBox(switch_cpu=(0,), gpu_switch=(0, 1))
