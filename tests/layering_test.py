"""Dependencies go one way: topology <- measure, plan <- run <- adapt <- cli, report."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import headrace
from benchmarks.house.modules import (
    cycles,
    import_statements,
    imports_into_capabilities,
    source_modules,
)
from headrace.kinds import capabilities

SOURCE = Path(headrace.__file__).parent

# The stages of every capability, by the module or package of that name in it.
STAGES = {
    "measure": 2,
    "plan": 2,
    "run": 3,
    "trace": 4,  # starts executors to trace
    "adapt": 4,
    "cli": 5,
    "report": 5,
    "kinds": 5,  # shows and draws what it loads
}
STAGED = capabilities()
# The longest prefix of a module's name that stands here gives its layer.
LAYERS = {
    "headrace": 0,
    "headrace.accelerators": 0,
    "headrace.errors": 0,
    "headrace.evaluation": 0,
    "headrace.extras": 0,
    "headrace.facades": 0,
    "headrace.roofline": 0,
    "headrace.settings": 0,
    "headrace.artifact": 0,
    "headrace.artifact_value": 0,
    "headrace.cache": 0,
    "headrace.fields": 0,
    "headrace.files": 0,
    "headrace.forks": 0,
    "headrace.functions": 0,
    "headrace.host_memory": 0,
    "headrace.preserve": 0,
    "headrace.staging": 0,
    "headrace.units": 0,
    "headrace.kinds": 0,  # finds capabilities by name
    "headrace.notebook": 0,
    "headrace.job": 1,
    "headrace.doctor": 2,
    "headrace.launch": 1,
    "headrace.solver": 1,
    "headrace.topology": 1,
    "headrace.topology.kinds": 5,
    "headrace.testbed": 1,
    "headrace._native": 2,  # loops and the executor; planning is kept from it (PURE)
    "headrace.executor": 2,
    "headrace.registration": 4,  # begins adaptation with the group
    "headrace.torch": 4,  # calls `registration`
    "headrace.__main__": 5,
    "headrace.cli": 5,
    "headrace.report": 5,
    "headrace.demo": 5,
    "headrace.collectives.measure.launch": 4,  # starts executors to measure with
    "headrace.embeddings.measure.rates": 4,  # runs a job's parts to measure them
    **{f"headrace.{name}": 2 for name in STAGED},
    **{f"headrace.{name}.{stage}": level for name in STAGED for stage, level in STAGES.items()},
    "headrace.index.trace": 2,  # a value, not a stage
}
# A facade that offers what its capability runs; the modules below it do not import it.
FACADES = {
    "headrace.attention": 4,
    "headrace.compression": 4,
    "headrace.embeddings": 4,
    "headrace.index": 4,
    "headrace.memory": 4,
}
# Planning: pure functions over values, on any machine.
PURE = (
    "headrace.artifact",
    "headrace.artifact_value",
    "headrace.errors",
    "headrace.facades",
    "headrace.fields",
    "headrace.files",
    "headrace.solver",
    "headrace.topology",
    "headrace.collectives.demand",
    "headrace.collectives.errors",
    "headrace.collectives.program",
    "headrace.collectives.custom",
    "headrace.collectives.export",
    "headrace.collectives.plan",
    "headrace.compression.errors",
    "headrace.compression.families",
    "headrace.compression.plan",
    "headrace.compression.policy",
    "headrace.compression.profile",
    "headrace.compression.traffic",
    "headrace.embeddings.errors",
    "headrace.embeddings.plan",
    "headrace.embeddings.profile",
    "headrace.embeddings.run.process",
    "headrace.embeddings.run.rpc.calls",
    "headrace.embeddings.run.rpc.messages",
    "headrace.embeddings.tables",
    "headrace.index.configuration",
    "headrace.index.errors",
    "headrace.index.plan",
    "headrace.index.profile",
    "headrace.index.tables",
    "headrace.index.trace",
    "headrace.memory.errors",
    "headrace.memory.graph",
    "headrace.memory.plan",
    "headrace.memory.profile",
    "headrace.memory.schedule",
)
# A verifier shares no code with what it checks: values and errors are all that it may know, and
# what names the facade of its own classes.
VERIFIERS = {
    "headrace.collectives.plan.verify": (
        "headrace.errors",
        "headrace.facades",
        "headrace.collectives.demand",
        "headrace.collectives.errors",
        "headrace.collectives.program",
    ),
    "headrace.collectives.plan.generators.orbits.verify": (
        "headrace.errors",
        "headrace.collectives.demand",
        "headrace.collectives.plan.generators.orbits.plan",
    ),
    "headrace.memory.plan.verify": (
        "headrace.facades",
        "headrace.memory.errors",
        "headrace.memory.graph",
        "headrace.memory.schedule",
    ),
}


MODULES = source_modules(SOURCE.parent)


def under(module: str, *prefixes: str) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def layer(module: str) -> int:
    if module in FACADES:
        return FACADES[module]
    prefix = module
    while prefix not in LAYERS:
        prefix = prefix.rpartition(".")[0]
        assert prefix, f"{module} has no layer: add it to LAYERS"
    return LAYERS[prefix]


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, anywhere in it, lazily or for type checking too."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: line {node.lineno} has a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                is_module = submodule in MODULES or submodule == "headrace._native"
                yield submodule if is_module else str(node.module)


def test_every_folder_of_the_package_has_a_layer() -> None:
    assert len(MODULES) > 10
    for module in MODULES:
        top = ".".join(module.split(".")[:2])
        assert top in LAYERS, f"{module}: add {top} to LAYERS"


def test_imports_go_down_or_sideways() -> None:
    """`headrace` itself offers names of facades, which are loaded when they are asked for."""
    upward = [
        f"{module} imports {imported}, a layer above"
        for module in MODULES
        if module != "headrace"
        for imported in imports(MODULES[module])
        if under(imported, "headrace") and layer(imported) > layer(module)
    ]
    assert not upward


def test_capabilities_are_entered_by_their_facades_or_found_by_name() -> None:
    assert capabilities() == [
        "attention",
        "collectives",
        "compression",
        "embeddings",
        "index",
        "memory",
    ]
    assert imports_into_capabilities(MODULES) == []


def test_modules_do_not_import_each_other_in_cycles() -> None:
    """Imports anywhere in a module count, lazy ones and those for type checking too."""
    assert cycles(MODULES) == []


def test_planning_imports_neither_torch_nor_the_native_module() -> None:
    for module in MODULES:
        if under(module, *PURE):
            for imported in imports(MODULES[module]):
                assert not under(imported, "torch", "headrace._native"), f"{module}: {imported}"


def test_planning_does_not_import_measuring() -> None:
    for module in MODULES:
        if under(module, *PURE):
            for imported in imports(MODULES[module]):
                assert not under(imported, "headrace.collectives.measure"), module


def test_a_verifier_shares_no_code_with_what_it_checks() -> None:
    for verifier, may_import in VERIFIERS.items():
        files = [path for module, path in MODULES.items() if under(module, verifier)]
        assert files
        for path in files:
            for imported in imports(path):
                if under(imported, "headrace"):
                    assert under(imported, verifier, *may_import), f"{path} imports {imported}"


def test_only_settings_reads_the_environment() -> None:
    reading = re.compile(r"\bos\.(environb?|getenvb?)\b")
    readers = {module for module, path in MODULES.items() if reading.search(path.read_text())}
    assert readers == {"headrace.settings"}


def loaded_by(*statements: str) -> set[str]:
    """The modules in sys.modules after running `statements` in a fresh interpreter."""
    program = "; ".join([*statements, "import sys", "print(*sys.modules)"])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_headrace_is_light() -> None:
    assert not {"torch", "sklearn", "scipy", "headrace._native"} & loaded_by("import headrace")


def test_importing_all_of_planning_loads_neither_torch_nor_the_native_module() -> None:
    pure = [f"import {module}" for module in MODULES if under(module, *PURE)]
    assert not {"torch", "headrace._native"} & loaded_by(*pure)


def test_the_command_line_starts_without_torch_and_sklearn() -> None:
    commands = "[each.loaded for each in get_command(app).commands.values()]"
    start = "from typer.main import get_command; from headrace.cli.app import app"
    assert not {"torch", "sklearn", "scipy"} & loaded_by(start, commands)
    assert not {"numpy", "headrace.artifact", "headrace.compression"} & loaded_by(start)


def test_servers_readers_and_the_cacher_of_embeddings_start_without_torch() -> None:
    roles = ("run.process", "run.servers.row_server", "run.readers.reader_server", "adapt.cacher")
    assert "torch" not in loaded_by(*(f"import headrace.embeddings.{role}" for role in roles))
