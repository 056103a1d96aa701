"""``headrace topology infer``: hidden hardware from recorded probes, and the order of GPUs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.former import Former
from headrace.cli.options import output_option, topology_option
from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace.collectives.measure.pcie.inference import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """Hidden hardware, with probabilities, and the order of the GPUs for a topology."""

    nearest_cpu: int
    switches: list[list[int]]
    nic_gpus: list[int]
    cpu_confidence: float
    switch_confidence: float
    nic_confidence: float
    notes: list[str]
    visible_devices: list[int] | None
    file: WrittenFile | None


def infer_command(
    probes: Annotated[
        Path,
        typer.Argument(
            help="Recorded probes: JSON, CSV or a hardware-probes artifact.", metavar="PROBES"
        ),
    ],
    machine: Annotated[
        Path | None,
        topology_option(
            "whose links decide which orders of the GPUs are equivalent: prints the "
            "CUDA_VISIBLE_DEVICES that brings the NIC's GPUs to --near-nic"
        ),
        Former("--machine"),
    ] = None,
    near_nic: Annotated[
        str, typer.Option(help="Ranks of a host that plans expect beside the NIC.", metavar="RANKS")
    ] = "0",
    output: Annotated[
        Path | None,
        output_option(
            "File to write: the machine's topology, in that order, with the limits of PCIe "
            "switches between hosts; needs --topology."
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Least probability of an answer; below it there is none.")
    ] = 0.95,
) -> InferenceResult:
    """Infer from probes the CPU nearest to the NIC, and the GPUs that share PCIe switches.

    Answers come with their probability. Where the probes cannot decide, the error names the
    question, and the probes to repeat.

    Example: headrace topology infer probes.json
    """
    from headrace.collectives.measure.pcie.inference import infer_hardware
    from headrace.collectives.measure.pcie.probes import HardwareProbes

    if not 0.5 <= confidence < 1.0:
        raise InputError(f"--confidence is {confidence}, needs at least 0.5 and less than 1")
    if output is not None and machine is None:
        raise InputError("--output is a machine's topology: needs --topology")
    places = _places(near_nic)
    hardware = infer_hardware(HardwareProbes.load(probes), confidence)
    console = terminal()
    console.print(_answers(hardware))
    for note in hardware.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    order = None
    if machine is not None:
        order = _place(console, hardware, machine, places, output)
    return _result(hardware, order, output)


def _result(hardware: "Hardware", order: list[int] | None, output: Path | None) -> InferenceResult:
    return result_of(
        InferenceResult,
        hardware,
        switches=[list(group) for group in hardware.switches],
        nic_gpus=list(hardware.nic_gpus),
        notes=list(hardware.notes),
        visible_devices=order,
        file=None if output is None else WrittenFile.at(output),
    )


def _place(
    console: Console, hardware: "Hardware", machine: Path, places: list[int], output: Path | None
) -> list[int]:
    from headrace.collectives.cli.network import read_topology
    from headrace.collectives.measure.pcie.gpu_order import (
        visible_devices,
        visible_order,
        with_pcie,
    )

    topology = read_topology(machine)
    order = visible_order(topology, hardware, places)
    if order == tuple(range(len(order))):
        console.print("The GPUs are in a good order as they are.")
    console.print(visible_devices(order), markup=False, highlight=False, soft_wrap=True)
    if output is None:
        return list(order)
    placed = with_pcie(topology, hardware, order)
    facts = {
        "nearest_cpu": hardware.nearest_cpu,
        "pcie_switches": [list(group) for group in hardware.switches],
        "nic_gpus": list(hardware.nic_gpus),
        "visible_devices": list(order),
    }
    placed.save(output, {"machine": str(machine), "inferred": facts})
    console.print(f"Wrote [bold]{text_of(output)}[/].", soft_wrap=True)
    return list(order)


def _places(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--near-nic is {text!r}, needs ranks such as 0 or 0,1") from error


def _answers(hardware: "Hardware") -> Table:
    table = Table(box=None)
    table.add_column("question")
    table.add_column("answer")
    table.add_column("probability", justify="right")
    loopbacks = ", ".join(f"{us:.3g}" for us in hardware.loopback_us)
    table.add_row(
        "CPU nearest to the NIC",
        f"{hardware.nearest_cpu} (loopbacks by CPU: {loopbacks} us)",
        _probability(hardware.cpu_confidence),
    )
    shared = [group for group in hardware.switches if len(group) > 1]
    slowed = "" if hardware.pair_ratio is None else f" (to {hardware.pair_ratio:z.0%} of alone)"
    table.add_row(
        "GPUs that share a PCIe switch",
        (", ".join(map(_set, shared)) or "none") + slowed,
        _probability(hardware.switch_confidence),
    )
    table.add_row(
        "GPUs that share it with the NIC",
        _set(hardware.nic_gpus) if hardware.nic_gpus else "none",
        _probability(hardware.nic_confidence),
    )
    return table


def _probability(value: float) -> str:
    return ">0.9999" if value > 0.9999 else f"{value:.4f}"


def _set(group: tuple[int, ...]) -> str:
    return "{" + " ".join(map(str, group)) + "}"
