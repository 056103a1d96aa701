"""Permutations of chunks and links induced by permutations of the ranks."""

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.automorphism import link_image


def link_images(topology: Topology, perm: np.ndarray) -> np.ndarray:
    """(links,): the image of each link under a permutation of the ranks.

    Raises
    ------
    TopologyError : if a link has no image.
    """
    images = link_image(topology, perm)
    if np.any(images < 0):
        link = topology.links[int(np.argmin(images))]
        raise TopologyError(
            f"topology '{topology.name}': link {link.src} -> {link.dst} has no image "
            f"{perm[link.src]} -> {perm[link.dst]}; use permutations that are automorphisms"
        )
    return images


def chunk_images(deliveries: Deliveries, perm: np.ndarray) -> np.ndarray:
    """(chunks,): the image of each chunk; of equal chunks, the k-th maps to the k-th.

    Raises
    ------
    ProgramError : if a chunk has no image.
    """
    like: dict[tuple[int, bytes], list[int]] = {}
    for chunk, (origin, targets) in enumerate(
        zip(deliveries.origin.tolist(), deliveries.targets, strict=True)
    ):
        like.setdefault((origin, targets.tobytes()), []).append(chunk)
    images = np.empty(deliveries.chunks, dtype=np.int64)
    for (origin, targets), chunks in like.items():
        moved = np.zeros(deliveries.ranks, dtype=bool)
        moved[perm[np.frombuffer(targets, dtype=bool)]] = True
        to = like.get((int(perm[origin]), moved.tobytes()), [])
        if len(to) != len(chunks):
            raise ProgramError(
                f"chunk {chunks[0]} from rank {origin} has no image from rank {int(perm[origin])} "
                "with the permuted targets; use permutations that map the collective to itself"
            )
        images[chunks] = to
    return images
