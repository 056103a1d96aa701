"""Examples of the verbs' help run, and print JSON that their schemas describe."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.instruments.command_line import (
    examples,
    verbs_without_example,
    verbs_without_json,
)
from headrace.cli.app import app
from headrace.cli.schema import schemas_of
from tests.collectives.measure.imports.iperf_json import result, write
from tests.documented import copy_examples, write_attention_model, write_module

SMALLER = {
    "dgx_a100 --nodes 4": "uniform --ranks 4",
    "--size 16MiB": "--size 1MiB --effort quick",
    "--examples 100K": "--examples 2K",
    "measure clicks.tsv": "measure clicks.tsv --batch 100 --lookahead 8 --no-rates",
    "plan keys.profile": "plan keys.profile --no-trial",
    "--repeats 3": "--repeats 1",
    "--budget 6GiB": "--budget 6MiB --effort quick",
    "testbed.toml": "examples/testbed-2x2.toml",
    "measure ./model": "measure ./model --samples 8 --sample-tokens 64",
    "plan ./model": "plan ./model --tokens 256 --sample-tokens 128",
    "evaluate ./model": "evaluate ./model --tokens 200 --sample-tokens 100",
    "adapt ./model": "adapt ./model --tokens 1000 --sample-tokens 100",
    "measure --model package.module:build": "measure --model package.module:step --steps 3",
}
"""Texts of the examples by what stands for them here."""

CHAIN = (
    "topology presets",
    "topology preset",
    "show",
    "compression plan",
    "embeddings generate",
    "index measure",
    "schema",
    "testbed topology",
    "testbed status",
)
SLOW_CHAIN = (
    "topology preset",
    "collectives synthesize",
    "verify",
    "report",
    "export",
    "collectives import-iperf",
    "collectives plan",
    "collectives adapt",
    "collectives sketch",
    "collectives trace",
    "embeddings generate",
    "embeddings measure",
    "embeddings plan",
    "index measure",
    "index plan",
    "index run",
    "index adapt",
    "memory measure",
    "memory plan",
    "compression measure",
    "doctor",
    "attention measure",
    "attention plan",
    "attention bound",
    "attention run",
    "attention evaluate",
    "attention adapt",
)
NOT_RUN = {
    "collectives measure": "makes network namespaces",
    "demo": "takes a minute",
    "embeddings run": "takes a script of the user's",
    "memory estimate": "needs timm",
    "testbed down": "would end the testbeds of others",
    "testbed exec": "needs a testbed that is up",
    "testbed run": "makes network namespaces",
    "testbed set-rate": "needs a testbed that is up",
    "testbed up": "makes network namespaces",
    "topology import": "needs the output of nvidia-smi",
    "topology infer": "needs probes of a machine with GPUs",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    copy_examples()
    np.save("keys.npy", np.random.default_rng(1).choice(1 << 40, 20_000, replace=False))
    for source, target in (("a", "b"), ("b", "a")):
        write(
            tmp_path,
            result(f"10.0.0.{source}", f"10.0.0.{target}", 400),
            f"{source}-to-{target}.json",
        )
    return tmp_path


def check_all(paths: Sequence[str]) -> None:
    """Run the verbs' examples, and hold what they print against their schemas."""
    schemas, commands = schemas_of(), examples()
    for path in paths:
        own = path.split()
        (line,) = (shlex.join(words) for words in commands[path] if words[: len(own)] == own)
        check(path, line, schemas[path])


def check(path: str, line: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a verb's example: its JSON is what the schema describes, and no more; its result."""
    for text, stand_in in SMALLER.items():
        line = line.replace(text, stand_in)
    outcome = CliRunner().invoke(app, _with_json(shlex.split(line)))
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), (
        f"{line}: {outcome.exception!r}"
    )
    document = json.loads(outcome.stdout)  # nothing else is on standard output
    jsonschema.validate(document, closed(schema))
    assert document["verb"] == path
    return document["result"]


def _with_json(words: list[str]) -> list[str]:
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place], "--json", *words[place:]]


def closed(schema: Any) -> Any:
    """A schema that refuses fields which it does not name."""
    match schema:
        case dict():
            inner = {name: closed(value) for name, value in schema.items()}
            return inner | {"additionalProperties": False} if "properties" in schema else inner
        case list():
            return [closed(value) for value in schema]
        case _:
            return schema


def test_every_verb_has_json_and_an_example() -> None:
    assert verbs_without_json() == []
    assert verbs_without_example() == []
    assert {*CHAIN, *SLOW_CHAIN, *NOT_RUN} == {*examples()}


def test_a_schema_that_says_nothing_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = {"properties": {"result": {"type": "object"}}}
    monkeypatch.setattr("benchmarks.instruments.command_line.schema_of", lambda *_: empty)
    assert {*verbs_without_json()} == {*examples()}


def test_examples_print_what_their_schemas_describe(folder: Path) -> None:
    check_all(CHAIN)


@pytest.mark.slow
def test_slow_examples_print_what_their_schemas_describe(folder: Path) -> None:
    write_module()
    write_attention_model()
    module = folder / "package/module.py"
    module.write_text(
        f"{module.read_text()}\ndef step():\n    network, (sample,) = build()\n"
        "    return network, lambda network: network(sample).square().mean()\n"
    )
    check_all(SLOW_CHAIN)


@pytest.mark.slow
def test_verbs_of_a_testbed_print_what_their_schemas_describe(folder: Path) -> None:
    schemas = schemas_of()

    def verb(name: str, arguments: str) -> Mapping[str, Any]:
        path = f"testbed {name}"
        return check(path, f"{path} {arguments}", schemas[path])

    run = verb("up", "examples/testbed-2x2.toml --fallback")["run"]
    try:
        assert verb("exec", f"host0 --name {run} -- sh -c 'exit 4'")["exit_code"] == 4
        assert verb("set-rate", f"host0 50Mbps --name {run}")["bytes_per_s"] == 6_250_000
        assert run in {testbed["run"] for testbed in verb("status", "")["testbeds"]}
    finally:
        assert verb("down", run)["removed"] == [run]
    ranks = verb("run", "examples/testbed-2x2.toml --fallback -- sh -c 'exit $RANK'")
    assert ranks["exit_code"] > 0
    assert len(ranks["ranks"]) == 4
