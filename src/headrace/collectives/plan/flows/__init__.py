"""Tree and path packing: trees and paths that together attain the throughput bound."""

from headrace.collectives.plan.flows.commodities import Commodity, TreeColumn
from headrace.collectives.plan.flows.packing import Packing, PackSettings, pack
from headrace.collectives.plan.ir.sends import Deliveries

__all__ = [
    "Commodity",
    "Deliveries",
    "PackSettings",
    "Packing",
    "TreeColumn",
    "pack",
]
