"""``headrace topology``: write the topology of a known machine, or of another tool's file."""

import types
import typing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import headrace
from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.former import Former
from headrace.cli.options import output_option, rate_option
from headrace.errors import InputError, TopologyError
from headrace.units import parse_bandwidth

if TYPE_CHECKING:
    from headrace.topology import Topology
    from headrace.topology.importers import LinkCosts
    from headrace.topology.presets import Preset

_OPTIONS = {
    "n": "--ranks N",
    "ranks": "--ranks N",
    "shape": "--shape 4x4",
    "hosts_per_rack": "--shape 4x4",
}
"""The options of parameters that have one of their own."""

app = typer.Typer(no_args_is_help=True)


class FileFormat(StrEnum):
    """File formats, by the names of the option."""

    AUTO = "auto"
    TACCL = "taccl"
    EDGES = "edges"
    NVIDIA_SMI = "nvidia-smi"
    NCCL_XML = "nccl-xml"


class Between(StrEnum):
    """GPUs of different nodes that are linked."""

    AUTO = "auto"
    ALL = "all"
    RAILS = "rails"


Output = Annotated[Path, output_option("File to write: the topology.")]
InterOption = Annotated[
    Between,
    typer.Option(
        help="Links between nodes: all GPUs with all; rails, GPU i with GPU i alone; auto, all up "
        "to 128 ranks."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetResult:
    """A preset, and the names of its parameters."""

    name: str
    parameters: list[str]
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetsResult:
    """The presets."""

    presets: list[PresetResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyResult:
    """A topology that was written."""

    file: WrittenFile
    name: str
    ranks: int
    hosts: int
    links: int
    shared: int
    switches: int


@app.command("presets")
def presets_command() -> PresetsResult:
    """List the presets: parameters, multicast, ports of NIC traffic.

    Example: headrace topology presets
    """
    from headrace.topology.presets import PRESETS

    table = Table(box=None, pad_edge=False)
    for column in ("preset", "parameters", "facts"):
        table.add_column(column, overflow="fold")
    for name, preset in PRESETS.items():
        table.add_row(name, escape(", ".join(preset.parameters)), escape(preset.facts))
    terminal().print(table)
    return PresetsResult(
        presets=[
            PresetResult(name=name, parameters=list(preset.parameters), facts=preset.facts)
            for name, preset in PRESETS.items()
        ]
    )


@app.command("preset")
def preset_command(
    name: Annotated[str, typer.Argument(help="See 'headrace topology presets'.")],
    output: Output,
    nodes: Annotated[int | None, typer.Option(help="Number of machines.", min=1)] = None,
    inter: InterOption = Between.AUTO,
    ranks: Annotated[
        int | None, typer.Option(help="Number of ranks, of a ring, hub and spoke, uniform.", min=1)
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Sides, as 4x4x4: of a mesh or torus, a fat tree from the leaves up."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Any other parameter, as alpha_us=0.7; repeatable.", metavar="NAME=VALUE"
        ),
    ] = None,
) -> TopologyResult:
    """Write the topology of a known kind of machine.

    Example: headrace topology preset dgx_a100 --nodes 4 -o cluster.topology
    """
    from headrace.topology.presets import PRESETS

    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown, needs one of: {', '.join(PRESETS)}")
    preset = PRESETS[name]
    arguments: dict[str, Any] = {}
    if nodes is not None:
        arguments["nodes"] = nodes
    if inter is not Between.AUTO:
        arguments["inter"] = inter.value
    if ranks is not None:
        arguments["n" if "n" in preset.parameters else "ranks"] = ranks
    if shape is not None:
        sides = _value(shape, tuple[int, ...], "--shape")
        arguments["hosts_per_rack" if "hosts_per_rack" in preset.parameters else "shape"] = sides
    for setting in settings or ():
        key, value = _setting(setting, preset)
        arguments[key] = value
    missing = preset.missing(arguments)
    if missing and arguments.keys() <= preset.parameters.keys():  # else that is what is wrong
        option = _OPTIONS.get(missing[0], f"--set {missing[0]}=VALUE")
        raise TopologyError(f"preset {name} needs parameter '{missing[0]}': give {option}")
    return _write(preset(**arguments), output, {"preset": name, "arguments": arguments})


@app.command("import")
def import_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="TACCL topology (JSON), edge list, 'nvidia-smi topo -m > FILE', or the XML that "
            "NCCL_TOPO_DUMP_FILE makes."
        ),
    ],
    output: Output,
    file_format: Annotated[
        FileFormat,
        typer.Option("--format", help="Format of the file; auto: by its beginning."),
    ] = FileFormat.AUTO,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of machines; for edge lists, of hosts that the ranks are divided among.",
            min=1,
        ),
    ] = None,
    inter: InterOption = Between.AUTO,
    nvlink: Annotated[
        int | None,
        typer.Option(
            "--nvlink-generation", help="1 to 5 (V100 2, A100 3, H100 4, B200 5): rate of a link."
        ),
    ] = None,
    nic_rate: Annotated[
        str | None,
        rate_option("Rate of a NIC each way, where the file has none"),
        Former("--nic-rate", unit="GB/s"),
    ] = None,
    pcie_rate: Annotated[
        str | None,
        rate_option("Rate of a GPU's PCIe port, where the file has none"),
        Former("--pcie-rate", unit="GB/s"),
    ] = None,
) -> TopologyResult:
    """Write the topology described by another tool's file.

    Example: nvidia-smi topo -m > topo.txt; headrace topology import topo.txt --nodes 2 -o
    cluster.topology
    """
    from headrace.topology.importers import import_topology

    topology = import_topology(
        file,
        file_format.value,
        nodes=nodes,
        inter=inter.value,
        costs=_link_costs(nvlink, nic_rate, pcie_rate),
    )
    return _write(topology, output, {"imported": file.name, "format": file_format.value})


