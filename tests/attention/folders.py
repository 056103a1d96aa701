"""A folder with a small model and its tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import PreTrainedTokenizerFast

from headrace.attention.measure.text import documentation
from tests.attention.models import WORDS, model_of


def write_model(path: Path, model: nn.Module | None = None) -> Path:
    """Write a model (of random weights where there is none) and a tokenizer into a folder."""
    (model or model_of("llama")).save_pretrained(path)
    words = sorted(set(documentation()[:20_000].split()))[: WORDS - 4]
    words = ["<pad>", "<s>", "</s>", "<unk>", *words]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(path)
    return path
