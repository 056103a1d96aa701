"""Cost models, by name.

All models charge b bytes ``alpha + beta * b`` on a link; they differ in what waits for what:

=========== ========= =====================================================================
model       streaming stands for
=========== ========= =====================================================================
executor    yes       headrace's executor on TCP: bytes are forwarded as they arrive, alpha is
                      latency
full        no        a message is forwarded when it has arrived as a whole, and alpha holds the
                      link and all that the link shares, once a message: TACCL (5.17, 5.18)
=========== ========= =====================================================================

The *table model* of published 1 MB figures is `full` on a topology whose links within a host have
no alpha (`headrace.topology.without_local_alpha`).
"""

from headrace.facades import public_value


@public_value("headrace.collectives.plan.cost")
class CostModel:
    """Costs of a program in `simulate`, and what the choice among programs adds.

    Attributes
    ----------
    streaming : a step forwards bytes before all of them have arrived, and alpha holds nothing.
    local_us_per_mb : time of COPY and REDUCE steps in memory.
    step_us, exposed_steps : the choice adds `step_us` of processor time for each of the first
        `exposed_steps` steps of the busiest rank.
    alike : predictions closer than this fraction count as equal: then the fewest steps win.
    min_chunk_bytes, max_chunk_bytes : programs outside are left out if their generator has others.
    """

    name: str
    streaming: bool
    local_us_per_mb: float = 0.0
    step_us: float = 0.0
    exposed_steps: int = 0
    alike: float = 1e-6
    min_chunk_bytes: int = 0
    max_chunk_bytes: float = float("inf")


EXECUTOR = CostModel(
    name="executor",
    streaming=True,
    local_us_per_mb=250.0,
    step_us=10.0,
    exposed_steps=16,
    alike=0.005,
    min_chunk_bytes=4096,
    max_chunk_bytes=32 << 10,
)
FULL = CostModel(name="full", streaming=False)

MODELS = {model.name: model for model in (EXECUTOR, FULL)}
