"""Exports are frozen byte for byte (golden/exports.json): a change of the exporter shows here."""

import json
from hashlib import sha256

from headrace.collectives.demand import Collective
from headrace.collectives.export import msccl_xml, mscclpp_json
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.program import Program
from tests.collectives.export.programs import random_program, template_programs


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _programs() -> list[tuple[str, Program]]:
    named = list(template_programs(4))[::2]
    return named + [(f"random {seed}", random_program(seed)) for seed in range(12)]


def test_exports_are_frozen(golden) -> None:
    found: dict[str, str] = {}
    for what, program in _programs():
        in_place = program.demand.collective is not Collective.ALL_TO_ALL
        for name, target in {
            "1 instance": Target(),
            "2 instances": Target(instances=2, in_place=in_place),
        }.items():
            found[f"{what}, xml, {name}"] = _digest(msccl_xml.export(program, target))
            found[f"{what}, json, {name}"] = _digest(mscclpp_json.export(program, target))
    golden("exports.json", json.dumps(found, indent=1).encode() + b"\n")
