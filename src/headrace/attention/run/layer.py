"""One layer's attention over its cache: membership from the first tokens, then representatives.

One causal pass: a request's first tokens are computed with all heads; their probabilities tell
which heads look at the same tokens (section 6.2.3). From then on scores are those of the
representatives, and the other heads' keys are gone. Values all stay.
"""

import copy
from collections import Counter
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import _native
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.plan.plan import LayerPlan, uncompressed_layer
from headrace.attention.run.attend import (
    NATIVE_QUERIES,
    attend_prompt,
    attend_store,
    heads_of,
    stock_reason,
)
from headrace.attention.run.membership import HeadMembership, UsedHeads, within_key_heads
from headrace.attention.run.operator import registered
from headrace.attention.run.rows import check_dim
from headrace.attention.run.store import KeyValueStore, check_room

SHARED = "scores of representatives alone"


@contextmanager
def _without_modes(device: str = "cpu") -> Generator[None]:
    """Leave inference mode, whose tensors later calls could not write, and a device's autocast."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
        yield


def _modes_left(query: Tensor) -> AbstractContextManager[None]:
    """Return `_without_modes` for a query in such a mode: leaving one costs as a token does."""
    device = query.device.type
    if query.is_inference() or torch.is_autocast_enabled(device):
        return _without_modes(device)
    return nullcontext()


class LayerObserver(Protocol):
    """Follows the attention over one layer's cache."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes that it keeps."""
        ...

    def attended(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        output: Tensor,
        *,
        scale: float,
        allowed: Tensor | None,
    ) -> bool:
        """Take the arguments of `LayerCache.attend`, and what it returned; False: the last ones."""
        ...

    def crop(self, tokens: int) -> None:
        """Forget the newest tokens."""

    def select(self, requests: Tensor) -> None:
        """Follow requests to their new places."""

    def reset(self) -> None:
        """Forget all tokens and requests."""


