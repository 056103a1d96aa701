import numpy as np

from headrace.topology import Topology
from headrace.topology.refinement import automorphism_generators
from headrace.topology.symmetry import generated_group


def automorphisms(topology: Topology) -> np.ndarray:
    """Return all automorphisms, (elements, ranks), the identity first."""
    generators, _ = automorphism_generators(topology)
    return generated_group([np.arange(topology.ranks), *generators])
