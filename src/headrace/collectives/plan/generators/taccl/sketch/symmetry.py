"""Symmetries of topologies and collectives: images of ranks, links and chunks."""

from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.errors import ProgramError, SketchError
from headrace.collectives.plan.generators.taccl.sketch.sketch import Symmetry
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.collectives.plan.ir.permutations import chunk_images, link_images
from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.automorphism import is_automorphism

_SAME_COST = 1e-5
"""Relative tolerance of equal costs: sketches and topologies round them differently."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSymmetry:
    """An automorphism of a topology, and the parts within which sends must follow it.

    Attributes
    ----------
    name : for errors.
    image : (ranks,) int32.
    part : (ranks,) int32, the number of the rank's part.
    """

    name: str
    image: np.ndarray
    part: np.ndarray


def rank_symmetry(topology: Topology, symmetry: Symmetry, name: str) -> RankSymmetry:
    """Return `symmetry` on the ranks of `topology`.

    Raises
    ------
    SketchError : if it has another number of ranks, or naming a link or shared capacity whose
        image is missing or costs something else.
    """
    ranks = topology.ranks
    if symmetry.group and ranks % symmetry.group:
        raise SketchError(
            f"{name}: group size {symmetry.group} does not divide the {ranks} ranks of topology "
            f"'{topology.name}'"
        )
    image = symmetry.permutation(ranks)
    if len(image) != ranks:
        raise SketchError(f"{name}: has {len(image)} ranks, topology '{topology.name}' has {ranks}")
    made = RankSymmetry(
        name=name,
        image=np.array(image, np.int32),
        part=np.array(symmetry.part_of(ranks), np.int32),
    )
    mapped_links(topology, made)  # names a link that has no image
    # Costs of equal links may differ by rounding; a sketch names the switches that it needs.
    reason = is_automorphism(replace(topology, switches=()), made.image, tolerance=_SAME_COST)
    if reason is not None:
        raise SketchError(f"{name}: is no automorphism: {reason}")
    return made


def mapped_links(topology: Topology, symmetry: RankSymmetry) -> np.ndarray:
    """(links,) int32: the image of every link.

    Raises
    ------
    SketchError : naming a link that has none.
    """
    try:
        return link_images(topology, symmetry.image).astype(np.int32)
    except TopologyError as error:
        _, _, problem = str(error).partition(": ")
        raise SketchError(f"{symmetry.name}: is no automorphism: {problem}") from error


def mapped_chunks(deliveries: Deliveries, symmetry: RankSymmetry) -> np.ndarray:
    """(chunks,) int32: the image of every chunk, matched by origin and targets.

    Of several equal ones the k-th maps to the k-th.

    Raises
    ------
    SketchError : naming a chunk that has no image, so that the collective is not symmetric.
    """
    try:
        return chunk_images(deliveries, symmetry.image).astype(np.int32)
    except ProgramError as error:
        raise SketchError(
            f"{symmetry.name}: is no automorphism of the collective: {error}; leave the symmetry "
            "out for this collective"
        ) from error
