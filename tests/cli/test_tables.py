"""Tables of artifacts' contents, on terminals of several widths."""

import pytest
from rich.console import Console

from headrace.cli.tables import rows

COLUMNS = ("name", "when", "step", "coding", "network", "sent", "break-even", "accuracy")


@pytest.mark.parametrize("name", ["powersgd:16 *", "hashed fragment_keys=1024 fill=0.5"])
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_column_is_cropped_and_names_stay_legible(name: str, width: int) -> None:
    """At 80 columns the last ones, such as the accuracy of codecs, were cut off without a sign."""
    cells = (name, "during", "192.4 ms", "0.34 ms", "88.6 ms", "96.17 MiB", "232.6 Gbit/s", "harsh")
    (table,) = rows("steps", COLUMNS, [cells], everything=True)
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    printed = capture.get()
    assert max(map(len, printed.splitlines())) <= width
    assert characters(printed) == characters("".join(["steps", *COLUMNS, *cells]))
    assert any(line.split()[:1] == name.split()[:1] for line in printed.splitlines())


def characters(text: str) -> list[str]:
    return sorted("".join(text.split()))
