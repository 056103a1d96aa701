"""Trees and paths that together use every link as the throughput bound wants them used."""

from headrace.collectives.plan.packing.packing import Packing, PackSettings, pack

__all__ = ["PackSettings", "Packing", "pack"]
