"""Tensors made for calls and gradients are on the CPU, whatever device a script has as its default.

With ``torch.set_default_device("cuda")``, barriers, tensors that are not contiguous and compressed
gradients were refused, as buffers of their calls were made on that device. With "meta", numbers of
a cache and of its requests had no values.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from torch.utils import _device

ROOT = Path(__file__).parent.parent / "src" / "headrace"
FOLDERS = (
    "attention/run",
    "collectives/run",
    "compression",
    "embeddings/run/trainers",
    "memory/operators",
)
ELSEWHERE = {"measure": "times models and codecs on the device that it is told"}
MAKERS = {f"torch.{function.__name__}" for function in _device._device_constructors()}


def makers_without_device(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        makes = isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS
        if makes and all(keyword.arg != "device" for keyword in node.keywords):
            yield f"{path}:{node.lineno}: {ast.unparse(node)} needs a device"


def test_every_tensor_is_made_on_a_device_that_is_named() -> None:
    assert "torch.empty" in MAKERS
    paths = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not ELSEWHERE.keys() & set(path.relative_to(ROOT).parts)
    ]
    assert len(paths) > 50
    assert not [problem for path in paths for problem in makers_without_device(path)]
