"""Pickles of earlier versions (golden/pickles) load: of a value of every public type that has one.

A pickle names the facades that offer its classes. The files are never written anew.
``python -m tests.old_pickles_test`` writes those that are missing.
"""

import gzip
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.artifact as artifact_io
from headrace.collectives import CollectiveSettings
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.verify import Proof, verify
from headrace.compression import Accordion, AdaQS, Auto, CodecSpec, HandSet, Policy
from headrace.errors import ArtifactError
from headrace.index import Configuration, Index, ShardedIndex, Trace
from headrace.kinds import artifact_kinds
from headrace.memory import BudgetError, partitioner
from headrace.settings import Settings
from headrace.solver import Parameters
from headrace.testbed import TestbedSpec
from headrace.topology.importers import LinkCosts
from tests.old_files_test import DIGESTS, WRITTEN

ROOT = Path(__file__).parent.parent
PICKLES = Path(__file__).parent / "golden" / "pickles"


def artifact_value(kind: str) -> Any:
    path = WRITTEN / f"{kind}.headrace"
    return artifact_kinds()[kind].load(artifact_io.load(path), str(path))


def proof() -> Proof:
    return verify(Plan.load(WRITTEN / "plan.headrace").program)


VALUES: dict[str, Callable[[], Any]] = {
    **{kind: (lambda kind=kind: artifact_value(kind)) for kind in DIGESTS},
    "accordion": lambda: Accordion(low="powersgd:4", high="powersgd:1"),
    "adaqs": lambda: AdaQS(levels=("powersgd:1", "powersgd:2")),
    "artifact": lambda: artifact_io.load(WRITTEN / "topology.headrace"),
    "auto": Auto,
    "codec-specification": lambda: CodecSpec.parse("minmax:4"),
    "collective-settings": CollectiveSettings,
    "configuration": Configuration,
    "errors": lambda: [ArtifactError("plan: absent"), BudgetError("1 byte")],
    "hand-set": lambda: HandSet(levels=((0, "powersgd:2"), (3, "none"))),
    "link-costs": LinkCosts,
    "policy": lambda: Policy(codec="powersgd:4"),
    "proof": proof,
    "settings": Settings,
    "solver-parameters": Parameters,
    "testbed-specification": lambda: TestbedSpec.load(ROOT / "examples" / "testbed-2x2.toml"),
    "trace": lambda: Trace(
        loaded=np.arange(4, dtype=np.uint64),
        operations=np.zeros(2, dtype=np.uint8),
        keys=np.array([3, 1], dtype=np.uint64),
    ),
}


def load(name: str) -> Any:
    return pickle.loads(gzip.decompress((PICKLES / f"{name}.gz").read_bytes()))


def content(value: Any) -> Any:
    """The fields of a value and of the values in it, for comparison."""
    match value:
        case np.ndarray():
            return value.dtype.str, value.tolist()
        case BaseException():
            return type(value), value.args
        case dict():
            return {key: content(inner) for key, inner in value.items()}
        case list() | tuple():
            return [content(inner) for inner in value]
        case _ if is_dataclass(value):
            return type(value), {
                attribute.name: content(getattr(value, attribute.name))
                for attribute in fields(value)
            }
        case _:
            return value


def modules(pickled: bytes) -> set[str]:
    """The modules of headrace that a pickle of protocol 4 or later names."""
    texts = [argument for _, argument, _ in pickletools.genops(pickled)]
    return {text for text in texts if isinstance(text, str) and text.startswith("headrace.")}


def test_every_value_has_a_pickle() -> None:
    assert {path.stem for path in PICKLES.glob("*.gz")} == set(VALUES)


@pytest.mark.parametrize("name", VALUES)
def test_pickles_name_facades_alone(name: str) -> None:
    """So that the module of a class can be renamed: its pickles do not name it."""
    named = modules(pickle.dumps(VALUES[name]()))
    assert {module for module in named if not hasattr(import_module(module), "__all__")} == set()


@pytest.mark.parametrize(
    "value",
    [
        Index(np.arange(9), np.arange(9)),
        ShardedIndex(np.arange(9), np.arange(9)),
        partitioner("6GiB"),
    ],
    ids=repr,
)
def test_pickles_of_indexes_and_partitioners_name_facades_alone(value: object) -> None:
    pickled = pickle.dumps(value, protocol=4)
    assert modules(pickled) <= {"headrace.index", "headrace.memory"}
    assert repr(pickle.loads(pickled)) == repr(value)


def test_fields_that_a_pickle_lacks_have_their_defaults() -> None:
    """Fields are added behind the others: a pickle of an earlier version lacks the last ones."""
    plan = replace(artifact_value("attention-plan"), alternatives=(), output_error=None)
    for value, lacking in ((Policy(codec="powersgd:4"), 1), (plan, 2)):
        restored = object.__new__(type(value))
        restored.__setstate__(value.__getstate__()[:-lacking])
        assert content(restored) == content(value)


@pytest.mark.parametrize("name", VALUES)
def test_old_pickles_load(name: str) -> None:
    assert content(load(name)) == content(VALUES[name]())


if __name__ == "__main__":
    PICKLES.mkdir(exist_ok=True)
    for _name, _value in VALUES.items():
        _path = PICKLES / f"{_name}.gz"
        if not _path.exists():
            _path.write_bytes(gzip.compress(pickle.dumps(_value(), protocol=4), mtime=0))
