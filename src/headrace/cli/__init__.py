"""The command line: ``headrace CAPABILITY STAGE``, and verbs that take any artifact."""

COMMANDS = {
    "show": (
        "headrace.cli.artifacts:show_command",
        "Print an artifact: a profile, a plan or a topology, of any capability.",
    ),
    "verify": (
        "headrace.cli.artifacts:verify_command",
        "Prove a plan of any capability again, or a file of another tool.",
    ),
    "report": (
        "headrace.cli.report:report_command",
        "Draw an artifact or a benchmark's result as one HTML page that needs no network.",
    ),
    "doctor": (
        "headrace.cli.doctor:doctor_command",
        "Check what can run here, and name what is missing and the command that mends it.",
    ),
    "schema": (
        "headrace.cli.schema:schema_command",
        "Print the JSON schemas of what verbs print with --json.",
    ),
    "demo": (
        "headrace.cli.demo:demo_command",
        "Build an uneven network, measure it, plan for it, and train on Gloo and on headrace.",
    ),
    "topology": (
        "headrace.cli.topology:app",
        "Describe a cluster that is not at hand: from a preset, or from other tools' files.",
    ),
    "testbed": (
        "headrace.cli.testbed:app",
        "Emulate a cluster on this machine: namespaces as hosts, bridges as racks, shaped links.",
    ),
}
"""Where each command is, and its line in the help, by its path; imported when it is used."""

NEEDS = {
    "demo": ("native", "torch", "numpy", "scipy", "scikit-learn", "highspy", "ortools", "network"),
    "report": ("numpy", "pyarrow", "plotly"),
    "testbed": ("numpy", "network"),
}
HELPS = {"demo": ("namespaces", "plotly"), "testbed": ("namespaces",)}
"""Checks that a verb needs, and those without which it does less; see `headrace.doctor.needs`."""
