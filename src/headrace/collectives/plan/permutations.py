"""What a permutation of the ranks makes of chunks and links."""

from collections.abc import Iterable

import numpy as np

from headrace.collectives.plan.chunks import Deliveries
from headrace.errors import ProgramError, TopologyError
from headrace.topology import Topology

__all__ = ["chunk_images", "link_images", "send_classes"]


def link_images(topology: Topology, perm: np.ndarray) -> np.ndarray:
    """(links,): where each link goes when the ranks are permuted.

    Raises
    ------
    TopologyError : if a link has no image.
    """
    index = topology.link_index
    images = np.empty(len(topology.links), dtype=np.int64)
    for k, link in enumerate(topology.links):
        src, dst = int(perm[link.src]), int(perm[link.dst])
        if (src, dst) not in index:
            raise TopologyError(
                f"topology '{topology.name}': link {link.src} -> {link.dst} has no image "
                f"{src} -> {dst}; use permutations that are automorphisms"
            )
        images[k] = index[src, dst]
    return images


def chunk_images(deliveries: Deliveries, perm: np.ndarray) -> np.ndarray:
    """(chunks,): where each chunk goes; of chunks alike, the k-th goes to the k-th.

    Raises
    ------
    ProgramError : if there are no chunks like a chunk's image.
    """
    places: dict[tuple[int, bytes], list[int]] = {}
    for chunk, (origin, targets) in enumerate(
        zip(deliveries.origin.tolist(), deliveries.targets, strict=True)
    ):
        places.setdefault((origin, targets.tobytes()), []).append(chunk)
    images = np.empty(deliveries.chunks, dtype=np.int64)
    for (origin, targets), chunks in places.items():
        moved = np.zeros(deliveries.ranks, dtype=bool)
        moved[perm[np.frombuffer(targets, dtype=bool)]] = True
        to = places.get((int(perm[origin]), moved.tobytes()), [])
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
    """(chunks, links) int64: equal numbers for what is the image of one another.

    Raises
    ------
    TopologyError, ProgramError : if a permutation maps links or chunks to none.
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
    """Join each element's class with its image's: the smallest of both, until nothing changes."""
    while True:
        least = np.minimum(classes, classes[images])
        lowest = np.full(len(classes), len(classes))
        np.minimum.at(lowest, classes, least)
        np.minimum.at(lowest, classes[images], least)
        changed = lowest[classes]
        if (changed == classes).all():
            return classes
        classes = changed
