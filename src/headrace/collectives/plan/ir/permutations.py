"""Permutations of chunks and links induced by permutations of the ranks."""

from collections.abc import Iterable

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


def send_classes(
    topology: Topology, deliveries: Deliveries, perms: Iterable[np.ndarray]
) -> np.ndarray:
    """(chunks, links) int64: number of the orbit of each pair under the permutations.

    Raises
    ------
    TopologyError, ProgramError : if a link or chunk has no image.
    """
    links = len(topology.links)
    classes = np.arange(deliveries.chunks * links)
    for perm in perms:
        images = (
            chunk_images(deliveries, perm)[:, None] * links + link_images(topology, perm)[None, :]
        ).reshape(-1)
        classes = _joined(classes, images)
    return np.unique(classes, return_inverse=True)[1].reshape(deliveries.chunks, links)


def _joined(classes: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Merge the classes of each element and its image, until nothing changes."""
    while True:
        least = np.minimum(classes, classes[images])
        lowest = np.full(len(classes), len(classes))
        np.minimum.at(lowest, classes, least)
        np.minimum.at(lowest, classes[images], least)
        changed = lowest[classes]
        if (changed == classes).all():
            return classes
        classes = changed