class LayerCache:
    """Cache of one layer, and the attention over it.

    Parameters
    ----------
    plan : of the layer.
    first_tokens : real ones (no padding) of a request by whose probabilities its heads are
        clustered, where the plan has no representatives.
    capacity : tokens for which there is room; None: it grows.
    through_store : a prompt's queries read its keys and values as they are stored, as later queries
        do; otherwise as they are computed.

    Attributes
    ----------
    observer : None: none. A copy of the cache has none, and neither has a saved one.
    length : the tokens that are stored, as a tensor, for compiled code. The caller of `attend` adds
        to it: compiled code does so itself, and may still need the former number.
    selections : times that requests were selected.
    prompt_paths : calls of many queries that computed the scores of representatives alone
        (`SHARED`), and those that left it to the stock kernel, by reason. Copies begin anew.
    state : by which the operator of compiled code refers to the layer.
    """

    @_without_modes()
    def __init__(
        self,
        plan: LayerPlan,
        *,
        first_tokens: int,
        capacity: int | None = None,
        through_store: bool = False,
    ) -> None:
        check_dim(plan.keys, plan.heads.dim)
        check_dim(plan.values, plan.heads.dim)
        self.plan = plan
        self._first_tokens = first_tokens
        self._capacity = capacity
        self._through_store = through_store
        self._store: KeyValueStore | None = None
        self._membership: HeadMembership | None = None
        self._first: _FirstTokens | None = None
        self.observer: LayerObserver | None = None
        self.length = torch.tensor(0, device="cpu")
        self.state = registered(self)
        self.selections = 0
        self._used: UsedHeads | None = None
        self.prompt_paths: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, for copies."""
        own = ("length", "state", "_used", "prompt_paths")
        state = {name: value for name, value in vars(self).items() if name not in own}
        return {**state, "observer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the attributes of another, with a state of its own."""
        vars(self).update(state)
        self._used = None
        self.prompt_paths = Counter()
        copied_in_inference_mode = torch.empty(0, device="cpu").is_inference()
        with _without_modes():
            self.length = torch.tensor(self.tokens, device="cpu")
            self.state = registered(self)
            if copied_in_inference_mode:  # no call could write to such tensors
                self.select(torch.arange(self.batch, device="cpu"))

    @property
    def tokens(self) -> int:
        """Tokens that are stored, padding among them."""
        return 0 if self._store is None else self._store.tokens

    @property
    def batch(self) -> int:
        """Requests; 0 before the first."""
        return 0 if self._store is None else self._store.batch

    @property
    def allocated_bytes(self) -> int:
        """Bytes of keys and values, and of what is kept of the first tokens and by an observer."""
        parts = (self._store, self._first, self.observer)
        return sum(part.allocated_bytes for part in parts if part is not None)

    @property
    def map_bytes(self) -> int:
        """Bytes of the cluster map: of the numbers that say which heads represent which.

        They are on the host, and not among `allocated_bytes`.
        """
        return 0 if self._membership is None else self._membership.nbytes

    @property
    def representatives(self) -> NDArray[np.int32] | None:
        """Head that represents each head, [batch, heads]; None while tokens are too few."""
        return None if self._membership is None else self._membership.representatives

    def used_heads(self, batch: int) -> UsedHeads | None:
        """Return the heads whose queries and keys the next tokens need; None: all heads.

        Parameters
        ----------
        batch : requests of the next tokens.
        """
        plan, membership = self.plan, self._membership
        if not plan.clustered or self.observer is not None:
            return None
        if plan.representatives is None and (batch > 1 or membership is None):
            return None
        if self._used is None:
            if plan.representatives is not None:
                group = plan.heads.query_heads // plan.heads.key_value_heads
                scored = set(plan.representatives)
                self._used = UsedHeads.of(scored, {head // group for head in scored})
            elif membership is not None:
                self._used = UsedHeads.of(membership.query[0], membership.stored[0])
        return self._used

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Store the next tokens, and return their attention: [batch, tokens, heads, dim].

        Parameters
        ----------
        query : [batch, heads, tokens, dim], of all heads; those that are not used
            (`used_heads`) may be anything.
        keys, values : [batch, key-value heads, tokens, dim]; keys that are not used likewise.
        allowed : bool [batch, tokens, all tokens]: which a token may see; None: those up to it.

        Raises
        ------
        AttentionError : shapes are not the plan's, or not those of the tokens before.
        CapacityError : the cache is full.
        """
        self._check(query, keys, values)
        check_room(self._capacity, self.tokens, query.shape[2])
        output_type = query.dtype
        # in autocast, rotated queries and keys have another type than values
        dtype = self._store.dtype if self._store is not None and self.tokens else values.dtype
        with _modes_left(query):
            query, keys, values = query.to(dtype), keys.to(dtype), values.to(dtype)
            if not self.tokens:
                self._begin(query)
            if self._membership is None:
                out = self._attend_first(query, keys, values, scale, allowed)
            else:
                out = self._attend(self._membership, query, keys, values, scale, allowed)
            if self.observer is not None and not self.observer.attended(
                query, keys, values, out, scale=scale, allowed=allowed
            ):
                self.observer = None
        return out.to(output_type)

    @_without_modes()
    def extend(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens without attention: of a prompt that is computed elsewhere.

        Parameters
        ----------
        keys, values : [batch, key-value heads, tokens, dim], of all heads.

        Raises
        ------
        AttentionError : it is not known yet which heads' keys are kept.
        CapacityError : the cache is full.
        """
        if self._store is None or self._membership is None:
            raise AttentionError(
                f"the cache has {self.tokens} tokens: its heads' membership comes with the "
                f"attention of {self._first_tokens}"
            )
        self._store.append(heads_of(keys, self._membership.stored), values)
        self.length.fill_(self.tokens)

    def _check(self, query: Tensor, keys: Tensor, values: Tensor) -> None:
        heads = self.plan.heads
        needed = {
            "query": (query, heads.query_heads),
            "keys": (keys, heads.key_value_heads),
            "values": (values, heads.key_value_heads),
        }
        for name, (tensor, count) in needed.items():
            if tensor.shape[1] != count or tensor.shape[3] != heads.dim:
                raise AttentionError(
                    f"{name} has {tensor.shape[1]} heads of {tensor.shape[3]}, the plan {count} of "
                    f"{heads.dim}: it is for another model"
                )
        if self.tokens and query.shape[0] != self.batch:
            raise AttentionError(
                f"a batch of {query.shape[0]} follows one of {self.batch} in the same cache: "
                "batch_repeat_interleave repeats its requests, batch_select_indices keeps some"
            )

    def _begin(self, query: Tensor) -> None:
        self._forget()  # of a call that failed before it stored tokens
        batch, plan = query.shape[0], self.plan
        if not plan.clustered:
            self._membership = HeadMembership.full(batch, plan.heads)
        elif plan.representatives is not None:
            row = np.array([plan.representatives], np.int32)
            self._membership = self._membership_of(np.repeat(row, batch, axis=0))
        if self._membership is None:
            self._first = _FirstTokens(query, plan.heads, self._first_tokens)
            self._store = self._new_store(uncompressed_layer(plan.heads), query, None)
        else:
            self._store = self._new_store(plan, query, self._capacity)

    @staticmethod
    def _new_store(plan: LayerPlan, like: Tensor, capacity: int | None) -> KeyValueStore:
        return KeyValueStore(
            batch=like.shape[0],
            key_heads=plan.key_heads,
            value_heads=plan.heads.key_value_heads,
            dim=plan.heads.dim,
            dtype=like.dtype,
            device=like.device,
            keys=plan.keys,
            values=plan.values,
            capacity=capacity,
        )

    def _membership_of(self, representatives: NDArray[np.int32]) -> HeadMembership:
        plan = self.plan
        return HeadMembership.of(
            representatives, plan.heads, clusters=plan.clusters, key_heads=plan.key_heads
        )

    def _attend(
        self,
        membership: HeadMembership,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        allowed: Tensor | None,
    ) -> Tensor:
        """Attend with the membership that the store has."""
        store = self._store
        assert store is not None
        keys = heads_of(keys, membership.stored)
        if query.shape[2] <= NATIVE_QUERIES:
            store.append(keys, values)
            return attend_store(query, store, membership, scale=scale, allowed=allowed)
        if self._through_store:
            store.append(keys, values)
            keys, values = store.load()
        else:
            past = store.load() if store.tokens else None
            store.append(keys, values)
            if past is not None:
                keys = torch.cat([past[0], keys], dim=2)
                values = torch.cat([past[1], values], dim=2)
        if self.plan.clustered:
            self.prompt_paths[stock_reason(query, keys, membership) or SHARED] += 1
        return attend_prompt(query, keys, values, membership, scale=scale, allowed=allowed)

    def _attend_first(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, allowed: Tensor | None
    ) -> Tensor:
        """Attend while some request's membership is not known yet: its heads use their own."""
        first, store = self._first, self._store
        assert first is not None
        assert store is not None
        first.keep(store.tokens)  # others are of a call that failed
        seen = first.add(query, keys, values, scale, allowed)
        representatives = self._clustered(first)
        if bool(first.complete.all()):
            membership = self._membership_of(representatives)
            try:
                self._drop_keys(membership, query)
                out = self._attend(membership, query, keys, values, scale, allowed)
            except BaseException:  # a later call may have other tokens in the place of these
                self._membership, self._store = None, store
                raise
            self._first = None
        else:
            membership = HeadMembership.over_all_keys(representatives, self.plan.heads)
            out = self._attend(membership, query, keys, values, scale, allowed)
        request, token, slot = seen
        out[request, token] = first.output[request, slot]
        return out

    def _clustered(self, first: "_FirstTokens") -> NDArray[np.int32]:
        """Return the representatives of complete requests; of others each head itself."""
        heads = self.plan.heads
        result = np.tile(np.arange(heads.query_heads, dtype=np.int32), (len(first.complete), 1))
        complete = np.flatnonzero(first.complete.cpu().numpy())
        if len(complete):
            # of a request with NaN any clusters do: it spreads by the values, which all stay
            features = np.nan_to_num(first.features()[complete])
            shared = np.empty((len(complete), heads.query_heads), np.int32)
            _native.attention_clusters(features, self.plan.clusters, shared)
            result[complete] = within_key_heads(shared, features, heads, self.plan.key_heads)
        return result

    def _drop_keys(self, membership: HeadMembership, like: Tensor) -> None:
        """Keep the representatives' keys alone from here on."""
        before = self._store
        assert before is not None
        self._membership = membership
        self._used = None
        self._store = self._new_store(self.plan, like, self._capacity)
        if before.tokens:
            keys, values = before.load()
            self._store.append(heads_of(keys, membership.stored), values)

    def check_crop(self, tokens: int) -> None:
        """Refuse to remove more tokens than there are."""
        if self._store is not None:
            self._store.check_crop(tokens)

    @_without_modes()
    def crop(self, tokens: int) -> None:
        """Remove the newest tokens; see `KeyValueStore.crop`.

        Tokens that stay keep their requests' membership, even where they are fewer than those that
        it came from: the keys of other heads are gone. A cache without tokens begins anew.
        """
        if self._store is None:
            return
        self._store.crop(tokens)
        if self._first is not None:
            self._first.keep(self.tokens)
        if self.observer is not None:
            self.observer.crop(tokens)
        if not self.tokens:
            self._forget()
        self.length.fill_(self.tokens)

    @_without_modes()
    def select(self, requests: Tensor) -> None:
        """Keep some requests, each any number of times, in this order."""
        store, membership, first = self._store, self._membership, self._first
        if store is None or not store.tokens:
            return
        selected = (
            store.select(requests.to(store.device)),
            None if membership is None else membership.select(requests.cpu().numpy()),
            None if first is None else first.select(requests),
            None,
            self.selections + 1,
        )
        # in one statement: an interrupt may come before it or after it
        self._store, self._membership, self._first, self._used, self.selections = selected
        if self.observer is not None:
            self.observer.select(requests)

    def reset(self) -> None:
        """Forget all tokens and requests."""
        self._forget()
        self.length.fill_(0)
        if self.observer is not None:
            self.observer.reset()

    def _forget(self) -> None:
        """Drop what depends on the text and on the number of requests."""
        self._store = self._membership = self._first = self._used = None
        self.selections = 0


class _FirstTokens:
    """First real tokens of every request, attended to by all heads.

    Attributes
    ----------
    complete : [batch]: whether all of a request's first tokens have come.
    output : [batch, first tokens, heads, dim], of those that have.
    """

    def __init__(self, like: Tensor, heads: LayerHeads, count: int) -> None:
        batch = like.shape[0]
        sizes = (heads.query_heads, heads.key_value_heads, heads.key_value_heads)
        self._query, self._keys, self._values = (
            like.new_zeros(batch, count, size, heads.dim) for size in sizes
        )
        self._group = heads.query_heads // heads.key_value_heads
        self._real = torch.zeros(batch, 0, dtype=torch.bool, device=like.device)
        self._probabilities = like.new_zeros(0)
        self.output = like.new_zeros(0)
        self.complete = torch.zeros(batch, dtype=torch.bool, device=like.device)

    @property
    def allocated_bytes(self) -> int:
        tensors = (self._query, self._keys, self._values)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    @property
    def _count(self) -> int:
        return self._query.shape[1]

    def add(
        self, query: Tensor, keys: Tensor, values: Tensor, scale: float, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add tokens; return request, token and place of those that are among the first.

        Raises
        ------
        AttentionError : one of them does not see all real tokens up to itself, and no others;
            nothing is added.
        """
        batch, tokens = query.shape[0], query.shape[2]
        if allowed is None:
            real = torch.ones(batch, tokens, dtype=torch.bool, device=query.device)
        else:
            real = allowed[:, -1, -tokens:].expand(batch, -1)
        place = self._real.sum(1, keepdim=True) + real.cumsum(1) - 1
        request, token = torch.nonzero(real & (place < self._count), as_tuple=True)
        slot = place[request, token]
        all_real = torch.cat([self._real, real], dim=1)
        if allowed is not None:
            _check_causal(allowed[request, token], all_real[request], self._real.shape[1] + token)
        for tensor, new in ((self._query, query), (self._keys, keys), (self._values, values)):
            tensor[request, slot] = new[request, :, token]
        self._real = all_real
        self.complete = self._real.sum(1) >= self._count
        self._compute(scale)
        return request, token, slot

    def _compute(self, scale: float) -> None:
        # as float32: products in 16 bits round, and some are beyond the largest number of float16
        query = self._query.transpose(1, 2).float() * scale
        keys = self._keys.transpose(1, 2).float().repeat_interleave(self._group, dim=1)
        values = self._values.transpose(1, 2).float().repeat_interleave(self._group, dim=1)
        later = torch.ones(self._count, self._count, dtype=torch.bool, device=query.device).triu(1)
        scores = query @ keys.transpose(2, 3)
        self._probabilities = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
        self.output = (self._probabilities @ values).to(self._values.dtype).transpose(1, 2)

    def features(self) -> NDArray[np.float32]:
        """Return the probabilities of each head: [batch, heads, first tokens squared]."""
        return np.ascontiguousarray(self._probabilities.flatten(2).cpu().numpy(), np.float32)

    def keep(self, tokens: int) -> None:
        """Forget all tokens but the oldest, so many."""
        self._real = self._real[:, :tokens]
        self.complete = self._real.sum(1) >= self._count

    def select(self, requests: Tensor) -> "_FirstTokens":
        """Return those of some requests, each any number of times, in this order."""
        requests = requests.to(self._real.device)
        first = copy.copy(self)
        first._query, first._keys, first._values, first._real, first.complete = (
            tensor.index_select(0, requests)
            for tensor in (self._query, self._keys, self._values, self._real, self.complete)
        )
        return first


def _check_causal(allowed: Tensor, real: Tensor, last: Tensor) -> None:
    """Refuse rows [rows, tokens] of a mask that show other tokens than the real ones up to `last`.

    Raises
    ------
    AttentionError
    """
    places = torch.arange(real.shape[1], device=real.device)
    if bool((allowed != (real & (places <= last[:, None]))).any()):
        raise AttentionError(
            "the mask is more than causal among a request's first tokens, by which its heads are "
            "clustered: use a plan with representatives, or a mask of padding alone"
        )
