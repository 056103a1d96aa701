"""Golden choices of the whole portfolio on every preset: nothing changes unnoticed."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.export import msccl_xml, mscclpp_json
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators import limits
from headrace.collectives.plan.generators.mirrored import mirrored
from headrace.collectives.plan.generators.table import ALL_GENERATORS
from headrace.collectives.plan.generators.taccl import autosketch
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.collectives.program import Program
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import HeadraceError
from headrace.topology import Topology
from headrace.topology.presets import PRESETS
from tests.conftest import GOLDEN
from tests.tiers import Sample
from tests.topology.examples import EXAMPLES

TOTAL_BYTES = 4_000_000
NEVER_S = 800.0
"""Of safety limits: a test is ended after 900 s."""
COLLECTIVES = (Collective.ALLGATHER, Collective.ALLREDUCE)
TWO_NODES = {"ndv2"}  # of others one: two take longer than a test may
SMALL = {"torus": {"shape": (2, 3)}, "mesh": {"shape": (2, 3)}, "fat_tree": {"shape": (2, 2)}}


def small(name: str) -> Topology:
    preset = PRESETS[name]
    arguments = EXAMPLES.get(name, {}) | SMALL.get(name, {})
    if "nodes" in preset.parameters:
        arguments["nodes"] = 2 if name in TWO_NODES else 1
    return preset(**arguments)


def exported(export: Callable[[Program, Target], str], program: Program) -> str:
    """Return the digest of an export, or why there is none."""
    try:
        text = export(program, Target())
    except HeadraceError as error:
        return f"not written: {str(error).splitlines()[0]}"
    return sha256(text.encode()).hexdigest()


def test_golden_plans(
    golden: Callable[[str, bytes], None], sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Effort is counted; that wall-clock safety limits could strike is ruled out here."""
    monkeypatch.setattr(limits, "SECONDS", dict.fromkeys(limits.SECONDS, NEVER_S))
    assert mirrored.__kwdefaults__ is not None
    monkeypatch.setitem(mirrored.__kwdefaults__, "limit_s", NEVER_S)
    quick = autosketch._PLANS["quick"]
    unlimited = replace(quick, limit_s=NEVER_S, effort=replace(quick.effort, limit_s=NEVER_S))
    monkeypatch.setitem(autosketch._PLANS, "quick", unlimited)
    method = Method(model=FULL, engine=NativeSearch(), effort="quick", limit_s=NEVER_S)
    found: dict[str, dict[str, object]] = {}
    exports: dict[str, dict[str, str]] = {}
    for name in sample.of(sorted(PRESETS), 1):
        for collective in COLLECTIVES:
            topology = small(name)
            plan = plan_collective(
                topology, collective, TOTAL_BYTES, generators=ALL_GENERATORS, method=method
            )
            found[f"{topology.name} {collective}"] = {
                "maker": plan.generator,
                "chunks": plan.program.demand.chunks,
                "predicted_us": float(f"{plan.predicted_us:.6g}"),
                "bound_us": float(f"{plan.bound.total_us:.6g}"),
                "program": plan.program.digest,
            }
            exports[f"{topology.name} {collective}"] = {
                "xml": exported(msccl_xml.export, plan.program),
                "json": exported(mscclpp_json.export, plan.program),
            }
    names = [f"{small(name).name} {c}" for name in sorted(PRESETS) for c in COLLECTIVES]
    for file, made in (("plans.json", found), ("plan_exports.json", exports)):
        if sample.seed is not None:  # the others as they are recorded
            made = json.loads((GOLDEN / file).read_text()) | made
        assert list(made) == names
        golden(file, (json.dumps(made, indent=1) + "\n").encode())
