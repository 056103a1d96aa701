"""Tree and path packing: trees and paths that together attain the throughput bound."""

from headrace.collectives.plan.flows.packing import Packing, PackSettings, pack

__all__ = ["PackSettings", "Packing", "pack"]
