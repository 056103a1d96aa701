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
    "headrace.collectives.custom": {"demand_from_head", "demand_from_json", "demand_to_head"},
    "headrace.collectives.measure": {"Effort", "Profile", "measure_ranks", "survey"},
    "headrace.collectives.measure.hardware": {"Hardware", "infer_hardware"},
    "headrace.collectives.measure.hardware_probes": {"HardwareProbes", "Probe"},
    "headrace.collectives.measure.launch": {"measure_testbed", "measure_torchrun"},
    "headrace.collectives.measure.placement": {
        "box_of",
        "visible_devices",
        "visible_order",
        "with_pcie",
    },
    "headrace.collectives.measure.simulated_hardware": {"Box", "simulate_probes"},
    "headrace.collectives.plan.book": {
        "ALLREDUCE_SIZES",
        "Entry",
        "MAX_ROOTS",
        "OTHER_SIZES",
        "PlanBook",
        "build_book",
    },
    "headrace.collectives.plan.bound": {"Bound", "Term", "lower_bound"},
    "headrace.collectives.plan.bound.cuts": {"LargeTopology", "is_large", "partitions"},
    "headrace.collectives.plan.bound.terms": {"Kinds", "Share", "kinds"},
    "headrace.collectives.plan.bound.unsplit": {"Count", "most_urgent_cut", "unsplit_bound"},
    "headrace.collectives.plan.chunks": {
        "Carriage",
        "Sends",
        "carriage_of",
        "check_sends",
        "concatenated",
        "overlapped",
        "realize",
        "reversed_sends",
        "sends_of",
    },
    "headrace.collectives.plan.cost_model": {"CostModel", "EXECUTOR", "FULL", "MODELS"},
    "headrace.collectives.plan.exact": {"Exact", "exact_schedule", "time_unit_us"},
    "headrace.collectives.plan.guided.autosketch": {"AutoSketch", "Tried", "autosketch"},
    "headrace.collectives.plan.hierarchy": {"hierarchical_plans"},
    "headrace.collectives.plan.hosts": {"Host", "Rail", "hosts_of", "rails_of", "slowest_betas"},
    "headrace.collectives.plan.images": {"chunk_images", "link_images", "send_classes"},
    "headrace.collectives.plan.matching": {
        "Attempt",
        "EFFORTS",
        "Match",
        "match",
        "symmetry_groups",
    },
    "headrace.collectives.plan.mirrored": {"Trees", "half_duplex", "mirrored", "systolic"},
    "headrace.collectives.plan.orbits": {
        "Group",
        "OrbitBound",
        "OrbitCosts",
        "OrbitFound",
        "OrbitPlan",
        "OrbitProof",
        "OrbitSimulation",
        "expand",
        "expanded_schedule",
        "group_of",
        "orbit_bound",
        "plan_orbits",
        "simulate_orbits",
        "verify_orbits",
    },
    "headrace.collectives.plan.orbits.assemble": {
        "allgather_plan",
        "allreduce_plan",
        "reduce_scatter_plan",
    },
    "headrace.collectives.plan.orbits.bound": {"OrbitBound", "orbit_bound"},
    "headrace.collectives.plan.orbits.build": {"OrbitFound", "plan_orbits"},
    "headrace.collectives.plan.orbits.classes": {
        "LinkClasses",
        "capacity_orbits",
        "link_classes",
        "link_orbits",
        "require_symmetry",
    },
    "headrace.collectives.plan.orbits.costs": {"OrbitCosts", "Representatives"},
    "headrace.collectives.plan.orbits.exchange": {"exchange_plans"},
    "headrace.collectives.plan.orbits.expand": {"MAX_SENDS", "expand", "expanded_schedule"},
    "headrace.collectives.plan.orbits.group": {"Group", "group_of"},
    "headrace.collectives.plan.orbits.grow": {"Growth", "grow"},
    "headrace.collectives.plan.orbits.levels": {"Level", "LinkGroup", "levels_of"},
    "headrace.collectives.plan.orbits.plan": {"ORBIT_COLLECTIVES", "OrbitPlan", "SEND_COLUMNS"},
    "headrace.collectives.plan.orbits.prices": {"distances", "price_rounds", "priced_us"},
    "headrace.collectives.plan.orbits.shares": {"fair_counts"},
    "headrace.collectives.plan.orbits.simulate": {"OrbitSimulation", "simulate_orbits"},
    "headrace.collectives.plan.orbits.verify": {"OrbitProof", "verify_orbits"},
    "headrace.collectives.plan.packing": {"PackSettings", "Packing", "pack"},
    "headrace.collectives.plan.packing.arborescence": {"cheapest_arborescence", "shallower"},
    "headrace.collectives.plan.packing.commodities": {
        "Column",
        "Commodity",
        "CommodityImages",
        "Loads",
        "commodities",
    },
    "headrace.collectives.plan.packing.list_schedule": {"in_order", "needed"},
    "headrace.collectives.plan.packing.packing": {"PackSettings", "Packing", "pack"},
    "headrace.collectives.plan.packing.pricing": {"Master", "Pricing"},
    "headrace.collectives.plan.packing.rounding": {"load_us", "rounded", "routes"},
    "headrace.collectives.plan.portfolio": {
        "GENERATORS",
        "Method",
        "Portfolio",
        "plan_collective",
        "predict_us",
        "rescore",
    },
    "headrace.collectives.plan.rounds": {"InRounds", "fewest_rounds", "solve_rounds"},
    "headrace.collectives.plan.search": {
        "Found",
        "Routes",
        "SearchEngine",
        "SearchInterrupted",
        "SearchSettings",
    },
    "headrace.collectives.plan.sends": {
        "Carriage",
        "Sends",
        "check_sends",
        "concatenated",
        "overlapped",
        "reversed_sends",
    },
    "headrace.collectives.plan.simulate": {"Simulation", "simulate"},
    "headrace.collectives.plan.sketch": {
        "Hyperedge",
        "Internode",
        "Intranode",
        "LogicalTopology",
        "NAMED",
        "Policy",
        "RelayMap",
        "Sketch",
        "Strategy",
        "Symmetry",
        "apply_sketch",
        "load_sketch",
        "parse_sketch",
        "sketch_to_json",
        "whole",
    },
    "headrace.collectives.plan.synthesizers": {"EVERYONE", "SYNTHESIZERS", "demanded", "sketched"},
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
    "headrace.collectives.plan.verify": {"Proof", "VERIFIER_VERSION", "verify"},
    "headrace.collectives.run.search": {"NativeSearch"},
    "headrace.demo": {"TrainingResult", "run_training"},
    "headrace.report": {"page_of"},
    "headrace.solver": {
        "LinearModel",
        "Parameters",
        "Progress",
        "Proved",
        "Result",
        "Stop",
        "enumerate_optimum",
        "import_cp_model",
        "solve",
        "solve_cpsat",
    },
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
