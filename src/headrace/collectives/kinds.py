"""Artifact kinds of collectives, and the formats of other runtimes that are checked."""

from headrace.collectives.measure.pcie.probes import HardwareProbes
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.collectives.plan.plan import Plan
from headrace.collectives.program import Program
from headrace.kinds import ForeignFormat, deferred, kind_of

PLAN = kind_of(
    Plan,
    summary="a proven program for one collective and size, with its bound and candidates",
    documentation="plan-format.md",
    show="headrace.collectives.cli.show:show_plan",
    verify="headrace.collectives.cli.show:verify_plan",
    page="headrace.collectives.report.plan_page:plan_page",
)
PLAN_BOOK = kind_of(
    PlanBook,
    summary="proven programs for every collective and size on one network",
    documentation="plan-format.md",
    show="headrace.collectives.cli.show:show_book",
    verify="headrace.collectives.cli.show:verify_book",
    page="headrace.collectives.report.book_page:book_page",
)
ORBIT_PLAN = kind_of(
    OrbitPlan,
    summary="one rank's sends, and the symmetries that map them to all ranks",
    documentation="plan-format.md",
    verify="headrace.collectives.cli.show:verify_orbit_plan",
)
PROGRAM = kind_of(
    Program,
    summary="lanes, steps and dependencies of one collective",
    documentation="plan-format.md",
    verify="headrace.collectives.cli.show:verify_program",
)
HARDWARE_PROBES = kind_of(
    HardwareProbes,
    summary="recorded probes of one box's PCIe hardware",
    documentation="adaptation.md",
)
KINDS = (PLAN, PLAN_BOOK, ORBIT_PLAN, PROGRAM, HARDWARE_PROBES)

FORMATS = (
    ForeignFormat(
        name="MSCCL XML", begins="<", verify=deferred("headrace.collectives.cli.show:verify_msccl")
    ),
    ForeignFormat(
        name="MSCCL++ JSON",
        begins="{",
        verify=deferred("headrace.collectives.cli.show:verify_mscclpp"),
        fields=frozenset({"gpus"}),
    ),
)
