"""Pickles of earlier versions (golden/pickles) load: of a value of every public type that has one.

A pickle names the facades that offer its classes; those of versions before 0.2 name the modules
that their classes were in, which `FORMER_MODULES` of headrace.facades leads to the facades. The
files are never written anew.
``python -m tests.old_pickles_test`` writes those that are missing.
"""

import gzip
import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import pairwise
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
from headrace.facades import FORMER_MODULES
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
    # earlier versions had a limit where none was set
    "collective-settings": lambda: CollectiveSettings(deadline_limit_s=1800.0),
    "configuration": Configuration,
    "errors": lambda: [ArtifactError("plan: absent"), BudgetError("1 byte")],
    "hand-set": lambda: HandSet(levels=((0, "powersgd:2"), (3, "none"))),
    "link-costs": LinkCosts,
    "policy": lambda: Policy(codec="powersgd:4"),
    "proof": proof,
    "settings": lambda: Settings(deadline_limit_s=1800.0),
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


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("headrace.index.run.index", (Index, np.arange(9), None, None, Configuration())),
        ("headrace.index.run.sharded", (np.arange(9), np.arange(9), "int64", 2, Configuration())),
    ],
)
def test_earlier_pickles_of_indexes_load(module: str, arguments: tuple[Any, ...]) -> None:
    """They name a function beside the class, which has to exist."""
    assert len(import_module(module)._restored(*arguments)) == 9


def test_former_modules_lead_to_facades_that_offer_what_old_pickles_name() -> None:
    """As if every module that an old pickle names had been renamed since."""
    for name in VALUES:
        pickled = gzip.decompress((PICKLES / f"{name}.gz").read_bytes())
        texts = [text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str)]
        for module, attribute in pairwise(texts):
            if module.startswith("headrace.") and not attribute.startswith("headrace."):
                facade = import_module(FORMER_MODULES.get(module, module))
                assert hasattr(facade, "__all__"), module
                assert attribute in facade.__all__, f"{module}.{attribute}"


def test_a_module_that_no_longer_exists_is_taken_from_its_facade() -> None:
    program = (
        "import headrace, headrace.facades as facades; "
        "facades.FORMER_MODULES['headrace.index.gone.away'] = 'headrace.index'; "
        "from headrace.index.gone.away import Trace, IndexPlan; "
        "print(Trace.__module__, IndexPlan.__name__)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("headrace.index IndexPlan\n", "")
    with pytest.raises(ModuleNotFoundError):
        import_module("headrace.index.gone")


@pytest.mark.parametrize("name", VALUES)
def test_old_pickles_load(name: str) -> None:
    assert content(load(name)) == content(VALUES[name]())


if __name__ == "__main__":
    PICKLES.mkdir(exist_ok=True)
    for _name, _value in VALUES.items():
        _path = PICKLES / f"{_name}.gz"
        if not _path.exists():
            _path.write_bytes(gzip.compress(pickle.dumps(_value(), protocol=4), mtime=0))
