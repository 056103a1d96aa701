"""AMD machines: GPU dies joined by Infinity Fabric links, without a switch."""

from headrace.topology.presets.boxes import Box, Inter, Nics, both_ways, cluster
from headrace.topology.topology import Topology, beta_from_bytes_per_s

# Infinity Fabric links between the sixteen dies: how many join which two. Every die has four
# within its package (2i, 2i+1) and three outside; which dies they reach differs from die to die.
# As in the table of this server that AMD publishes with its collective library.
_PACKAGE = tuple((2 * i, 2 * i + 1) for i in range(8))
_DOUBLE = ((0, 4), (3, 7), (8, 12), (11, 15))
_SINGLE = (
    *((0, 2), (1, 2), (1, 3), (1, 5), (2, 6), (4, 12), (5, 13), (5, 14)),
    *((6, 13), (6, 14), (7, 15), (8, 10), (9, 10), (9, 11), (9, 13), (10, 14)),
)


def mi250(
    nodes: int = 1,
    *,
    inter: Inter = "auto",
    alpha_us: float = 1.0,
    remote_alpha_us: float = 1.7,
    fabric_bytes_per_s: float = 50e9,
    nic_bytes_per_s: float = 25e9,
) -> Topology:
    """AMD MI250: eight packages of two dies, sixteen ranks a node, irregular fabric links.

    An Infinity Fabric link moves 50 GB/s each way as AMD publishes it (100 GB/s both ways); the
    dies of a package have four (200 GB/s each way), other neighbours one or two. There is no
    switch and nothing can multicast. Each package has a NIC of 25 GB/s (200 Gb/s) on its PCIe
    port, which NIC traffic of both dies uses, off the fabric links. The alphas are round numbers,
    as there are no published ones: set them from measurements.
    """
    counted = ((_PACKAGE, 4), (_DOUBLE, 2), (_SINGLE, 1))
    local = [
        link
        for pairs, count in counted
        for link in both_ways(pairs, alpha_us, beta_from_bytes_per_s(fabric_bytes_per_s * count))
    ]
    box = Box(
        name="mi250",
        gpus=16,
        local=tuple(sorted(local)),
        nics=Nics.alike(
            tuple(die // 2 for die in range(16)),
            beta_from_bytes_per_s(nic_bytes_per_s),
            remote_alpha_us,
        ),
    )
    return cluster(box, nodes, inter)
