"""The commands, from a folder with a model to text by a plan."""

import copy
import json
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.attention import AttentionPlan, AttentionProfile, StorageFormat
from headrace.attention.cli import evaluate, measure
from headrace.attention.measure.text import text_digest, text_of_files
from headrace.attention.plan import step
from headrace.attention.plan.step import decoding_step, step_bound
from headrace.cli.app import app
from headrace.cli.interrupts import interrupts
from headrace.errors import InputError
from tests.attention.folders import write_model
from tests.attention.models import (
    model_of,
    plain_plan,
    shared_plan,
    with_bits,
    with_copied_heads,
)
from tests.old_files_test import WRITTEN

RUN = CliRunner()


def invoke(*arguments: object, code: int = 0) -> str:
    result = RUN.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code == 0 else str(result.exception)


@pytest.fixture(scope="module")
def profile(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attention") / "profile.json"
    output = invoke(
        "attention", "measure", folder, "-o", path, "--samples", 4, "--sample-tokens", 48
    )
    assert "Wrote" in output
    return path


@pytest.fixture(scope="module")
def plan(folder: Path, profile: Path) -> Path:
    path = profile.with_name("plan.json")
    output = invoke(
        *("attention", "plan", folder, "--profile", profile, "-o", path, "--loss", 0.5),
        *("--tokens", 256, "--sample-tokens", 128),
    )
    assert "bytes against loss" in output
    assert "requests that fit into 16 GiB" in output
    assert "what a step of decoding reads" in output
    return path


def test_a_plan_is_shown_verified_and_reported(profile: Path, plan: Path, tmp_path: Path) -> None:
    loaded = AttentionPlan.load(plan)
    assert loaded.share < 1
    clustered = any(layer.clustered for layer in loaded.layers)
    assert bool(loaded.alternatives) == (loaded.output_error is not None) == clustered
    assert ("8 of 8 heads represent" in invoke("show", plan)) == clustered
    assert loaded.chosen in {choice.name for choice in loaded.frontier}
    assert "correlation" in invoke("show", profile)
    assert loaded.chosen.split(",")[0] in invoke("show", plan)
    assert loaded.digest[:12] in invoke("verify", plan)
    altered = tmp_path / "altered.json"
    replace(loaded, layers=loaded.uncompressed().layers, alternatives=()).save(altered)
    assert "the layers take 100.0% of the bytes, the point that was" in invoke(
        "verify", altered, code=1
    )
    for path, content in ((profile, "Clustering error"), (plan, "Bytes against loss")):
        page = tmp_path / "page.html"
        invoke("report", path, "-o", page)
        assert content in page.read_text()


def test_a_plan_names_the_text_that_its_losses_are_of(
    folder: Path, profile: Path, tmp_path: Path
) -> None:
    """It had the digest of the profile's text; nothing said that a text was shorter than asked."""
    text, path = tmp_path / "own.txt", tmp_path / "own.plan"
    text.write_text("the value of an object " * 60)
    arguments = ("attention", "plan", folder, "--profile", profile, "-o", path, "--loss", 0)
    output = invoke(*arguments, "--text", text, "--sample-tokens", 128)
    assert AttentionPlan.load(path).text == text_digest(text_of_files([text]))
    tokens = AttentionPlan.load(path).provenance["tokens"]
    assert f"Losses are of {tokens:,} tokens, not 20,480: the text has no more." in output


def test_the_bound_of_a_step_is_printed_for_requests_tokens_and_a_device(
    plan: Path, tmp_path: Path
) -> None:
    loaded = AttentionPlan.load(plan)
    arguments = ("--requests", 3, "--cached-tokens", 700, "--cache-memory", "512MiB")
    output = invoke("attention", "bound", "--plan", plan, *arguments)
    assert f"{step_bound(loaded, batch=3, tokens=700):.2f}x" in output
    assert f"{(1 << 29) // loaded.cache_bytes(1, 700):,}" in output
    device = tmp_path / "device.json"
    device.write_text(
        '{"name": "a sheet", "flops_per_s": 1e12, "bytes_per_s": 1e3, "launch_us": 0}'
    )
    output = invoke("attention", "bound", "--plan", plan, *arguments, "--device", device)
    step = decoding_step(loaded, batch=3, tokens=700)
    assert "takes on a sheet" in output
    assert f"{step.read_bytes / 1e3:.4g} s" in output


def test_figures_of_a_bound_are_computed_once_for_its_tables_and_its_json(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were computed twice: for the tables, and again for the result."""
    steps: list[AttentionPlan] = []

    def counted_step(served: AttentionPlan, **sizes: int) -> step.DecodingStep:
        steps.append(served)
        return decoding_step(served, **sizes)

    monkeypatch.setattr(step, "decoding_step", counted_step)
    output = invoke(
        "attention", "bound", "--plan", plan, "--requests", 3, "--cached-tokens", 700, "--json"
    )
    (figures,) = json.loads(output)["result"]["steps"]
    own, planned = (decoding_step(served, batch=3, tokens=700) for served in steps)
    assert figures["own_read_bytes"] == own.read_bytes
    assert figures["plan_read_bytes"] == planned.read_bytes
    assert figures["faster_at_most"] == own.read_bytes / planned.read_bytes


def test_generation_says_where_a_prompt_is_left_to_the_stock_kernel(
    folder: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "shared.json"
    shared_plan(model_of("llama"), fixed=True).save(plan)
    arguments = ("attention", "run", folder, "--plan", plan, "--new-tokens", 2, "--prompt")
    short = invoke(*arguments, "the value of " * 10)
    assert "in 2 layers: the stock kernel computed all heads' scores: the prompt is short" in short
    assert "in 2 layers: scores of representatives alone" in invoke(*arguments, "the value " * 80)


@pytest.mark.parametrize(
    "options",
    [{"use_cache": False}, {"cache_implementation": "static", "return_dict_in_generate": True}],
)
def test_a_folders_options_of_generation_are_none_of_caches(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Without caches, as after training with checkpoints, each step of its own text read all tokens
    once more, and the plan's was an error that asked for an argument of a call."""
    model = copy.deepcopy(model_of("llama"))
    model.generation_config.update(**options)
    folder, plan = write_model(tmp_path / "model", model), tmp_path / "plan.json"
    plain_plan(model).save(plan)
    arguments = ("--plan", plan, "--prompt", "the value of an object", "--new-tokens", 8, "--json")
    answer = json.loads(invoke("attention", "run", folder, *arguments))
    own, planned = answer["result"]["generations"]
    assert own["text"] == planned["text"]


def test_a_tokenizers_types_of_tokens_are_not_passed_to_a_model_without(
    folder: Path, plan: Path, tmp_path: Path
) -> None:
    """ValueError of Transformers: the model does not use token_type_ids."""
    typed = shutil.copytree(folder, tmp_path / "typed")
    config = json.loads((typed / "tokenizer_config.json").read_text())
    config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (typed / "tokenizer_config.json").write_text(json.dumps(config))
    output = invoke(
        "attention", "run", typed, "--plan", plan, "--prompt", "the value", "--new-tokens", 2
    )
    assert "plan's" in output


def test_text_and_losses_by_a_plan(folder: Path, plan: Path) -> None:
    output = invoke(
        "attention", "run", folder, "--plan", plan, "--prompt", "the value of", "--new-tokens", 5
    )
    assert "model's own" in output
    assert "plan's" in output
    output = invoke(
        "attention", "evaluate", folder, "--plan", plan, "--tokens", 200, "--sample-tokens", 100
    )
    assert f"at {AttentionPlan.load(plan).share:.0%} of the cache's bytes, on 200 tokens" in output


def test_a_share_is_of_the_type_that_a_plan_is_evaluated_in(folder: Path, tmp_path: Path) -> None:
    """It was of the type that the plan was made for: 56% of the bytes in place of 28%."""
    plan = with_bits(plain_plan(model_of("llama")), StorageFormat.INT8, StorageFormat.INT8)
    path = tmp_path / "half.plan"
    replace(plan, element_bytes=2).save(path)
    output = invoke(
        "attention", "evaluate", folder, "--plan", path, "--tokens", 200, "--sample-tokens", 100
    )
    assert f"at {plan.share:.0%} of the cache's bytes" in output


def test_the_texts_own_continuation_among_others(folder: Path, plan: Path, tmp_path: Path) -> None:
    arguments = ("attention", "evaluate", folder, "--plan")
    task = ("--tasks", "continuation", "--limit", 12, "--sample-tokens", 120)
    output = invoke(*arguments, plan, *task)
    assert "with standard errors" in output
    row = next(line.split() for line in output.splitlines() if "continuation" in line)
    assert row[:3] == ["continuation", "12", "accuracy"]
    assert row.count("±") == 3
    own = tmp_path / "own.json"
    loaded = AttentionPlan.load(plan)
    loaded.uncompressed().save(own)
    assert "keeps all as the model's own cache does" in invoke(*arguments, own, *task, code=1)
    assert "--tasks names none" in invoke(*arguments, plan, "--tasks", ",", code=1)
    assert "--task-folder is" in invoke(
        *arguments, plan, *task, "--task-folder", tmp_path / "none", code=1
    )


def test_options_that_nothing_uses_are_refused(folder: Path, plan: Path, tmp_path: Path) -> None:
    """Without tasks, or with others than those that use them, they were ignored."""
    arguments = ("attention", "evaluate", folder, "--plan", plan)
    task = ("--tasks", "continuation")
    for given, options in (
        ((), (["--download"], ["--task-folder", tmp_path], ["--limit", 8])),
        (task, (["--download"], ["--task-folder", tmp_path], ["--tokens", 200])),
    ):
        for option in options:
            refusal = f"{option[0]} has no effect with"
            assert refusal in invoke(*arguments, *given, *option, code=1)
    text = tmp_path / "text.txt"
    for name, argument in (("--text", text), ("--sample-tokens", 64), ("--skip", 1)):
        options = {"--text": None, "--sample-tokens": None, "--skip": None, name: argument}
        with pytest.raises(InputError, match=f"{name} has no effect on tasks of lm-eval"):
            evaluate._check_effects(["arc_easy"], ["arc_easy"], {"--tokens": None, **options})


def test_texts_too_short_to_be_compressed_tell_no_loss(
    folder: Path, profile: Path, tmp_path: Path
) -> None:
    """Plans had keys of 4 bits, or of fewer heads, whose loss was that of none, and evaluations
    printed it."""
    output = tmp_path / "out.plan"
    arguments = ("attention", "plan", folder, "--profile", profile, "-o", output)
    result = RUN.invoke(app, [*map(str, arguments), "--sample-tokens", "64"])
    assert result.exit_code == 2
    assert "--sample-tokens" in result.output
    model, path = model_of("llama"), tmp_path / "short.plan"
    for plan, least in (
        (with_bits(plain_plan(model), StorageFormat.INT4, StorageFormat.INT8), 64),
        (replace(shared_plan(model, fixed=False), first_tokens=30), 30),
    ):
        plan.save(path)
        evaluation = ("attention", "evaluate", folder, "--plan", path)
        for options in ((), ("--tasks", "continuation", "--limit", 4)):
            tokens = least + 16 * bool(options)
            error = invoke(*evaluation, *options, "--sample-tokens", tokens, code=1)
            assert f"texts of {least} tokens, whose keys the plan does not" in error
    assert "added" in invoke(*evaluation, "--sample-tokens", 31, "--tokens", 62)


def test_one_sample_has_no_standard_error(
    folder: Path, profile: Path, plan: Path, tmp_path: Path
) -> None:
    """It was 0, as if the loss was exact: a plan was held against the loss alone."""
    path, sizes = tmp_path / "plan.json", ("--tokens", 128, "--sample-tokens", 128)
    refusal = invoke(
        *("attention", "plan", folder, "--profile", profile, "-o", path, *sizes), code=1
    )
    assert "losses are of one sample of 128 tokens, needs two: their standard error" in refusal
    assert not path.exists()
    evaluation = ("attention", "evaluate", folder, "--plan", plan, *sizes)
    assert "(one sample, without a standard error)" in " ".join(invoke(*evaluation).split())
    assert json.loads(invoke(*evaluation, "--json"))["result"]["loss"]["added_error"] is None


def test_the_page_of_a_profile_has_the_chapters_figures(profile: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    invoke("report", profile, "-o", page)
    html = page.read_text()
    for number in ("6.1", "6.3 and 6.4", "6.5", "6.6", "6.10"):
        assert f"Figure {number})" in html or f"Figures {number})" in html
    # of two layers: correlations and output errors; then five of all layers
    assert html.count('class="figure"') == 2 * 2 + 5
    assert "one sample, without the first token" in html
    invoke("report", WRITTEN / "attention-profile.headrace", "-o", page)
    assert "one sample, without the first token" not in page.read_text()


def test_an_interrupt_keeps_the_samples_that_are_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    @contextmanager
    def second_sample() -> Generator[Callable[[], bool]]:
        with interrupts() as struck:

            def after() -> bool:
                asked.append(1)
                if len(asked) == 2:
                    signal.raise_signal(signal.SIGINT)
                return struck()

            yield after

    monkeypatch.setattr(measure, "interrupts", second_sample)
    path = tmp_path / "profile.json"
    output = invoke(
        "attention", "measure", folder, "-o", path, "--samples", 4, "--sample-tokens", 48
    )
    assert "of 2 samples: interrupted." in " ".join(output.split())
    assert AttentionProfile.load(path).samples == 2
    monkeypatch.undo()
    text = tmp_path / "short.txt"
    text.write_text("the " * 100)
    arguments = ("attention", "measure", folder, "-o", path, "--sample-tokens", 48, "--text", text)
    assert "of 2 samples: the text has no more." in " ".join(invoke(*arguments).split())


@pytest.mark.parametrize("method", ["chai", "chai-static"])
def test_the_papers_plans_are_written_and_evaluated(method: str, tmp_path: Path) -> None:
    copied = write_model(tmp_path / "model", with_copied_heads())
    profile, path = tmp_path / "profile.json", tmp_path / "plan.json"
    invoke("attention", "measure", copied, "-o", profile, "--samples", 4, "--sample-tokens", 48)
    output = invoke(
        *("attention", "plan", copied, "--profile", profile, "-o", path, "--method", method)
    )
    assert "CHAI: clusters by elbow" in output
    chai = ("attention", "plan", copied, "--profile", profile, "-o", path, "--method", method)
    assert "--loss has no effect with --method" in invoke(*chai, "--loss", 0, code=1)
    plan = AttentionPlan.load(path)
    assert [layer.clusters for layer in plan.layers] == [2, 2]
    fixed = method == "chai-static"
    for layer in plan.layers:
        assert (layer.representatives is not None) == fixed
        if fixed:
            assert layer.representatives[:2] == layer.representatives[2:]
    assert plan.weights is not None
    output = invoke(
        *("attention", "evaluate", copied, "--plan", path, "--tokens", 96, "--sample-tokens", 48)
    )
    assert "added +0.00%" in output, "copies share without a change"


def test_a_missing_package_of_tasks_is_named(
    folder: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    error = invoke("attention", "evaluate", folder, "--plan", plan, "--tasks", "arc_easy", code=1)
    assert "evaluating arc_easy needs the package lm_eval: pip install 'headrace[tasks]'" in error


def test_a_plan_adapts_to_a_text(folder: Path, plan: Path, tmp_path: Path) -> None:
    log = tmp_path / "events"
    output = invoke(
        *("attention", "adapt", folder, "--plan", plan, "--log", log),
        *("--tokens", 1000, "--sample-tokens", 100, "--every", 2),
    )
    assert "10, of which 5 observed" in output
    assert f"{AttentionPlan.load(plan).clusters}, in the end" in output
    errors = [json.loads(line)["output_error"] for line in log.read_text().splitlines()[:5]]
    assert all(error > 0 for error in errors)
    assert f"{errors[0]:.2g}" in output


def test_mistakes_are_named(folder: Path, profile: Path, plan: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    assert "--prompt has no tokens" in invoke(
        "attention", "run", folder, "--plan", plan, "--prompt", "", code=1
    )
    assert "needs 'attention-plan'; make one with headrace attention plan" in invoke(
        "attention", "run", folder, "--plan", profile, "--prompt", "a", code=1
    )
    for command in (
        ("attention", "measure", folder, "-o", output, "--sample-tokens", 5000),
        ("attention", "evaluate", folder, "--plan", plan, "--sample-tokens", 5000),
        ("attention", "adapt", folder, "--plan", plan, "--sample-tokens", 5000),
        ("attention", "run", folder, "--plan", plan, "--prompt", "the", "--new-tokens", 5000),
        ("attention", "plan", folder, "--profile", profile, "-o", output)
        + ("--sample-tokens", 5000),
    ):
        assert "the model has positions for 2048" in invoke(*command, code=1)
    assert "is no folder" in invoke("attention", "measure", tmp_path / "none", "-o", output, code=1)
    assert "Transformers cannot load it" in invoke(
        "attention", "measure", tmp_path, "-o", output, code=1
    )
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert f"{damaged}: Transformers cannot load it: " in invoke(
        "attention", "measure", damaged, "-o", output, code=1
    )
    deeper = shutil.copytree(folder, tmp_path / "deeper")
    config = json.loads((deeper / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (deeper / "config.json").write_text(json.dumps(config))
    assert f"{deeper}: its weights lack " in invoke(
        "attention", "measure", deeper, "-o", output, code=1
    )
    assert "--dtype is int3, needs float32 or bfloat16" in invoke(
        "attention", "measure", folder, "-o", output, "--dtype", "int3", code=1
    )
    assert "is of another model, or of this one in another --dtype" in invoke(
        *("attention", "plan", folder, "--profile", profile, "-o", output),
        *("--dtype", "bfloat16"),
        code=1,
    )
    assert "--loss is inf, needs a finite number" in invoke(
        *("attention", "plan", folder, "--profile", profile, "-o", output),
        *("--loss", "inf"),
        code=1,
    )
    assert not output.exists()
