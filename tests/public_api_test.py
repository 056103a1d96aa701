"""The public names are frozen: changing one is a decision, made here and in CHANGELOG.md."""

import ast
import importlib
from pathlib import Path

import pytest

import headrace

PUBLIC = {
    "headrace": {
        "ArtifactError",
        "CommunicationError",
        "HeadraceError",
        "InputError",
        "ProgramError",
        "Settings",
        "TestbedError",
        "TopologyError",
        "UnverifiedPlanError",
        "VerificationError",
        "__version__",
    },
    "headrace.collectives.measure": {"Effort", "Profile", "measure_ranks", "survey"},
    "headrace.collectives.measure.launch": {"measure_testbed", "measure_torchrun"},
    "headrace.collectives.plan.book": {
        "ALLREDUCE_SIZES",
        "MAX_ROOTS",
        "OTHER_SIZES",
        "Entry",
        "PlanBook",
        "build_book",
    },
    "headrace.collectives.plan.portfolio": {
        "GENERATORS",
        "Portfolio",
        "plan_collective",
        "predict_us",
        "rescore",
    },
    "headrace.collectives.plan.templates": {
        "direct",
        "double_binary_tree",
        "exchange",
        "full_exchange",
        "halving_doubling",
        "hierarchical",
        "recursive_doubling",
        "ring",
    },
    "headrace.collectives.plan.verify": {"VERIFIER_VERSION", "Proof", "verify"},
    "headrace.demo": {"TrainingResult", "run_training"},
    "headrace.testbed": {
        "Host",
        "Rack",
        "Testbed",
        "TestbedSpec",
        "pace_rate",
        "rank_environment",
        "run_ranks",
    },
    "headrace.topology": {
        "BYTES_PER_MB",
        "Link",
        "LinkColumns",
        "SharedCapacity",
        "Switch",
        "Topology",
        "beta_from_bytes_per_s",
        "perturbed",
        "subgraph",
        "transposed",
        "without_local_alpha",
    },
    "headrace.topology.importers": {
        "FORMATS",
        "LinkCosts",
        "NVLINK_BYTES_PER_S",
        "format_of",
        "import_topology",
        "parse_edges",
        "parse_nccl_xml",
        "parse_nvidia_smi",
        "parse_taccl",
    },
    "headrace.topology.presets": {
        "PRESETS",
        "Preset",
        "dgx1",
        "dgx2",
        "dgx2_taccl_1mb",
        "dgx_a100",
        "dgx_h100",
        "fat_tree",
        "hub_and_spoke",
        "mesh",
        "mi250",
        "ndv2",
        "ndv2_taccl_1mb",
        "racks",
        "ring",
        "torus",
        "uniform",
    },
    "headrace.collectives.measure.hardware": {"Hardware", "infer_hardware"},
    "headrace.collectives.measure.hardware_probes": {"HardwareProbes", "Probe"},
    "headrace.collectives.measure.placement": {
        "box_of",
        "visible_devices",
        "visible_order",
        "with_pcie",
    },
    "headrace.collectives.measure.simulated_hardware": {"Box", "simulate_probes"},
    "headrace.report": {"page_of"},
    "headrace.topology.symmetry": {
        "automorphism_generators",
        "automorphisms",
        "generated_group",
        "is_automorphism",
        "link_image",
        "offset_permutation",
        "offset_symmetries",
        "orbits",
        "require_automorphism",
        "translations",
    },
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_the_frozen_ones(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_exists_and_is_documented(module: str) -> None:
    found = importlib.import_module(module)
    assert len(set(found.__all__)) == len(found.__all__)
    for name in found.__all__:
        value = getattr(found, name)
        assert not callable(value) or value.__doc__, f"{module}.{name} has no docstring"


def test_every_module_that_declares_public_names_is_frozen_here() -> None:
    root = Path(headrace.__file__).parent
    declaring = {
        ".".join(("headrace", *path.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in root.rglob("*.py")
        if any(
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
            for node in ast.parse(path.read_text()).body
        )
    }
    assert declaring == set(PUBLIC)


def test_the_error_tree_is_the_one_drawn_in_its_docstring() -> None:
    errors = importlib.import_module("headrace.errors")
    drawn = errors.__doc__
    for name in headrace.__all__:
        value = getattr(headrace, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, headrace.HeadraceError)
            assert name in drawn
            assert issubclass(value, ValueError) == issubclass(value, headrace.InputError)
