"""A cache of Transformers whose layers hold what a plan keeps."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.attention.errors import AttentionError
from headrace.attention.models import check_plan
from headrace.attention.new_keys import new_keys
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.contexts import check_compressing
from headrace.attention.run.layer import LayerCache
from headrace.attention.transformers import Cache, CacheLayerMixin
from headrace.facades import offered_by


class CompressedLayer(CacheLayerMixin):
    """One layer: what Transformers asks a cache for, about a `LayerCache`.

    Keys and values are stored with the attention over them, which needs the queries, too: `update`
    hands them on.
    """

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, layer: LayerCache, capacity: int | None) -> None:
        super().__init__()
        self.layer = layer
        self._capacity = capacity

    @property
    def batch_size(self) -> int:
        """Requests; 0 before the first."""
        return self.layer.batch

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the first attention allocates."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the new keys and values, with the layer that the attention stores them in."""
        del options
        check_compressing()
        return new_keys(key_states, self.layer), value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the tokens of a mask, and the first one's place.

        Raises
        ------
        AttentionError : a compiled step has a cache without a fixed size.
        """
        if not torch.compiler.is_compiling():
            return self.layer.tokens + query_length, 0
        if self._capacity is None:
            raise AttentionError(
                "a compiled model needs a cache of fixed size: "
                "headrace.attention.cache(model, plan, max_tokens=...)"
            )
        return self._capacity, 0

    def get_seq_length(self) -> Any:
        """Return the tokens that are stored; while a step is compiled, as a tensor."""
        return self.layer.length if torch.compiler.is_compiling() else self.layer.tokens

    def get_max_length(self) -> int:
        """Return the tokens for which there is room; -1 without a limit."""
        return -1 if self._capacity is None else self._capacity

    def offload(self) -> None:
        """Refuse: such a cache stays where the model is."""
        raise AttentionError("a compressed cache cannot be offloaded")

    def prefetch(self) -> None:
        """Do nothing: nothing is offloaded."""

    def reset(self) -> None:
        """Forget all tokens."""
        self.layer.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the requests of beams, each any number of times."""
        self.layer.select(beam_idx)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Refuse what `crop` refuses."""
        if tokens_to_remove > 0:
            raise AttentionError(
                f"crop takes a negative number of tokens to remove, found {tokens_to_remove}"
            )
        self.layer.check_crop(-tokens_to_remove)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest tokens: as many as the number's magnitude.

        Raises
        ------
        AttentionError : the number is positive; see `KeyValueStore.check_crop`; nothing is removed.
        """
        self.check_crop(tokens_to_remove)
        self.layer.crop(-tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every request."""
        self.layer.select(torch.arange(self.layer.batch, device="cpu").repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor | Sequence[int]) -> None:
        """Keep some requests; a cache without tokens has none."""
        if self.layer.tokens:
            requests = torch.arange(self.layer.batch, device="cpu")
            places = indices.cpu() if isinstance(indices, Tensor) else indices
            self.layer.select(requests[places])


@offered_by("headrace.attention")
class CompressedCache(Cache):
    """Keys and values of requests as a plan stores them; pass it as ``cache`` to a model.

    It can be copied and saved (`copy.deepcopy`, `torch.save`), and used over several turns.

    Parameters
    ----------
    max_tokens, through_store : see `LayerCache`.

    Raises
    ------
    AttentionError : `max_tokens` is not positive.
    """

    def __init__(
        self, plan: AttentionPlan, max_tokens: int | None = None, *, through_store: bool = False
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise AttentionError(f"max_tokens is {max_tokens}, needs at least 1")
        self._compressed = [
            CompressedLayer(
                LayerCache(
                    layer,
                    first_tokens=plan.first_tokens,
                    capacity=max_tokens,
                    through_store=through_store,
                ),
                max_tokens,
            )
            for layer in plan.layers
        ]
        super().__init__(layers=[*self._compressed])
        self.plan = plan

    def __repr__(self) -> str:
        """Return requests, tokens and bytes."""
        layer = self._compressed[0]
        return (
            f"<CompressedCache: {layer.batch_size} requests, {layer.get_seq_length()} tokens, "
            f"{self.allocated_bytes} bytes>"
        )

    @property
    def is_initialized(self) -> bool:
        """True if there are tokens: some models mask the first call of a text otherwise."""
        return self._compressed[0].layer.tokens > 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest tokens from all layers, or from none: see `CompressedLayer.crop`."""
        for layer in self._compressed:
            layer.check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)

    def check_complete(self, layers: int | None) -> None:
        """Refuse a cache of which some layers alone have taken a call, or a selection of requests.

        Parameters
        ----------
        layers : the first ones, which a call computes; None: all.

        Raises
        ------
        AttentionError
        """
        computed = [layer.layer for layer in self._compressed[:layers]]
        tokens = [layer.tokens for layer in computed]
        if tokens and min(tokens) != max(tokens):
            raise AttentionError(
                f"the cache has {max(tokens)} tokens in some layers and {min(tokens)} in others: a "
                "call was interrupted; begin with a new cache, or with a copy from before"
            )
        selections = {layer.selections for layer in computed}
        if len(selections) > 1:
            raise AttentionError(
                "the cache has its requests in other places in some layers: a selection of them "
                "was interrupted; begin with a new cache, or with a copy from before"
            )

    @property
    def prompt_paths(self) -> dict[str, int]:
        """Calls of clustered layers with many queries, by how scores were computed.

        Those of representatives alone, or those of all heads by the stock kernel, by the reason for
        which it is faster.
        """
        return dict(sum((layer.layer.prompt_paths for layer in self._compressed), Counter[str]()))

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.layer.allocated_bytes for layer in self._compressed)


def new_cache(
    model: nn.Module, plan: AttentionPlan, *, max_tokens: int | None = None
) -> CompressedCache:
    """Return an empty cache; see `headrace.attention.cache`."""
    check_plan(model, plan)
    return CompressedCache(plan, max_tokens)
