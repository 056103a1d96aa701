"""Tasks of lm-eval on a small model: the user's own, in lm-eval's format; nothing is downloaded."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from headrace.attention import AttentionError, StorageFormat
from headrace.attention.cli.models import load_folder
from headrace.attention.run.compress import evaluated
from headrace.cli.app import app
from tests.attention.folders import write_model
from tests.attention.models import model_of, plain_plan, with_bits

pytest.importorskip("lm_eval")
pytestmark = [
    pytest.mark.slow,
    # of the data library's and lm-eval's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUESTION = {
    "context": "an object is a value of some type in a module, the " * 8,
    "choices": ["name of the class", "value", "object that is"],
    "answer": 1,
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three tasks: choices, generation, and the likelihood of whole texts."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "data.jsonl"
    data.write_text("\n".join(json.dumps(QUESTION | {"answer": index}) for index in (0, 1, 2)))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "doc_to_text": "{{context}}",
    }
    kinds = {
        "own_choice": {
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}],
        },
        "own_answer": {
            "output_type": "generate_until",
            "doc_to_target": "value",
            "generation_kwargs": {"until": ["."], "max_gen_toks": 4, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
        "own_text": {
            "output_type": "loglikelihood_rolling",
            "doc_to_target": "{{context}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    }
    for name, kind in kinds.items():
        # JSON is YAML
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **shared, **kind}))
    return folder


def evaluate(folder: Path, plan: Path, *arguments: object) -> tuple[int, str]:
    words = ["attention", "evaluate", folder, "--plan", plan, *arguments]
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output if result.exit_code == 0 else str(result.exception)


@pytest.fixture(autouse=True)
def _without_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test before these may have imported the library of data sets, which reads it once."""
    if config := sys.modules.get("datasets.config"):
        monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    with_bits(plain_plan(model_of("llama")), StorageFormat.INT8, StorageFormat.INT8).save(path, {})
    return path


def test_tasks_of_every_kind_are_scored_with_the_plan_and_without(
    folder: Path, plan: Path, tasks: Path
) -> None:
    names = "own_choice,own_answer,own_text,continuation"
    code, output = evaluate(
        folder, plan, "--tasks", names, "--task-folder", tasks, "--limit", 30, "--sample-tokens", 40
    )
    assert code == 0, output
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert rows["continuation"][1:3] == ["30", "accuracy"]
    # three questions that differ in the answer alone: one of them is right, whatever is likely
    assert rows["own_choice"][1:6] == ["3", "acc", "0.3333", "±", "0.33"]
    assert rows["own_answer"][1:3] == ["3", "exact_match"]
    perplexities = [float(word) for word in rows["own_text"] if word[0].isdigit()][1:3]
    assert float(rows["own_text"][-1]) != 0, "the plan changed nothing"
    assert perplexities[0] == pytest.approx(perplexities[1], rel=0.2)


def test_what_is_not_here_is_named_and_not_fetched(folder: Path, plan: Path, tasks: Path) -> None:
    code, error = evaluate(folder, plan, "--tasks", "arc_easy")
    assert code
    assert "the data of task arc_easy is not on this machine" in error
    assert "pass --download to fetch it" in error
    code, error = evaluate(folder, plan, "--tasks", "no_such_task", "--task-folder", tasks)
    assert code
    assert "--tasks names no_such_task, which lm-eval does not have" in error


def test_a_text_without_a_context_begins_as_for_models_of_lm_eval(folder: Path) -> None:
    """It began after the token that ends a text: scores were others than lm-eval's."""
    from lm_eval.api.instance import Instance
    from transformers import AutoTokenizer

    from headrace.attention.run.harness import _Adapter

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.bos_token_id != tokenizer.eos_token_id
    adapter = _Adapter(model_of("llama"), tokenizer, None, lambda *_: None)
    alone, after = (
        Instance("loglikelihood", {}, (context, "the value of an object"), index)
        for index, context in enumerate(("", tokenizer.bos_token))
    )
    with torch.no_grad():
        (score, _), (expected, _) = adapter.loglikelihood([alone, after])
    assert score == pytest.approx(expected, rel=1e-4)
    assert adapter.eot_token_id == tokenizer.eos_token_id


