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
OF_DEFAULT_TYPE = {
    f"torch.{name}" for name in ("empty", "full", "ones", "rand", "randn", "tensor", "zeros")
}


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


def makers_without_type(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        makes = isinstance(node, ast.Call) and ast.unparse(node.func) in OF_DEFAULT_TYPE
        if makes and all(keyword.arg != "dtype" for keyword in node.keywords):
            yield f"{path}:{node.lineno}: {ast.unparse(node)} needs a dtype"


def test_every_tensor_of_compression_has_a_type_that_is_named() -> None:
    """Sums of gradients and times of steps were in the default type of a script: in bfloat16."""
    paths = [
        path
        for path in (ROOT / "compression").rglob("*.py")
        if not ELSEWHERE.keys() & set(path.relative_to(ROOT).parts)
    ]
    assert len(paths) > 30
    assert not [problem for path in paths for problem in makers_without_type(path)]
