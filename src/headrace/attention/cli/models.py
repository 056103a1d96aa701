"""Models and tokenizers in folders, and options about the text that they read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.attention.errors import AttentionError
from headrace.cli.options import plan_option
from headrace.extras import require

if TYPE_CHECKING:
    from torch.nn import Module

FolderArgument = Annotated[
    Path, typer.Argument(help="Folder of a model and its tokenizer, as Transformers saves them.")
]
TextOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--text",
        help="File of text, any number of times.",
        show_default="the documentation of Python's standard library",
    ),
]
SampleTokens = Annotated[int, typer.Option(help="Tokens of a sample.", min=16)]
TextTokens = Annotated[int, typer.Option(help="Tokens of text to read.", min=1)]
Skip = Annotated[int, typer.Option(help="Samples at the beginning to leave out.", min=0)]
PlanOption = Annotated[Path, plan_option("an attention plan")]
TypeOption = Annotated[
    str, typer.Option("--dtype", help="Type of the parameters: float32 or bfloat16.")
]


def load_folder(folder: Path, dtype: str) -> "tuple[Module, Any]":
    """Return a folder's model and tokenizer; nothing is downloaded.

    Raises
    ------
    AttentionError : the folder has none that Transformers loads.
    """
    require("transformers", "attention", "compressing attention")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in types:
        raise AttentionError(f"--dtype is {dtype}, needs {' or '.join(types)}")
    if not folder.is_dir():
        raise AttentionError(f"{folder} is no folder: save a model there with save_pretrained")
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=types[dtype], local_files_only=True, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of any kind, by what is damaged: weights, configuration, names
        reason = " ".join(str(error).split())
        raise AttentionError(f"{folder}: Transformers cannot load it: {reason}") from error
    model, loading = loaded
    if lacking := sorted(loading["missing_keys"]):  # which Transformers draws at random
        raise AttentionError(
            f"{folder}: its weights lack {len(lacking)} parameters of a {type(model).__name__}, "
            f"{lacking[0]} among them: they are another model's than config.json"
        )
    # the folder's options may ask for other caches, or for other results of generate
    model.generation_config.update(
        use_cache=True, cache_implementation=None, return_dict_in_generate=False
    )
    return model.eval(), tokenizer


def check_positions(model: "Module", tokens: int, options: str) -> None:
    """Refuse more tokens in a row than a model has positions for.

    Parameters
    ----------
    options : of the command that ask for so many.

    Raises
    ------
    AttentionError
    """
    from headrace.attention.models import position_limit

    limit = position_limit(model)
    if limit is not None and tokens > limit:
        raise AttentionError(
            f"{options} ask for {tokens} tokens in a row, the model has positions for {limit}"
        )


def element_bytes(model: "Module") -> int:
    """Return the bytes of a number in a model's own cache."""
    return next(model.parameters()).element_size()
