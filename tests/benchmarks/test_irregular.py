"""Irregular machines and exports: what nothing was compared with meets no bar."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness import Report
from benchmarks.synthesis import exports, irregular
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.errors import VerificationError


def bars_of(folder: Path) -> list[dict[str, Any]]:
    (stored,) = folder.glob("*.json")
    return json.loads(stored.read_text())["bars"]


def test_a_machine_without_an_applicable_template_meets_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figure was 1e9, which no bar refuses."""

    def planned(*_: object, generators: object, method: object) -> SimpleNamespace:
        if generators is TEMPLATES:
            raise ProgramError("no template is applicable")
        return SimpleNamespace(predicted_us=1.0, generator="matching", gap=0.0)

    monkeypatch.setattr(irregular, "plan_collective", planned)
    with Report("synthesis", bars=irregular.bars(), folder=tmp_path) as report:
        irregular.measure(report, quick=True)
    assert report.exit_code == 0
    bars = bars_of(tmp_path)
    assert len(bars) == len(irregular.MACHINES) - len(irregular.WITHOUT_TEMPLATES)
    assert [bar for bar in bars if bar["ok"]] == []


@pytest.mark.parametrize("machine", sorted(irregular.WITHOUT_TEMPLATES))
def test_machines_without_a_bar_have_no_applicable_template(machine: str) -> None:
    topology = irregular.MACHINES[machine]()
    for collective in irregular.COLLECTIVES:
        with pytest.raises(ProgramError):
            plan_collective(
                topology, collective, 1 << 20, generators=TEMPLATES, method=Method(model=FULL)
            )


def test_exports_that_lose_no_nop_meet_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file was accepted without a nop, where no file was written."""

    def refused(*_: object) -> str:
        raise VerificationError("a deadlock")

    monkeypatch.setattr(exports, "_plan", lambda *_, **__: SimpleNamespace(program=None))
    monkeypatch.setattr(exports.mscclpp_json, "export", refused)
    bar = "nop-mutants-accepted"
    with Report("synthesis", bars={bar: exports.bars()[bar]}, folder=tmp_path) as report:
        report.bar(bar, exports._barriers(report, quick=True))
    assert [each["ok"] for each in bars_of(tmp_path)] == [False]
