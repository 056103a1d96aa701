from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import TopologyError
from headrace.topology.importers import LinkCosts, import_topology, parse_nvidia_smi
from headrace.topology.presets import dgx1, dgx_a100

SAMPLES = Path(__file__).parent.parent / "samples"
MESH = (SAMPLES / "dgx1.txt").read_text()


def structure(made):
    return (
        [(k.src, k.dst) for k in made.links],
        [(s.name, s.links) for s in made.shared],
        made.switches,
        made.rank_host,
    )


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_dgx_a100_is_the_preset(nodes: int) -> None:
    made = import_topology(SAMPLES / "dgx-a100.txt", nodes=nodes)
    assert made == dgx_a100(nodes)  # even the name, from the file's


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_v100_mesh_is_the_preset_but_for_measured_costs(nodes: int) -> None:
    made = import_topology(SAMPLES / "dgx1.txt", nodes=nodes)
    assert structure(made) == structure(dgx1(nodes))
    betas = {k.beta_us_per_mb for k in made.links if k.src < 8 and k.dst < 8}
    assert betas == {20.0, 40.0}  # two NVLinks of 25 GB/s, and one


def test_without_nvlinks_gpus_send_over_pcie() -> None:
    costs = LinkCosts(pcie_bytes_per_s=20e9, sys_bytes_per_s=8e9)
    made = import_topology(SAMPLES / "pcie.txt", costs=costs)
    assert len(made.links) == 12
    link = {(k.src, k.dst): (k.alpha_us, k.beta_us_per_mb) for k in made.links}
    assert link[0, 1] == (1.0, 50.0)
    assert link[0, 3] == (2.5, 125.0)
    ports = {s.name: s for s in made.shared}
    assert sorted(made.links[i].dst for i in ports["node0-pcie-out-2"].links) == [0, 1, 3]
    assert ports["node0-pcie-out-2"].beta_us_per_mb == 50.0
    assert made.switches == ()


def test_gpus_take_the_nearest_nic_and_equally_near_ones_are_spread() -> None:
    text = "\tGPU0 GPU1 GPU2 NIC0 NIC1\n" + "".join(
        f"GPU{i} {row}\n"
        for i, row in enumerate(("X NV2 NV2 SYS SYS", "NV2 X NV2 SYS SYS", "NV2 NV2 X SYS PIX"))
    )
    made = parse_nvidia_smi(text.encode(), "f", nodes=2)
    nic = {s.name: {made.links[i].src for i in s.links} for s in made.shared}
    assert nic["node0-nic-out-0"] == {0}
    assert nic["node0-nic-out-1"] == {1, 2}


def test_the_header_may_be_coloured_and_commands_may_stand_before_it() -> None:
    assert "\x1b[4m" in MESH
    made = parse_nvidia_smi(("$ nvidia-smi topo -m\n" + MESH).encode(), "f", name="dgx1")
    assert made == import_topology(SAMPLES / "dgx1.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: has no line of device names beginning with GPU0, needs the output of"),
        ("no devices were found", "needs the output of 'nvidia-smi topo -m'"),
        (MESH.replace("\nGPU3\t", "\nGPUx\t"), "f: row GPU3 is missing, needs the whole matrix"),
        (
            MESH.replace("NV2 ", "NVx ", 1),
            "f:2: row GPU0, column GPU1 is 'NVx', needs NV# or one of",
        ),
        (MESH.replace("NV2 ", "NV1 ", 1), "rows GPU1 and GPU0 differ about the path"),
        (MESH.replace(" X  ", "NV1 ", 1), "column GPU0 is 'NV1', needs X, as it is the GPU itself"),
        (MESH.replace("NV2 ", " X  ", 1), "column GPU1 is 'X', needs no X, as they are two GPUs"),
        (MESH.replace("\nGPU1\t", "\nGPU0\t"), "f:3: row GPU0 occurs twice"),
        (MESH[: MESH.index("\nGPU2") + 20], "f:4: row GPU2 has 3 cells, needs 12"),
        (MESH.replace("GPU1\tGPU2", "GPU1\tGPU1", 1), "f:1: a device occurs twice"),
        (
            MESH.replace("NV2 ", "NV40"),
            "row GPU0 has 82 NVLinks, needs at most 18, or equally many",
        ),
        ("GPU0 " + " ".join(f"GPU{i}" for i in range(1, 600)), "f:1: has more than 512 devices"),
    ],
)
def test_errors_name_the_row_and_what_would_do(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_nvidia_smi(text.encode(), "f")


def test_several_nodes_need_a_nic() -> None:
    text = b"GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"
    assert parse_nvidia_smi(text, "f").ranks == 2
    with pytest.raises(TopologyError, match="f: there is no NIC, so nodes is 2 cannot be"):
        parse_nvidia_smi(text, "f", nodes=2)


def test_a_single_gpu_is_a_machine_too() -> None:
    made = parse_nvidia_smi(b"\tGPU0\tNIC0\tCPU Affinity\nGPU0\tX\tPIX\t0-7\n", "f", nodes=2)
    assert made.ranks == 2
    assert replace(made, name="").link_index == {(0, 1): 0, (1, 0): 1}
