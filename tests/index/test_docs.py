"""The example of the page's part on SortedDict runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "index.md"


def test_the_example_for_users_of_sorted_dicts_runs() -> None:
    part = PAGE.read_text().split("## Coming from SortedDict")[1]
    (example,) = re.findall(r"```python\n(.*?)```", part.split("\n## ")[0], re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
