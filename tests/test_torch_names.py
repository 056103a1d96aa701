"""Names and parameters of torch that headrace uses: those of the oldest torch that it supports.

`golden/torch_names.json` was recorded with that version: a name that `src` uses and that is not in
the record is newer, or has yet to be recorded. Where the oldest is installed:
``python -m tests.test_torch_names`` records anew, and refuses names that it lacks.
"""

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from headrace.collectives.run.torch.dispatch import ALIASES, OPERATIONS

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "golden" / "torch_names.json"
C10D = "torch._C._distributed_c10d"

MEMBERS: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.Store": (
        *("add", "check", "clone", "compare_set", "delete_key", "get", "set", "set_timeout"),
        "wait",
    ),
    "torch.distributed.PrefixStore": ("underlying_store",),
    "torch.distributed.ProcessGroup": (
        # `recvAnysource` is the name by which torch's C++ looks the override up
        *OPERATIONS,
        *(name for name in ALIASES if name != "recvAnysource"),
        *("_device_types", "_get_backend", "_get_backend_name", "_register_backend"),
        *("_set_default_backend", "_set_group_desc", "get_group_store", "group_desc"),
        *("register_post_hook", "register_pre_hook", "set_timeout", "split_group"),
    ),
    f"{C10D}.Backend": ("monitored_barrier", "options", "split", "supports_splitting"),
    f"{C10D}.Backend.Options": ("_timeout", "group_name"),
    f"{C10D}._DistributedBackendOptions": (
        *("global_ranks_in_group", "group_id", "group_rank", "group_size", "process_group"),
        *("store", "timeout"),
    ),
    "torch.distributed.Work": (
        *("_get_op_type", "_get_sequence_number", "_source_rank", "exception", "get_future"),
        *("is_completed", "is_success", "result", "source_rank", "synchronize", "wait"),
    ),
    "torch.distributed.AllreduceOptions": ("asyncOp", "reduceOp", "timeout"),
    "torch.distributed.BroadcastOptions": ("asyncOp", "rootRank", "timeout"),
    "torch.distributed.ReduceOp": ("RedOpType",),
}
"""Members of objects that torch hands over, or looks up in ours: no import shows them."""


class Uses(ast.NodeVisitor):
    """Collects the dotted names of torch in one file, with the keywords that calls pass."""

    def __init__(self) -> None:
        self.alias: dict[str, str] = {}
        self.names: dict[str, set[str]] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if each.name.split(".")[0] == "torch":
                self.alias[each.asname or "torch"] = each.name if each.asname else "torch"
                self.names.setdefault(each.name, set())

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                self.alias[each.asname or each.name] = f"{node.module}.{each.name}"
                self.names.setdefault(f"{node.module}.{each.name}", set())

    def visit_Call(self, node: ast.Call) -> None:
        if (name := self.dotted(node.func)) is not None:
            passed = {each.arg for each in node.keywords if each.arg is not None}
            self.names.setdefault(name, set()).update(passed)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (name := self.dotted(node)) is not None:
            self.names.setdefault(name, set())
        else:
            self.generic_visit(node)

    def dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self.alias.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)) is not None:
            return f"{owner}.{node.attr}"
        return None


def uses() -> dict[str, list[str]]:
    """Names that `src` uses -> the keywords that it passes to them."""
    found: dict[str, set[str]] = {
        f"{owner}.{name}": set() for owner, names in MEMBERS.items() for name in names
    }
    for path in sorted((ROOT / "src").rglob("*.py")):
        if "torch" not in (text := path.read_text()):
            continue
        visitor = Uses()
        tree = ast.parse(text)
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        for node in imports:  # before the uses, also where a function imports
            visitor.visit(node)
        if visitor.alias:
            visitor.visit(tree)
        for name, keywords in visitor.names.items():
            found.setdefault(name, set()).update(keywords)
    return {name: sorted(keywords) for name, keywords in sorted(found.items())}


def accepts(function: Any, keyword: str) -> bool:
    """Return whether a function, operator or class of torch has a parameter of that name."""
    if (schema := getattr(function, "_schema", None)) is not None:  # of torch.ops
        return any(each.name == keyword for each in schema.arguments)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    if parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        return any(each.name == keyword for each in parameters)
    # functions in C++: the signatures open their documentation
    parts = (function, getattr(function, "__init__", None), getattr(function, "__new__", None))
    text = "\n".join(part.__doc__ or "" for part in parts)
    return re.search(rf"[(,*]\s*{keyword}\s*[:=,)]", text) is not None


def missing(names: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield what the installed torch lacks."""
    for name, keywords in names.items():
        try:
            found = resolve_name(name)
        except (AttributeError, ImportError):
            yield name
            continue
        yield from (f"{name}({each}=)" for each in keywords if not accepts(found, each))


def test_names_that_are_used_are_those_of_the_oldest_supported_torch() -> None:
    record = json.loads(RECORD.read_text())
    known = {(name, each) for name, passed in record["names"].items() for each in ("", *passed)}
    used = {(name, each) for name, passed in uses().items() for each in ("", *passed)}
    assert not used - known, (
        f"not recorded with torch {record['torch']}: with it installed, run "
        "python -m tests.test_torch_names"
    )
    assert len(used) > 150


def test_the_installed_torch_has_them() -> None:
    assert list(missing(json.loads(RECORD.read_text())["names"])) == []


def test_the_oldest_supported_torch_is_stated() -> None:
    oldest = json.loads(RECORD.read_text())["torch"].split("+")[0]
    major_minor = ".".join(oldest.split(".")[:2])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [f"torch>={major_minor},<3"] == project["optional-dependencies"]["torch"]
    assert f"PyTorch, {major_minor} or newer" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("torch.no_such_name", []),
        ("torch.no_such_module.name", []),
        ("torch.distributed.ProcessGroup.gather_twice", []),
        ("torch.distributed.init_process_group", ["no_such_parameter"]),
        ("torch.empty", ["no_such_parameter"]),
        (f"{C10D}.PrefixStore", ["no_such_parameter"]),
    ],
)
def test_what_torch_lacks_is_found(name: str, keywords: list[str]) -> None:
    assert len(list(missing({name: keywords}))) == 1


def test_uses_are_found_however_they_are_written() -> None:
    visitor = Uses()
    text = "import torch.distributed as dist\nfrom torch import nn\ndist.a.b(nn.C(1, x=2), y=3).z"
    visitor.visit(ast.parse(text))
    expected = {
        "torch.distributed": set(),
        "torch.nn": set(),
        "torch.distributed.a.b": {"y"},
        "torch.nn.C": {"x"},
    }
    assert {name: set(keywords) for name, keywords in visitor.names.items()} == expected


if __name__ == "__main__":
    found = uses()
    if lacking := list(missing(found)):
        raise SystemExit(f"torch {torch.__version__} lacks {', '.join(lacking)}")
    version = torch.__version__.split("+")[0]
    RECORD.write_text(json.dumps({"torch": version, "names": found}, indent=1) + "\n")
    print(f"{len(found)} names of torch {version}")
