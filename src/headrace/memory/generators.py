"""Random generators of Python and NumPy, which a library may not draw from."""

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np


@contextmanager
def host_generators_preserved() -> Generator[None]:
    """Leave Python's and NumPy's own generators as they are; some packages draw when imported."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
