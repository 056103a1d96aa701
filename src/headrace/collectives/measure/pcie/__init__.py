"""The hardware behind a virtual PCIe bus, inferred from probes (TACCL, dissertation 5.3)."""
