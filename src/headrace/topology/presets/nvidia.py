"""NVIDIA machines: the NVLink mesh of eight V100, and GPUs around an NVSwitch.

Costs that are not measured follow from vendors' published rates, and the alphas are those
of links in the dissertation on TACCL (Table 5.1: 0.7 us for NVLink, 1.7 us for InfiniBand), as
there are no published ones.
"""

from headrace.topology.presets.boxes import (
    Box,
    Inter,
    Nics,
    both_ways,
    cluster,
    full_mesh,
    gpu_ports,
)
from headrace.topology.topology import Switch, Topology, beta_from_bytes_per_s

# The mesh of DGX-1 V100 and Azure NDv2: six NVLinks a GPU, two of them to some neighbours.
_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))

_NVLINK_ALPHA, _IB_ALPHA, _IB_BETA = 0.7, 1.7, 106.0  # us, us, us/MB: Table 5.1
_ONE_NIC, _NIC_PER_PAIR = (0,) * 8, tuple(gpu // 2 for gpu in range(16))


def ndv2(nodes: int = 1, *, inter: Inter = "auto") -> Topology:
    """Azure NDv2: eight V100 in an NVLink mesh, one NIC a node; TACCL's costs of links (Table 5.1).

    NVLink 0.7 us and 46 us/MB (23 over two NVLinks), InfiniBand 1.7 us and 106 us/MB. NIC
    traffic goes over PCIe and host memory, off the NVLinks. Nothing can multicast.
    """
    nics = Nics.alike(_ONE_NIC, _IB_BETA, _IB_ALPHA)
    return cluster(mesh_box("ndv2", _NVLINK_ALPHA, (23.0, 46.0), nics), nodes, inter)


def ndv2_taccl_1mb(nodes: int = 1, *, inter: Inter = "auto") -> Topology:
    """Azure NDv2 as TACCL's topology file for chunks of 1 MB has it.

    NVLink 0.3 us and 46 us/MB (23 over two), remote 2.6 us and 105 us/MB; one NIC a node. NIC
    traffic stays off the NVLinks. Nothing can multicast.
    """
    nics = Nics.alike(_ONE_NIC, 105.0, 2.6)
    return cluster(mesh_box("ndv2-taccl-1mb", 0.3, (23.0, 46.0), nics), nodes, inter)


def dgx1(nodes: int = 1, *, inter: Inter = "auto") -> Topology:
    """DGX-1 V100: the NVLink mesh of NDv2 (its costs, too), and four NICs a node.

    GPUs 2i and 2i+1 and NIC i share a PCIe switch: NIC traffic uses that, off the NVLinks.
    Nothing can multicast.
    """
    nics = Nics.alike(_NIC_PER_PAIR[:8], _IB_BETA, _IB_ALPHA)
    return cluster(mesh_box("dgx1", _NVLINK_ALPHA, (23.0, 46.0), nics), nodes, inter)


def dgx2(nodes: int = 1, *, inter: Inter = "auto") -> Topology:
    """DGX-2: sixteen V100 on an NVSwitch, eight NICs a node; TACCL's costs of links (Table 5.1).

    NVLink 0.7 us and 8 us/MB, InfiniBand 1.7 us and 106 us/MB. Every GPU has one port each way
    into the NVSwitch, which cannot multicast. GPUs 2i and 2i+1 share NIC i over a PCIe switch:
    NIC traffic is off the NVSwitch's ports.
    """
    nics = Nics.alike(_NIC_PER_PAIR, _IB_BETA, _IB_ALPHA)
    return cluster(nvswitch_box("dgx2", 16, 8.0, _NVLINK_ALPHA, nics), nodes, inter)


def dgx2_taccl_1mb(nodes: int = 1, *, inter: Inter = "auto") -> Topology:
    """DGX-2 as TACCL's topology file for chunks of 1 MB has it.

    NVLink 0.3 us and 8 us/MB, remote 2.6 us and 105 us/MB. Ports and NICs as in `dgx2`: NIC
    traffic is off the NVSwitch's ports, and the NVSwitch cannot multicast.
    """
    nics = Nics.alike(_NIC_PER_PAIR, 105.0, 2.6)
    return cluster(nvswitch_box("dgx2-taccl-1mb", 16, 8.0, 0.3, nics), nodes, inter)


def dgx_a100(
    nodes: int = 1,
    *,
    inter: Inter = "auto",
    alpha_us: float = _NVLINK_ALPHA,
    remote_alpha_us: float = _IB_ALPHA,
) -> Topology:
    """DGX A100: eight GPUs on an NVSwitch at 300 GB/s each way, a NIC of 25 GB/s a GPU.

    Rates as NVIDIA publishes them (600 GB/s NVLink a GPU both ways, eight 200 Gb/s NICs). This
    generation of NVSwitch cannot multicast. A GPU and its NIC share a PCIe switch: NIC traffic is
    off the NVSwitch's ports.
    """
    box = _nic_per_gpu("dgx-a100", 300e9, 25e9, alpha_us, remote_alpha_us)
    return cluster(box, nodes, inter)


def dgx_h100(
    nodes: int = 1,
    *,
    inter: Inter = "auto",
    alpha_us: float = _NVLINK_ALPHA,
    remote_alpha_us: float = _IB_ALPHA,
) -> Topology:
    """DGX H100: eight GPUs on an NVSwitch at 450 GB/s each way, a NIC of 50 GB/s a GPU.

    Rates as NVIDIA publishes them (900 GB/s NVLink a GPU both ways, eight 400 Gb/s NICs). This
    generation of NVSwitch can multicast (NVLink SHARP); schedules of sends do not use it. NIC
    traffic is off the NVSwitch's ports.
    """
    box = _nic_per_gpu("dgx-h100", 450e9, 50e9, alpha_us, remote_alpha_us, multicast=True)
    return cluster(box, nodes, inter)


def _nic_per_gpu(
    name: str, port: float, nic: float, alpha_us: float, remote_alpha_us: float, **switch: bool
) -> Box:
    nics = Nics.alike(tuple(range(8)), beta_from_bytes_per_s(nic), remote_alpha_us)
    return nvswitch_box(name, 8, beta_from_bytes_per_s(port), alpha_us, nics, **switch)


def nvswitch_box(
    name: str, gpus: int, port_beta: float, alpha_us: float, nics: Nics, *, multicast: bool = False
) -> Box:
    """Return GPUs around an NVSwitch, each with one port out and one in."""
    local = full_mesh(gpus, alpha_us, port_beta)
    return Box(
        name=name,
        gpus=gpus,
        local=local,
        capacities=gpu_ports(local, (port_beta,) * gpus),
        switches=(Switch(name="nvswitch", links=tuple(range(len(local))), multicast=multicast),),
        nics=nics,
    )


def mesh_box(name: str, alpha_us: float, betas: tuple[float, float], nics: Nics) -> Box:
    """Return eight V100 in their NVLink mesh: betas (us/MB) over two NVLinks and over one."""
    double, single = betas
    local = (*both_ways(_DOUBLE, alpha_us, double), *both_ways(_SINGLE, alpha_us, single))
    return Box(name=name, gpus=8, local=tuple(sorted(local)), nics=nics)
