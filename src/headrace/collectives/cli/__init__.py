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
