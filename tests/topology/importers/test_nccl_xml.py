from pathlib import Path

import pytest

from headrace.errors import TopologyError
from headrace.topology.importers import LinkCosts, import_topology, parse_nccl_xml
from headrace.topology.presets import dgx1, dgx_h100

SAMPLES = Path(__file__).parent.parent / "samples"
H100 = (SAMPLES / "dgx-h100.xml").read_text()


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_dgx_h100_is_the_preset(nodes: int) -> None:
    assert import_topology(SAMPLES / "dgx-h100.xml", nodes=nodes) == dgx_h100(nodes)


def test_the_v100_mesh_is_the_preset_but_for_measured_costs() -> None:
    made, wanted = import_topology(SAMPLES / "dgx1.xml", nodes=2), dgx1(2)
    assert list(made.link_index) == list(wanted.link_index)
    assert [(s.name, s.links) for s in made.shared] == [(s.name, s.links) for s in wanted.shared]
    betas = {k.beta_us_per_mb for k in made.links if k.src < 8 and k.dst < 8}
    assert betas == {20.0, 40.0}
    assert {s.beta_us_per_mb for s in made.shared} == {80.0}  # 100 Gb/s


def test_mesh_from_xml_and_from_nvidia_smi_agree() -> None:
    costs = LinkCosts(nic_bytes_per_s=12.5e9)
    one = import_topology(SAMPLES / "dgx1.xml", nodes=2)
    assert one == import_topology(SAMPLES / "dgx1.txt", nodes=2, costs=costs)


def test_pcie_rates_and_levels_come_from_the_tree() -> None:
    made = import_topology(SAMPLES / "pcie.xml", nodes=2)
    link = {(k.src, k.dst): (k.alpha_us, 1e12 / k.beta_us_per_mb) for k in made.links}
    eight_lanes = 16e9 / 8 * 8 * 128 / 130
    assert link[0, 1] == (1.0, pytest.approx(eight_lanes))  # below one switch
    assert link[0, 2] == (1.5, pytest.approx(12.5e9))  # its speed is unknown
    assert link[0, 3] == (2.5, pytest.approx(10e9))  # the other socket
    nics = [s for s in made.shared if "nic" in s.name]
    assert len(nics) == 4  # one NIC, though listed below both cpus
    assert {s.beta_us_per_mb for s in nics} == {800.0}


def test_costs_given_go_before_the_generation() -> None:
    made = import_topology(SAMPLES / "dgx-h100.xml", costs=LinkCosts(link_bytes_per_s=20e9))
    assert made.links[0].beta_us_per_mb == pytest.approx(1e12 / (18 * 20e9))
    kept = import_topology(SAMPLES / "dgx-h100.xml", costs=LinkCosts(nic_bytes_per_s=1e9))
    assert kept == dgx_h100(1)


def test_ranks_give_the_order_if_all_have_one() -> None:
    turned = H100
    for i in range(8):
        turned = turned.replace(
            f'dev="{i}" sm="90" rank="{i}"', f'dev="{i}" sm="90" rank="{7 - i}"'
        )
    made = import_topology(SAMPLES / "dgx-h100.xml", nodes=2)
    other = parse_nccl_xml(turned.encode(), "f", nodes=2, name="dgx-h100")
    assert other.links == made.links
    nic = {s.name: {other.links[i].src for i in s.links} for s in other.shared}
    assert nic["node0-nic-out-0"] == {7}  # follows its GPU
    without = H100.replace(' rank="', ' x="')
    assert parse_nccl_xml(without.encode(), "f", nodes=2, name="dgx-h100") == made


def test_fabric_links_of_amd() -> None:
    text = "<system version='1'><cpu numaid='0'>" + "".join(
        f"<pci busid='{i}'><gpu dev='{i}' gfx='90a'>"
        f"<xgmi target='{1 - i}' count='4' tclass='0x038000'/></gpu></pci>"
        for i in range(2)
    )
    made = parse_nccl_xml((text + "</cpu></system>").encode(), "f")
    assert [k.beta_us_per_mb for k in made.links] == [5.0, 5.0]  # 200 GB/s


def machine(*gpus: str) -> bytes:
    """The file of a machine of V100s, each with these elements."""
    rows = "".join(
        f"<pci busid='0000:0{i}:00.0' link_speed='8.0 GT/s PCIe' link_width='16'>"
        f"<gpu dev='{i}' sm='70'>{inside}</gpu></pci>"
        for i, inside in enumerate(gpus)
    )
    return f"<system version='1'><cpu numaid='0'>{rows}</cpu></system>".encode()


