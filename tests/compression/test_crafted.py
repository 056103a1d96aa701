"""Profiles and plans that are altered or damaged: accepted or refused, with errors that end."""

import random
from pathlib import Path

from headrace.artifact import from_bytes
from headrace.cli.artifacts import show_command, verify_command
from headrace.compression.families import CodecSpec
from headrace.compression.plan.plan import CompressionPlan
from tests.compression.plan.cells import profile, ring
from tests.crafted_files_test import altered, damaged, read


def test_damaged_profiles_and_plans_are_read_or_refused(tmp_path: Path) -> None:
    chance = random.Random(16)
    plan = CompressionPlan.make(
        profile(),
        ring(),
        codecs=(CodecSpec.parse("sign"), CodecSpec.parse("powersgd:4")),
        memory_bytes=None,
        local_steps=16,
        provenance={},
    )
    for original, readers in (
        (profile().to_artifact(), [show_command]),
        (plan.to_artifact(), [show_command, verify_command]),
    ):
        for _ in range(80):
            raw = altered(chance, from_bytes(original.to_bytes())).to_bytes()
            read(tmp_path / "artifact", raw, readers)
        for _ in range(10):
            read(tmp_path / "artifact", damaged(chance, original.to_bytes()), [show_command])
