"""The names of Ray that are used; an error with the remedy where it is missing.

Its types are not read: checks do not need it.
"""

from typing import TYPE_CHECKING, Any

from headrace.extras import require

require("ray", "ray", "running on a Ray cluster")

if TYPE_CHECKING:

    class RayError(Exception):
        """Failure of a call, or of the process or node that it was for."""

    class RayActorError(RayError):
        """An actor is lost."""

    ray: Any
    PlacementGroupSchedulingStrategy: Any
    placement_group: Any
    placement_group_table: Any
    remove_placement_group: Any
else:
    import ray as ray
    from ray.exceptions import RayActorError as RayActorError
    from ray.exceptions import RayError as RayError
    from ray.util.placement_group import placement_group as placement_group
    from ray.util.placement_group import placement_group_table as placement_group_table
    from ray.util.placement_group import remove_placement_group as remove_placement_group
    from ray.util.scheduling_strategies import (
        PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy,
    )
