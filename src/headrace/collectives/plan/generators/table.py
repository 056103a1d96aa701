"""All generators, in the order in which a portfolio runs them.

Templates have a schedule for every topology; search generators search on the given topology, for
the sizes of `Request.aims`. Their objective is the time under the full cost model; the portfolio
compares the resulting candidates under the request's own model.
"""

from functools import partial
from pathlib import Path

from headrace.collectives.plan.generators.custom import custom_schedules
from headrace.collectives.plan.generators.exact import exact_schedules
from headrace.collectives.plan.generators.matching import matching_schedules
from headrace.collectives.plan.generators.mirrored import mirrored_schedules
from headrace.collectives.plan.generators.orbits.build import orbit_schedules
from headrace.collectives.plan.generators.packing import packing_schedules
from headrace.collectives.plan.generators.rank_order import rank_order_schedules
from headrace.collectives.plan.generators.taccl.autosketch import sketch_schedules
from headrace.collectives.plan.generators.taccl.synthesize import guided_schedules, sketch_generator
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.request import Generator

SEARCH_GENERATORS: tuple[Generator, ...] = (
    Generator("orbits", orbit_schedules, min_gap=0.002),
    Generator("matching", matching_schedules, min_gap=0.015),
    Generator("mirrored", mirrored_schedules, min_gap=0.015),
    Generator("placed", rank_order_schedules, min_gap=0.02),
    Generator("exact", exact_schedules, min_gap=0.02),
    Generator("packing", packing_schedules, min_gap=0.03),
    Generator("sketches", sketch_schedules, min_gap=0.03),
)
"""All search generators that need no user's sketch."""

ALL_GENERATORS: tuple[Generator, ...] = (*TEMPLATES, *SEARCH_GENERATORS)


def custom_generators(sketch: Path | None = None) -> tuple[Generator, ...]:
    """Return the generators for custom demands and uneven exchanges.

    With a user's sketch it is the only one, as for named collectives.

    Raises
    ------
    SketchError : if the sketch is malformed.
    """
    if sketch is not None:
        return (sketch_generator(sketch),)
    return (
        *(generator for generator in TEMPLATES if generator.name == "direct"),
        Generator("matching", custom_schedules, min_gap=0.015),
        Generator("packing", packing_schedules, min_gap=0.03),
        Generator("routing", partial(guided_schedules, sketch=None), min_gap=0.03),
    )
