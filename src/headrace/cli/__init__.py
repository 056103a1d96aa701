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