def tokenizer_that_begins(folder: Path) -> Any:
    """Return a folder's tokenizer, which begins every text with BOS, as Llama's does."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    first = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{first[0]} $A", special_tokens=[first]
    )
    assert tokenizer("the")["input_ids"][0] == tokenizer.bos_token_id
    return tokenizer


def test_a_text_that_its_tokenizer_begins_has_one_beginning(folder: Path) -> None:
    """It had two, as with Llama's tokenizer, and the second one's likelihood was the text's."""
    from lm_eval.api.instance import Instance
    from transformers import AutoTokenizer

    from headrace.attention.run.harness import _Adapter

    scores: list[float] = []
    for tokenizer in (AutoTokenizer.from_pretrained(folder), tokenizer_that_begins(folder)):
        adapter = _Adapter(model_of("llama"), tokenizer, None, lambda *_: None)
        text = Instance("loglikelihood_rolling", {}, ("the value of an object",), 0)
        with torch.no_grad():
            scores += adapter.loglikelihood_rolling([text])
    assert scores[0] == scores[1]


def test_a_prompt_that_has_its_own_beginning_has_one(folder: Path) -> None:
    """It had two, as of a task that writes prompts of chats, where lm-eval's models have one."""
    from headrace.attention.run.harness import _Adapter

    tokenizer = tokenizer_that_begins(folder)
    adapter = _Adapter(model_of("llama"), tokenizer, None, lambda *_: None)
    expected = adapter.tok_encode("the value of")
    assert adapter.tok_encode(f"{tokenizer.bos_token} the value of") == expected
    assert adapter.tok_encode("the value of", add_special_tokens=False) == expected[1:]


def test_answers_are_of_the_length_and_sampling_that_a_task_asks_lm_eval_for(folder: Path) -> None:
    """Other names of the length were ignored, 256 tokens in their place, and so was a temperature
    alone; a length beyond the model's positions was an IndexError, or no text."""
    from lm_eval.api.instance import Instance
    from transformers import AutoTokenizer

    from headrace.attention.run.harness import _Adapter

    model: Any = copy.deepcopy(model_of("llama"))
    asked: list[dict[str, Any]] = []

    def generate(input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.append(options)
        return input_ids

    model.generate = generate
    adapter = _Adapter(model, AutoTokenizer.from_pretrained(folder), None, lambda *_: None)

    def answer(**options: Any) -> dict[str, Any]:
        adapter.generate_until([Instance("generate_until", {}, ("the value of", options), 0)])
        return asked[-1]

    assert answer(until=["."])["max_new_tokens"] == 256
    for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"):
        assert answer(until=None, **{name: 7})["max_new_tokens"] == 7
    sampled = answer(until=".", temperature=0.7, top_p=0.9)
    assert (sampled["do_sample"], sampled["temperature"], sampled["top_p"]) == (True, 0.7, 0.9)
    greedy = answer(do_sample=False, temperature=0.7, num_beams=2)
    assert (greedy["do_sample"], greedy["num_beams"]) == (False, 2)
    assert "temperature" not in greedy
    with pytest.raises(AttentionError, match="answers of 2048 tokens, the model has positions for"):
        answer(max_gen_toks=2048)


def test_a_folders_options_of_generation_are_none_of_a_tasks_caches(tmp_path: Path) -> None:
    """The plan's cache was refused, and an answer was none of tokens."""
    from lm_eval.api.instance import Instance

    from headrace.attention.run.harness import _Adapter

    model = copy.deepcopy(model_of("llama"))
    model.generation_config.update(cache_implementation="static", return_dict_in_generate=True)
    loaded, tokenizer = load_folder(write_model(tmp_path, model), "float32")
    plan = with_bits(plain_plan(model), StorageFormat.INT8, StorageFormat.INT8)
    request = Instance("generate_until", {}, ("the value of", {"max_gen_toks": 4}), 0)
    for used in (None, plan):
        adapter = _Adapter(loaded, tokenizer, used, lambda *_: None)
        with evaluated(loaded, used):
            (answer,) = adapter.generate_until([request])
        assert isinstance(answer, str)
        assert adapter.compressed == (used is not None)
