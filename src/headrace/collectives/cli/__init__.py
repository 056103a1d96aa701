"""Commands of ``headrace collectives``, and of the verbs that take plans."""

COMMANDS = {
    "collectives": (
        "headrace.collectives.cli.app:app",
        "Move tensors between ranks: measure the network, plan for it.",
    ),
    "export": (
        "headrace.collectives.cli.export:export_command",
        "Write a plan in a form that MSCCL or MSCCL++ runs.",
    ),
    "topology infer": (
        "headrace.collectives.cli.infer:infer_command",
        "Infer from probes the CPU nearest to the NIC, and the GPUs that share PCIe switches.",
    ),
}
"""Read without an import of the package; see `headrace.cli.app`."""

NEEDS = {
    "measure": (
        *("native", "torch", "numpy", "scipy", "scikit-learn", "ortools", "pyarrow"),
        *("network", "open-files"),
    ),
    "plan": ("native", "numpy", "scipy", "highspy", "ortools", "pyarrow"),
    "run": ("native", "torch", "numpy", "network", "open-files"),
    "adapt": ("native", "torch", "numpy", "scipy", "highspy", "pyarrow", "network", "open-files"),
}
HELPS = {
    "measure": ("shared-memory", "cache", "namespaces"),
    "run": ("shared-memory", "tls", "cache"),
    "adapt": ("prometheus-client",),
}
"""Checks that a stage needs, and those that help it; see `headrace.doctor.needs`."""
