"""Small plans with known times."""

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost.model import FULL, CostModel
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.plan import Candidate, Plan
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Schedule, Transfer
from headrace.topology import Link, SharedCapacity, Topology

MB = 10**6


def chain() -> Topology:
    """0 -> 1 -> 2: alpha 1 us, beta 10 us/MB; both links share a capacity of 15 us/MB."""
    return Topology(
        name="chain <of> three",
        hosts=("a", "b", "c"),
        rank_host=(0, 1, 2),
        links=(
            Link(src=0, dst=1, alpha_us=1.0, beta_us_per_mb=10.0),
            Link(src=1, dst=2, alpha_us=1.0, beta_us_per_mb=10.0),
        ),
        shared=(SharedCapacity(name="backplane", links=(0, 1), beta_us_per_mb=15.0),),
    )


def relay(model: CostModel = FULL, topology: Topology | None = None) -> Plan:
    """A broadcast of two chunks of 1 MB: both as one message to 1, one by one to 2."""
    topology = topology or chain()
    demand = Demand(collective=Collective.BROADCAST, ranks=3, chunks=2)
    transfers = (
        Transfer(0, 1, 0, 0),
        Transfer(0, 1, 1, 1, joined=True),
        Transfer(1, 2, 0, 0),
        Transfer(1, 2, 1, 1),
    )
    program = lower(Schedule.of(demand, transfers))
    return Plan(
        program=program,
        generator="by hand",
        total_bytes=2 * MB,
        topology=topology,
        model=model,
        predicted_us=predict_us(program, topology, 2 * MB, model),
        bound=lower_bound(topology, demand, 2 * MB),
        proof=verify(program),
        candidates=(
            Candidate(generator="by hand", chunks=2, predicted_us=63.0),
            Candidate(generator="refused", chunks=0, note="</script><b>not at all</b>"),
        ),
        why="no other generator",
    )