def _link_costs(nvlink: int | None, nic_rate: str | None, pcie_rate: str | None) -> "LinkCosts":
    from headrace.topology.importers import NVLINK_BYTES_PER_S, LinkCosts

    costs = LinkCosts()
    if nvlink is not None:
        if nvlink not in NVLINK_BYTES_PER_S:
            raise InputError(f"--nvlink-generation is {nvlink}, needs 1 to 5")
        costs = replace(costs, link_bytes_per_s=NVLINK_BYTES_PER_S[nvlink])
    if nic_rate is not None:
        costs = replace(costs, nic_bytes_per_s=parse_bandwidth(nic_rate, "--nic-rate"))
    if pcie_rate is not None:
        costs = replace(costs, pcie_bytes_per_s=parse_bandwidth(pcie_rate, "--pcie-rate"))
    return costs


def _write(topology: "Topology", output: Path, made_from: dict[str, Any]) -> TopologyResult:
    topology.save(output, {"headrace": headrace.__version__, **made_from})
    console = terminal()
    table = Table(box=None, show_header=False)
    hosts = len(topology.hosts)
    table.add_row("topology", escape(topology.name))
    table.add_row("ranks", f"{topology.ranks} on {hosts} {'host' if hosts == 1 else 'hosts'}")
    table.add_row("links", f"{len(topology.links)}, sharing {len(topology.shared)} capacities")
    multicast = [switch.name for switch in topology.switches if switch.multicast]
    table.add_row("switches", f"{len(topology.switches)}, {len(multicast)} of them can multicast")
    console.print(table)
    console.print(f"Wrote [bold]{text_of(output)}[/].", soft_wrap=True)
    return result_of(
        TopologyResult,
        topology,
        file=WrittenFile.at(output),
        hosts=hosts,
        links=len(topology.links),
        shared=len(topology.shared),
        switches=len(topology.switches),
    )


def _setting(setting: str, preset: "Preset") -> tuple[str, Any]:
    name, equals, text = setting.partition("=")
    if not equals or name not in preset.parameters:
        raise InputError(
            f"--set {setting!r} is none of preset {preset.name}, needs NAME=VALUE with one of: "
            f"{', '.join(preset.parameters)}"
        )
    return name, _value(text, preset.parameters[name][0], f"--set {name}")


def _value(text: str, kind: Any, where: str) -> Any:
    """Return `text` as the type that a preset's parameter is annotated with."""
    if isinstance(kind, types.UnionType):
        kind = typing.get_args(kind)[0]
    try:
        if typing.get_origin(kind) is tuple:
            return tuple(int(part) for part in text.replace("x", ",").split(","))
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError) as error:
        needs = {int: "an integer", float: "a number", bool: "true or false"}
        raise InputError(
            f"{where} is {text!r}, needs {needs.get(kind, 'integers such as 4x4')}"
        ) from error
