"""docs/plan-format.md and docs/sketch-format.md name what the code reads and writes."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from headrace.artifact_value import ArtifactValue
from headrace.collectives.measure.pcie.probes import HardwareProbes
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators.orbits.plan import SEND_COLUMNS, OrbitPlan
from headrace.collectives.plan.generators.taccl.sketch import parse
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.sketch.parse import parse_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import Policy, Strategy
from headrace.collectives.plan.plan import Plan
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Direction,
    Op,
    Program,
)
from headrace.topology import Topology
from headrace.topology.presets import dgx2, racks
from headrace.topology.profile import Profile
from tests.report.small import relay

DOCS = Path(__file__).parent.parent / "docs"
PLAN, SKETCH = ((DOCS / f"{name}-format.md").read_text() for name in ("plan", "sketch"))


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


@pytest.mark.parametrize(
    "value", [Topology, Profile, Program, Plan, PlanBook, OrbitPlan, HardwareProbes]
)
def test_schema_versions(value: type[ArtifactValue]) -> None:
    assert re.search(rf"^\| `{value.KIND}` \| {value.SCHEMA} \|", PLAN, re.MULTILINE)


def test_columns() -> None:
    lanes = section(PLAN, "Lanes, steps, dependencies")
    for columns in (LANE_COLUMNS, STEP_COLUMNS, DEPENDENCY_COLUMNS):
        for name, dtype in columns.items():
            assert f"| `{name}` | {dtype} |" in lanes
    for name, dtype in SEND_COLUMNS.items():
        assert f"| `{name}` | {dtype} |" in section(PLAN, "Orbit plan")
    for op in Op:
        assert f"{op.value} {op.name}" in lanes
    for direction in Direction:
        assert (
            f"{direction.value} {'receive' if direction.name == 'RECV' else direction.name.lower()}"
            in lanes
        )


def test_heads() -> None:
    made = relay().to_artifact()
    for name in made.head:
        assert f"`{name}`" in section(PLAN, "Plan")
    for name in made.head["bound"]:
        assert f"`{name}`" in section(PLAN, "Plan")
    for name in made.head["bound"]["terms"][0]:
        assert f"`{name}`" in section(PLAN, "Plan")
    for name in made.head["program"]:
        assert f"`{name}`" in PLAN
    for name in dgx2(2).to_head():
        assert f"`{name}`" in section(PLAN, "Topology")
    small = racks((2,), host_bytes_per_s=1e9, uplink_bytes_per_s=1e9)
    head = build_book(small, collectives=("allreduce",), sizes=[1 << 20]).to_artifact().head
    for name in (*head, *set(head["entries"][0]) - set(made.head)):
        assert f"`{name}`" in section(PLAN, "Plan book")


def fields_read() -> set[str]:
    """The names of fields that the sketch parser knows."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(parse))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "allow":
            names |= {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
    return names


def test_every_field_of_a_sketch_is_described() -> None:
    names = fields_read()
    assert {"nnodes", "beta_split", "input_chunkup"} <= names
    for name in names:
        assert re.search(rf"^\|.*`{name}`", SKETCH, re.MULTILINE), name
    for word in (*Policy, *Strategy, *NAMED):
        assert f"`{word}`" in SKETCH


def test_the_examples_of_sketches_load() -> None:
    whole, symmetry = re.findall(r"^```json\n(.*?)^```$", SKETCH, re.MULTILINE | re.DOTALL)
    made = apply_sketch(parse_sketch(whole), dgx2(2))
    assert len(made.symmetries) == 2
    nodes = '{"nnodes": 2, "intranode_sketch": {"strategy": "none"}, "internode_sketch": {}, '
    general = parse_sketch(nodes + symmetry.strip().removeprefix("{"))
    assert general.symmetries[0].automorphism[:2] == (8, 9)
