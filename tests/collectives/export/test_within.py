"""Which programs a runtime takes, by their threadblocks alone."""

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.export import msccl_xml, mscclpp_json
from headrace.collectives.export.threadblocks import Target
from headrace.collectives.export.within import chunk_counts, forbidden
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.ir.lower import lower
from tests.collectives.export.programs import template_programs
from tests.collectives.export.test_runtimes import pipeline


def test_what_is_not_forbidden_is_exported() -> None:
    for _, program in list(template_programs(4))[::9]:
        assert forbidden(program, "strictest") == ""
        msccl_xml.export(program, Target())
        mscclpp_json.export(program, Target())


@pytest.mark.sampled(4, of="long plans")
def test_the_limit_is_named() -> None:
    assert "nchannels is 48, needs 1 to 32" in forbidden(pipeline(3000), "msccl-executor-nccl")
    assert forbidden(pipeline(3000), "msccl") == ""
    assert forbidden(pipeline(3000), "mscclpp") == ""
    many = lower(direct(Demand(collective=Collective.ALL_TO_ALL, ranks=34)))
    assert "33 threadblocks send on channel 0" in forbidden(many, "strictest")


def test_chunk_counts_are_powers_of_two() -> None:
    assert chunk_counts() == [1, 2, 4, 8, 16, 32, 64]
