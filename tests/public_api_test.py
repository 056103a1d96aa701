"""The public names are frozen: changing one is a decision, made here and in CHANGELOG.md."""

import importlib
import re
from pathlib import Path
from typing import get_origin

import pytest

import headrace
from benchmarks.house.modules import source_modules
from benchmarks.house.public import private_types
from headrace.kinds import packages_with

PUBLIC = {
    "headrace": {
        "ArtifactError",
        "CommunicationError",
        "ForkError",
        "HeadraceError",
        "Index",
        "InputError",
        "ModelError",
        "Settings",
        "SymmetryError",
        "TestbedError",
        "TopologyError",
        "VerificationError",
        "__version__",
    },
    "headrace.attention": {
        "AttentionAdaptation",
        "AttentionError",
        "AttentionMetrics",
        "AttentionPlan",
        "AttentionProfile",
        "CapacityError",
        "ClusterAction",
        "ClusterLimits",
        "ClusterState",
        "FrontierPoint",
        "CompressedCache",
        "StorageFormat",
        "LayerHeads",
        "LayerPlan",
        "LayerProfile",
        "ModelWeights",
        "SeenRequest",
        "cache",
        "compress",
        "layer_heads",
        "model_digest",
        "model_weights",
    },
    "headrace.collectives": {
        "Candidate",
        "Collective",
        "CollectiveSettings",
        "Demand",
        "DemandRow",
        "Entry",
        "HardwareProbes",
        "MscclError",
        "MscclppError",
        "OrbitPlan",
        "Plan",
        "PlanBook",
        "Predictor",
        "ProbeKind",
        "ProbeRow",
        "Program",
        "ProgramError",
        "RankGroups",
        "Schedule",
        "SketchError",
        "Transfer",
        "UnverifiedPlanError",
        "predictor",
    },
    "headrace.collectives.measure": {
        "Flow",
        "Manner",
        "Probe",
        "ProbeEffort",
        "Prober",
        "Profile",
        "ProgressCallback",
        "Regroup",
        "Runner",
        "measure_ranks",
        "survey",
    },
    "headrace.collectives.measure.launch": {
        "measure_testbed",
        "measure_torchrun",
    },
    "headrace.collectives.plan.bound": {
        "Bound",
        "Term",
        "lower_bound",
    },
    "headrace.collectives.plan.flows": {
        "Commodity",
        "Deliveries",
        "PackSettings",
        "Packing",
        "TreeColumn",
        "pack",
    },
    "headrace.collectives.plan.cost": {
        "CostModel",
        "Simulation",
        "simulate",
    },
    "headrace.collectives.plan.generators.templates": {
        "Spread",
        "direct",
        "double_binary_tree",
        "exchange",
        "full_exchange",
        "halving_doubling",
        "hierarchical",
        "recursive_doubling",
        "ring",
    },
    "headrace.collectives.plan.verify": {
        "Proof",
        "VERIFIER_VERSION",
        "verify",
    },
    "headrace.compression": {
        "Accordion",
        "AdaQS",
        "Advice",
        "AdviceRow",
        "Auto",
        "AutomaticHook",
        "CodecSpec",
        "CodecTiming",
        "CompressionCallback",
        "CompressionError",
        "CompressionPlan",
        "CompressionProfile",
        "CriticalRegimes",
        "ExchangeError",
        "ExchangeStatistics",
        "Family",
        "FormulaNetwork",
        "FsdpHook",
        "GradientBucket",
        "HandSet",
        "Hook",
        "HookMetrics",
        "HookOptions",
        "HookState",
        "HookedModel",
        "LevelMetrics",
        "LevelSchedule",
        "Levels",
        "ModelTensor",
        "NetworkTimes",
        "PayloadError",
        "Policy",
        "RecordedNetwork",
        "ScalarWriter",
        "ScheduleBinding",
        "ScheduleState",
        "ScheduleUnit",
        "ScheduledHook",
        "SeenMark",
        "ddp_hook",
        "fsdp_hook",
        "hook_pair",
        "trainer_callback",
    },
    "headrace.doctor": {
        "Diagnosis",
        "CheckFinding",
        "StageNeeds",
        "Status",
        "diagnose",
    },
    "headrace.executor": {
        "Call",
        "Columns",
        "Completions",
        "ConnectionStatistics",
        "DEFAULT_DEADLINE_S",
        "DataType",
        "Exchange",
        "ExecutableProgram",
        "Executor",
        "LoadedProgram",
        "Operator",
        "Priority",
        "ProgramDemand",
        "ProgramProof",
        "Recorded",
        "Segment",
        "StatisticsReader",
        "all_to_all",
        "background",
        "empty_shared",
        "receive",
        "send",
    },
    "headrace.embeddings": {
        "AvazuData",
        "AvazuFormat",
        "CriteoData",
        "CriteoFormat",
        "DenseScale",
        "CommitTimes",
        "ExampleBytes",
        "ProcessorSeconds",
        "RowReuse",
        "StepBytes",
        "StepCosts",
        "StepRows",
        "PredictedStep",
        "EmbeddingError",
        "EmbeddingMetrics",
        "EmbeddingPlan",
        "EmbeddingProfile",
        "EmbeddingRecord",
        "EmbeddingTable",
        "ExampleData",
        "ExampleError",
        "Examples",
        "InitialValues",
        "JobChange",
        "JobError",
        "LoaderData",
        "ParquetData",
        "ParquetFormat",
        "Rejects",
        "RowTransfers",
        "Synchronisation",
        "TableAccesses",
        "TableGroup",
        "Stateful",
        "TrainerTimes",
        "Sums",
        "ServerTimes",
        "ReaderTimes",
        "CacherTimes",
        "JobTimes",
        "TimedBatches",
        "TimesSample",
        "ProcessKey",
        "TrainingBatches",
        "fit",
    },
    "headrace.index": {
        "CapError",
        "ChoiceError",
        "Configuration",
        "ConfigurationCandidate",
        "ConfigurationError",
        "ConfigurationProposer",
        "DurableBatch",
        "DurableIndex",
        "FolderError",
        "Index",
        "IndexAdaptation",
        "IndexCursor",
        "IndexItems",
        "IndexMetrics",
        "IndexPlan",
        "IndexProfile",
        "InvariantError",
        "KeysError",
        "PlanningError",
        "Proposal",
        "SeenActivity",
        "SeenWorkload",
        "SelectedKeys",
        "ShardedIndex",
        "Trace",
        "TraceEncoding",
        "TraceError",
        "TraceRecorder",
        "TuningAction",
        "TuningLimits",
        "TuningOutcome",
        "TuningPhase",
        "TuningState",
        "include",
        "open",
    },
    "headrace.memory": {
        "AttributeChange",
        "BlockPlan",
        "BudgetError",
        "BudgetEstimate",
        "Capture",
        "CaptureError",
        "EagerStep",
        "Exactness",
        "FittedBlocks",
        "FittedModule",
        "Graph",
        "HeldBytes",
        "Implementation",
        "ImplementationError",
        "MemoryMetrics",
        "MemoryPartitioner",
        "MemoryPlan",
        "MemoryProfile",
        "MismatchError",
        "ModelInput",
        "Operator",
        "PreparedStep",
        "PreparedSteps",
        "Schedule",
        "ScheduleError",
        "ScheduledStep",
        "SolveProgress",
        "Step",
        "StepEstimate",
        "Storage",
        "TracedCall",
        "VerifiedFigures",
        "estimate",
        "fit",
        "fit_blocks",
        "partitioner",
    },
    "headrace.memory.operators": {
        "CopyStore",
        "Creation",
        "Intermediate",
        "Variant",
        "bfloat16_store",
        "copy_variants",
        "host_store",
        "is_rewritten",
        "rewrite",
        "variants",
    },
    "headrace.demo": {
        "TrainingResult",
        "run_training",
    },
    "headrace.files": {
        "decoded",
        "load_json",
        "parse_json",
        "read_bytes",
        "read_text",
        "refuse_pipe",
        "sync_folder",
        "whole_file",
        "whole_files",
        "without_infinities",
        "write_whole",
    },
    "headrace.report": {
        "Page",
        "page_of",
    },
    "headrace.solver": {
        "LinearModel",
        "LinearProgram",
        "LinearSolution",
        "Matrix",
        "Parameters",
        "Proved",
        "Result",
        "SolverProgress",
        "Stop",
        "import_cp_model",
        "solve",
        "solve_cpsat",
    },
    "headrace.testbed": {
        "Host",
        "Rack",
        "Testbed",
        "Record",
        "TestbedSpec",
        "pace_rate",
        "rank_environment",
        "rank_roles",
        "run_ranks",
    },
    "headrace.topology": {
        "BYTES_PER_MB",
        "Link",
        "LinkColumns",
        "Profile",
        "SharedCapacity",
        "Switch",
        "Topology",
        "beta_from_bytes_per_s",
        "subgraph",
        "transposed",
        "without_local_alpha",
    },
    "headrace.topology.importers": {
        "FORMATS",
        "Format",
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
        "Inter",
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
    "headrace.artifact": {
        "Artifact",
        "Table",
        "canonical_json",
        "check_target",
        "columns_of",
        "from_bytes",
        "load",
        "plain_document",
        "write_file",
    },
    "headrace.fields": {
        "Field",
        "boolean",
        "conform",
        "integer",
        "items",
        "number",
        "shown",
        "table",
        "text",
    },
    "headrace.job": {
        "Records",
    },
    "headrace.launch": {
        "Message",
        "OnLine",
        "ProcessGroup",
        "Receive",
        "Role",
        "Roles",
        "Send",
        "Start",
        "Streams",
        "run_job",
        "run_worker",
        "start_local",
    },
    "headrace.settings": {
        "Parser",
        "Settings",
        "child_environment",
        "drop_width_of_zero",
        "existing_file",
        "on_or_off",
        "one_of",
        "read_local_data_sets",
        "sections",
        "whole_number",
        "writable_file",
    },
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_the_frozen_ones(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


def test_types_in_public_annotations_are_public() -> None:
    """Whoever annotates what a public function takes or returns can import the type."""
    assert private_types(source_modules(Path(headrace.__file__).parent.parent)) == {}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_classes_name_a_facade_that_offers_them(module: str) -> None:
    """Pickles, tracebacks and `repr` show this name: `offered_by` gives it."""
    for name in PUBLIC[module]:
        value = getattr(importlib.import_module(module), name)
        native = getattr(value, "__module__", "") == "headrace._native"  # has no pickles
        if isinstance(value, type) and value.__module__.startswith("headrace.") and not native:
            assert name in PUBLIC.get(value.__module__, ()), f"{value.__module__}.{name}"


@pytest.mark.parametrize("module", PUBLIC)
def test_names_that_a_facade_loads_later_are_listed_by_dir(module: str) -> None:
    assert {*dir(importlib.import_module(module))} >= PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_exists_and_is_documented(module: str) -> None:
    found = importlib.import_module(module)
    assert len(set(found.__all__)) == len(found.__all__)
    for name in found.__all__:
        value = getattr(found, name)
        alias = not isinstance(value, type) and get_origin(value) is not None
        assert alias or not callable(value) or value.__doc__, f"{module}.{name} has no docstring"


def test_every_module_that_declares_public_names_is_frozen_here() -> None:
    root = Path(headrace.__file__).parent
    declaring = {
        ".".join(("headrace", *path.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in root.rglob("*.py")
        if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)
    }
    assert declaring == set(PUBLIC)


def drawn_tree(text: str) -> dict[str, list[str]]:
    """Exception -> its bases, as drawn by indentation (parents) and in brackets (others)."""
    found: dict[str, list[str]] = {}
    path: list[str] = []
    for line in text.splitlines():
        if drawn := re.match(r"    ([│├└─ ]*)(\w+)(?: \((\w+)\))?(?=  |$)", line):
            depth = len(drawn[1]) // 4
            path[depth:] = [drawn[2]]
            found[drawn[2]] = [path[depth - 1] if depth else "Exception"]
            found[drawn[2]] += [drawn[3]] if drawn[3] else []
    return found


@pytest.mark.parametrize(
    "module", ["headrace.errors", *(f"headrace.{name}.errors" for name in packages_with("errors"))]
)
def test_the_error_tree_is_the_one_drawn_in_its_docstring(module: str) -> None:
    errors = importlib.import_module(module)
    drawn = drawn_tree(str(errors.__doc__))
    source = Path(str(errors.__file__)).read_text()
    assert set(drawn) >= {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and re.search(rf"^class {name}\b", source, re.MULTILINE)
    }
    for name, bases in drawn.items():
        found = getattr(errors, name, None) or getattr(headrace, name)  # the shared ones
        assert [base.__name__ for base in found.__bases__] == bases, name


def test_wrong_inputs_are_value_errors_too() -> None:
    assert issubclass(headrace.InputError, ValueError)
    for name in headrace.__all__:
        value = getattr(headrace, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, headrace.HeadraceError)
            assert issubclass(value, ValueError) == issubclass(value, headrace.InputError)
