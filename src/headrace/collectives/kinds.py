"""Artifact kinds of collectives, and the formats of other runtimes that are checked."""

from headrace.kinds import ArtifactKind, ForeignFormat, deferred

KINDS = (
    ArtifactKind(
        name="plan",
        schema=2,
        summary="a proven program for one collective and size, with its bound and candidates",
        documentation="plan-format.md",
        load=deferred("headrace.collectives.plan.plan:Plan.from_artifact"),
        show=deferred("headrace.collectives.cli.show:show_plan"),
        verify=deferred("headrace.collectives.cli.show:verify_plan"),
        page=deferred("headrace.collectives.report.plan_page:plan_page"),
    ),
    ArtifactKind(
        name="plan-book",
        schema=2,
        summary="proven programs for every collective and size on one network",
        documentation="plan-format.md",
        load=deferred("headrace.collectives.plan.book:PlanBook.from_artifact"),
        show=deferred("headrace.collectives.cli.show:show_book"),
        verify=deferred("headrace.collectives.cli.show:verify_book"),
        page=deferred("headrace.collectives.report.book_page:book_page"),
    ),
    ArtifactKind(
        name="orbit-plan",
        schema=1,
        summary="one rank's sends, and the symmetries that map them to all ranks",
        documentation="plan-format.md",
        load=deferred("headrace.collectives.plan.generators.orbits.plan:OrbitPlan.from_artifact"),
        verify=deferred("headrace.collectives.cli.show:verify_orbit_plan"),
    ),
    ArtifactKind(
        name="program",
        schema=2,
        summary="lanes, steps and dependencies of one collective",
        documentation="plan-format.md",
        load=deferred("headrace.collectives.program:Program.from_artifact"),
        verify=deferred("headrace.collectives.cli.show:verify_program"),
    ),
    ArtifactKind(
        name="hardware-probes",
        schema=1,
        summary="recorded probes of one box's PCIe hardware",
        documentation="adaptation.md",
        load=deferred("headrace.collectives.measure.pcie.probes:HardwareProbes.from_artifact"),
    ),
)

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