def nvlink(target: int, count: int, kind: str) -> str:
    return f"<nvlink target='0000:0{target}:00.0' count='{count}' tclass='{kind}'/>"


def test_links_to_gpus_that_the_job_does_not_see_are_left_out() -> None:
    """With CUDA_VISIBLE_DEVICES=0,1 of a mesh the file was refused, which NCCL reads."""
    gpus = [nvlink(1 - i, 2, "0x030200") + nvlink(5 + i, 1, "0x030200") for i in range(2)]
    topology = parse_nccl_xml(machine(*gpus), "f")
    assert [(link.src, link.dst, link.beta_us_per_mb) for link in topology.links] == [
        (0, 1, 20.0),
        (1, 0, 20.0),
    ]


def test_links_to_a_processor_go_into_no_switch() -> None:
    """Those of POWER9 joined all GPUs, as an NVSwitch does, in place of the links between two."""
    pairs = [nvlink(i ^ 1, 3, "0x030200") + nvlink(9, 3, "0x068001") for i in range(4)]
    topology = parse_nccl_xml(machine(*pairs), "f")
    assert topology.switches == ()
    rates = {(link.src, link.dst): link.beta_us_per_mb for link in topology.links}
    assert rates[0, 1] == pytest.approx(1e12 / 75e9)
    assert rates[0, 2] > rates[0, 1]  # over PCIe


@pytest.mark.parametrize("width", ["0", "63", "255"])
def test_a_width_that_a_virtual_machine_does_not_know_is_of_16_lanes(width: str) -> None:
    """One beyond 32 was refused; the kernel says 255, or 63, where it does not know."""
    text = machine("", "").decode()
    unknown = text.replace("link_width='16'", f"link_width='{width}'")
    assert parse_nccl_xml(unknown.encode(), "f") == parse_nccl_xml(text.encode(), "f")


BOMB = "<!DOCTYPE s [<!ENTITY a 'aaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;'>]>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1: is no XML: no element found"),
        ("<system", "f:1: is no XML: unclosed token"),
        ("\n<system></cpu>", "f:2: is no XML: mismatched tag"),
        ("<system/>", "f: has no element 'gpu', needs at least one"),
        ("<graphs/>", "f:1: the outermost element is 'graphs', needs 'system'"),
        (BOMB + "<system>&b;</system>", "f:1: has a document type .*: needs one that NCCL_TOPO"),
        ("<!DOCTYPE s SYSTEM 'file:///etc/passwd'><system/>", "has a document type"),
        ('<!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology/>', "as files of lstopo"),
        ("<a>" * 40, "f:1: has elements more than 32 deep"),
        ("<system>" + "<a/>" * 100_001, "f:1: has more than 100000 elements"),
        ("<system><gpu dev='0'/></system>", "element 'gpu': is not in a 'pci' of a 'cpu'"),
        (
            H100.replace(' busid="0000:11:00.0"', ""),
            "f:4: element 'pci': attribute 'busid' is missing",
        ),
        (
            H100.replace('dev="0" sm', 'dev="x" sm'),
            "f:5: element 'gpu': attribute 'dev' is 'x', needs an",
        ),
        (
            H100.replace('count="5"', 'count="-1"', 1),
            "f:6: .* attribute 'count' is '-1', needs .* of 1 to",
        ),
        (
            H100.replace("0x068000", "0x060400", 1),
            "f:6: element 'nvlink': attribute 'target' is '0000:a0",
        ),
        (H100.replace("0000:11:00.0", "0000:19:00.0"), "f: several gpus have one 'busid'"),
        (H100.replace("0x5f3a", "0x5f3b", 1), "f: has cpus of 2 hosts, needs the dump of one host"),
        (
            H100.replace('speed="400000"', 'speed="fast"', 1),
            "element 'net': attribute 'speed' is 'fast'",
        ),
    ],
)
def test_errors_name_the_element_and_what_would_do(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_nccl_xml(text.encode(), "f")


def test_a_document_type_is_refused_in_any_encoding() -> None:
    with pytest.raises(TopologyError, match="document type"):
        parse_nccl_xml((BOMB + "<system>&b;</system>").encode("utf-16"), "f")
    with pytest.raises(TopologyError, match="f:1: is no XML|f: is no XML"):
        parse_nccl_xml(b"<?xml version='1.0' encoding='nonsense'?><system/>", "f")
