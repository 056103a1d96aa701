"""
The native core of headrace: transport, executor, reductions, codecs, attention, caches of embeddings, synthesis, index, search for schedules.
"""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class CommunicationError(RuntimeError):
    pass

class DataType(enum.Enum):
    """Element type of a collective."""

    float32 = 0

    float64 = 1

    float16 = 2

    bfloat16 = 3

    float8_e4m3fn = 4

    float8_e5m2 = 5

    int8 = 6

    int16 = 7

    int32 = 8

    int64 = 9

    uint8 = 10

    uint16 = 11

    uint32 = 12

    uint64 = 13

    bool = 14

class Operator(enum.Enum):
    """How a collective combines elements."""

    sum = 0

    product = 1

    min = 2

    max = 3

    band = 4

    bor = 5

    bxor = 6

class Kind(enum.Enum):
    allreduce = 0

    reduce = 1

    broadcast = 2

    allgather = 3

    gather = 4

    reduce_scatter = 5

    scatter = 6

    all_to_all = 7

    all_to_all_v = 8

    custom = 9

class Priority(enum.Enum):
    """Background bytes move when no others can."""

    urgent = 0

    normal = 1

    background = 2

def data_channels(channels: int) -> int:
    """
    Return how many connections two ranks have beside control and messages, for so many of each priority.
    """

def has_tls() -> bool:
    """Return whether this build has TLS."""

def shared_buffer(nbytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')]:
    """Allocate memory that the other ranks of this host can map."""

def supports(type: DataType, operator: Operator) -> bool:
    """Return whether the operator is defined for the data type."""

class Program:
    """One rank's part of a program."""

    def __init__(self, *, rank: int, ranks: int, slots: int, scratch_slots: int, result_slot: int, result_slots: int, lane_direction: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], lane_peer: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], lane_channel: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], step_lane: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], step_op: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], step_slot: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], step_source_slot: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], step_count: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dependency_step: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dependency_on: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], kind: Kind, mark: int) -> None: ...

    @property
    def channels(self) -> int: ...

class Call:
    """A collective bound to its buffers, for repeated runs."""

    def __init__(self, program: Program, segments: Sequence, type: DataType, operator: Operator, average: bool, epoch: int, priority: Priority, deadline_s: float) -> None: ...

    def at(self, address: int, epoch: int, priority: Priority, deadline_s: float) -> Call:
        """Return this call with its only segment at another address."""

class Completions:
    """Finished tasks of one or more executors."""

    def __init__(self) -> None: ...

    def take(self, timeout_s: float) -> list[tuple[int, str]]:
        """
        Wait for the first completion, then return all: (handle, error text or '').
        """

    def wake(self) -> None:
        """Make a waiting `take` return at once."""

class Executor:
    """Runs programs between the ranks of one group."""

    def __init__(self, *, rank: int, ranks: int, channels: int, threads: int, completions: Completions, fail_at_call: int) -> None: ...

    def connect(self, links: Sequence[tuple[int, int, int, int, bytes]], deadline_s: float) -> None:
        """
        Take ownership of all links: (socket, peer, channel, memory or -1, key for TLS or b'').
        """

    def submit(self, call: Call, notify: bool) -> int: ...

    def run(self, call: Call) -> None:
        """Run to completion on this thread."""

    def trace(self, call: Call) -> tuple:
        """
        Run as `run` does and return (called_ns, ended_ns, steps): a row of began_ns, passed_ns, bytes per step; times are CLOCK_MONOTONIC's.
        """

    def send(self, address: int, nbytes: int, peer: int, tag: int, deadline_s: float, notify: bool, element: int = 0, priority: Priority = Priority.normal) -> int: ...

    def receive(self, address: int, nbytes: int, peer: int, tag: int, deadline_s: float, notify: bool, element: int = 0) -> int: ...

    def wait(self, handle: int) -> int:
        """
        Wait for a task and return the source of a receive, else -1. If the sender's element type differs from the receive's: the sender's in the bits from 32 on, the receive's from 40 on.
        """

    def poll(self, handle: int) -> bool: ...

    def cancel(self, handle: int) -> None: ...

    def counters(self) -> dict: ...

    def abort(self, reason: str) -> None: ...

    def report(self) -> str:
        """
        Describe the tasks under way, lane by lane; after a failure, those at its time.
        """

    def submitted(self) -> int:
        """Number of collectives submitted so far."""

    def finished(self) -> int:
        """Number of collectives finished or failed so far."""

    def statistics(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C')]:
        """
        Statistics of open connections, a row each: peer, channel, sent_bytes, sends, received_bytes, acked_bytes, busy_us, peer_limited_us, buffer_limited_us, delivery_rate, rtt_us, min_rtt_us, retransmits.
        """

    def set_pacing(self, peer: int, bytes_per_s: int) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...

class AttentionFormat(enum.IntEnum):
    """Format of rows of keys or values in a block of a cache."""

    FLOAT32 = 0

    BFLOAT16 = 1

    INT8 = 2
    """8 bits; a float32 unit for each row"""

    INT4 = 3
    """4 bits; unit and number of code 0 for each row, in bfloat16"""

    INT4_GROUPS = 4
    """
    4 bits; unit and number of code 0 for each dimension of ATTENTION_GROUP rows
    """

ATTENTION_GROUP: int = 64

def attention_attend(queries: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], query: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], key: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], score: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], segments: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], key_heads: int, value_heads: int, scale: float, allowed: Annotated[NDArray[numpy.bool_], dict(shape=(None, None, None), order='C', device='cpu', writable=False)] | None, threads: int, out: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')]) -> None:
    """
    Write softmax(scale q k) v to out, [batch, queries, heads, dim].

    queries is [batch, query heads, queries, dim]. query and key, [batch, representatives], are heads of queries and of keys; score, [batch, heads], is the representative whose probabilities weight a head's values. Each row of segments is a number of tokens, then keys and values as rows of a block. allowed, [batch, queries, tokens], is causal where it is None.

    Raises ValueError naming the argument, what it is, and what is needed.
    """

def attention_store(source: Annotated[NDArray, dict(shape=(None, None, None, None), device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Store [batch, heads, tokens, dim] as rows of a block.

    rows is an AttentionFormat, the addresses of the data and of the scales or 0, capacity, and the first token.
    """

def attention_clusters(points: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], clusters: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Write the head that represents each head to out, [batch, heads].

    points is [batch, heads, features]; a request's heads are clustered by k-means, and each cluster's medoid represents it. Raises ValueError for numbers that are not finite.
    """

class CacheSynchronisation(enum.Enum):
    """Designs of caches of embedding rows."""

    TARGETED = 0

    LRPP = 1

    REPLICATED = 2

    DISTINCT = 3

class LookaheadDecision:
    """
    Fetches, uses and evictions of the rows of one batch; columns are read-only arrays.
    """

    @property
    def batch(self) -> int: ...

    @property
    def after(self) -> int: ...

    @property
    def commit(self) -> bool: ...

    @property
    def evicted_for_room(self) -> int: ...

    @property
    def first(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def users(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def next_users(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def owner(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def next(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def last(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def fetched(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def shared(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def critical(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_first(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_owner(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_first(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_owner(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def id_slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def id_rows(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    def dispatch(self) -> list[DispatchedRows]: ...

class DispatchedRows:
    """One trainer's part of a decision; columns are read-only arrays."""

    @property
    def used_ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def users(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def next_users(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def owners(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def critical(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def fetched_ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def fetched_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def fetched_slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def evicted_slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def dirty_slots(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def rows_of_ids(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def id_ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

class Lookahead:
    """Decides what caches of embedding rows fetch, keep and evict."""

    def __init__(self, rows: Sequence[int], *, trainers: int, lookahead: int, prefetch: int, slots: int, synchronisation: CacheSynchronisation = CacheSynchronisation.TARGETED, first_batch: int = 0, commit_every: int = 0) -> None: ...

    def push(self, ids: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], ends: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    def finish(self) -> None: ...

    def change(self, lookahead: int, prefetch: int) -> None: ...

    def pop(self) -> LookaheadDecision: ...

    @property
    def ready(self) -> bool: ...

    @property
    def distinct(self) -> int: ...

    @property
    def resident(self) -> int: ...

    @property
    def newest_fetched(self) -> int: ...

    @property
    def arrived(self) -> int: ...

class RowTable:
    """A table of embedding rows, and their initial values."""

    def __init__(self, *, name: str, number: int, rows: int, distribution: str, scale: float) -> None: ...

class RowMemory:
    """Memory that the rows of several stores share."""

    def __init__(self, most_bytes: int) -> None: ...

    @property
    def bytes(self) -> int: ...

class RowStore:
    """A server's rows of one group of embedding tables."""

    def __init__(self, tables: Sequence[RowTable], *, dim: int, state: int = 0, state_initial: float = 0.0, float64: bool = False, seed: int = 0, shard: int = 0, shards: int = 1, memory: RowMemory) -> None: ...

    def fetch(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

    def write(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    def read(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

    def scan(self, table: int, after: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], values: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> int: ...

    def rows(self, table: int) -> int: ...

    def table_bytes(self, table: int) -> int: ...

class StoreLog:
    """Durable logs of the tables of a store of rows."""

    def __init__(self, store: RowStore, folders: Sequence[str], *, groups: Sequence[int] = [], first_commit: int = 0) -> None: ...

    def adopt(self, folders: Sequence[str], *, groups: Sequence[int], commit: int) -> None: ...

    def put(self, commit: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    def commit(self, commit: int) -> list[int]: ...

    def checkpoint_if_due(self, commit: int) -> None: ...

    def close(self) -> None: ...

class Pulse:
    """Signs of life on a socket, from a thread."""

    def __init__(self, socket: int, interval_s: float) -> None: ...

    def close(self) -> None: ...

class ShardedRows:
    """Rows of a group of tables by server; columns are read-only arrays."""

    @property
    def ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def first(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def ids(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def places(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

def split_rows(ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shards: int) -> ShardedRows: ...

def gather_rows(places: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

def scatter_rows(places: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

class FieldKind(enum.Enum):
    """Kinds of fields of a line."""

    SKIPPED = 0

    LABEL = 1

    INTEGER = 2

    HOUR = 3

    HASH = 4

    CODE = 5

class ClickLines:
    """Numbers of some lines' fields; columns are read-only arrays."""

    @property
    def lines(self) -> int: ...

    @property
    def text_end(self) -> int: ...

    @property
    def numbers(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]: ...

    @property
    def rejected_lines(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def rejected_fields(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def rejected_begins(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def rejected_ends(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

MISSING_ID: int = 4294967296

def parse_click_lines(text: bytes, kinds: Sequence[FieldKind], rows: Sequence[int], separator: str) -> ClickLines: ...

def text_ids(bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def pack_signs(vector: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def unpack_signs(bits: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scale: float, out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def majority(bits: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def pack_codes(codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], bits: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def unpack_codes(packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], bits: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def quantize(vector: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bits: int, bucket: int, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], ranges: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

def dequantize(codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], ranges: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], bits: int, bucket: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], add: bool = False) -> None: ...

def encode_float8(vector: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bucket: int, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def decode_float8(codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bucket: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], add: bool = False) -> None: ...

def round_with_residual(vector: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], brain: bool, rounded: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu')], residual: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def encode_levels(vector: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bits: int, bucket: int, euclidean: bool, key: int, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], norms: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def decode_levels(codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], norms: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bits: int, bucket: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], add: bool = False) -> None: ...

def select_topk(vector: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], k: int, indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

class SearchError(ValueError):
    pass

class Network:
    """Ranks, links and shared capacities to search on."""

    def __init__(self, *, ranks: int, src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], alpha: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], beta: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], shared_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shared_link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], shared_beta: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], group: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

class Outcome:
    """Result of a search."""

    @property
    def link(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def first(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def chunk(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def start_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

    @property
    def total_us(self) -> float: ...

    @property
    def restarts(self) -> int: ...

    @property
    def struck(self) -> bool: ...

    @property
    def interrupted(self) -> bool: ...

    @property
    def history(self) -> list[tuple[int, float]]: ...

def search(network: Network, *, origin: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk_mb: float, routes_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], routes_link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], symmetry: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: int, restarts: int, batch_share: float, limit_s: float, target_us: float, backwards: bool, prelude_link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], prelude_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], prelude_chunk: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], look: Callable) -> Outcome:
    """
    Randomised time-expanded matching; the best of `restarts` constructions. A KeyboardInterrupt ends it with the best so far, which may have no messages.
    """

def replay(network: Network, *, chunks: int, chunk_mb: float, link: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], chunk: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], float]:
    """
    Start times of ordered messages under the full cost model, and the time of the last arrival.
    """

class IndexConfiguration:
    """Parameters of an index's tree."""

    def __init__(self, *, leaf: str = 'hashed', fragment_keys: int = 512, fragments: int = 262144, initial_fragments: int = 8, fingerprints: bool = True, leaf_keys: int = 4096, fill: float = 0.7, max_search: float = 4.0, max_shifts: float = 32.0, insert_fraction: float = 0.5) -> None: ...

    @property
    def leaf(self) -> str: ...

    @property
    def fragment_keys(self) -> int: ...

    @property
    def fragments(self) -> int: ...

    @property
    def initial_fragments(self) -> int: ...

    @property
    def fingerprints(self) -> bool: ...

    @property
    def leaf_keys(self) -> int: ...

    @property
    def fill(self) -> float: ...

    @property
    def max_search(self) -> float: ...

    @property
    def max_shifts(self) -> float: ...

    @property
    def insert_fraction(self) -> float: ...

class IndexMap:
    """An ordered map. Threads may share it: each call holds its lock."""

    def __init__(self, keys: str, values: str, configuration: IndexConfiguration, to_number: object | None = None, from_number: object | None = None) -> None:
        """
        An empty map of keys (uint64, int64, float64) and values (none, or numbers of 32 or 64 bits). Single keys that are no numbers are brought to numbers and back by functions.
        """

    def copy(self) -> IndexMap: ...

    def build(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray, dict(device='cpu', writable=False)] | None, threads: int) -> None:
        """Replace all keys and values; of equal keys the last is kept."""

    def find(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray, dict(device='cpu')] | None, found: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')], missing: object | None = None) -> int:
        """Write values and `found`; return the number of keys found."""

    def contains(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], found: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> int: ...

    def insert_or_assign(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray, dict(device='cpu', writable=False)] | None) -> int:
        """Return the number of new keys."""

    def find_or_insert(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], fresh: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray, dict(device='cpu')], is_new: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write values and `is_new`; new keys take the first elements of `fresh`, in order. Return the number of new keys.
        """

    def update(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray, dict(device='cpu', writable=False)] | None) -> int:
        """Return the number of keys that exist."""

    def erase(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)]) -> int:
        """Return the number of keys erased."""

    def find_one(self, arg0: object, arg1: object, /) -> object:
        """Return the value of a key, or the second argument."""

    def contains_one(self, arg: object, /) -> object: ...

    def insert_one(self, arg0: object, arg1: object | None, /) -> object:
        """Insert or assign a key and a value; return whether the key is new."""

    def erase_one(self, arg: object, /) -> object:
        """Return whether the key was there."""

    def take_one(self, arg0: object, arg1: object, /) -> object:
        """Erase a key; return the value that it had, or the second argument."""

    def find_or_insert_one(self, arg0: object, arg1: object, /) -> object:
        """
        Return the value of a key, which is inserted with the second argument if it is absent.
        """

    def neighbour_of_one(self, arg0: object, arg1: bool, arg2: bool, /) -> object:
        """
        Return the nearest key, or None: above a key (second argument) or below, or the key itself (third argument).
        """

    def bound_of_one(self, arg0: object, arg1: bool, arg2: bool, /) -> object:
        """The same, as (key, value, found)."""

    def take_at(self, arg: int, /) -> object:
        """Erase the entry of a position; return it, or None."""

    def rank_of_one(self, arg: object, /) -> object: ...

    def select_one(self, arg: int, /) -> object:
        """Return the entry of a position."""

    def scan(self, first: object | None, end: object | None, after: bool, keys: Annotated[NDArray, dict(device='cpu')], values: Annotated[NDArray, dict(device='cpu')] | None, down: bool = False) -> int:
        """
        Write keys from `first` (with `after`: above it) to below `end`, ascending, or `down` from the end, and return their number: as many as fit into the arrays.
        """

    def erase_range(self, first: object | None, end: object | None) -> int:
        """Return the number of keys erased."""

    def neighbours(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], up: bool, own: bool, bounds: Annotated[NDArray, dict(device='cpu')], values: Annotated[NDArray, dict(device='cpu')] | None, found: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write for each key the nearest one above it (`up`) or below, or (`own`) itself, where there is one, and its value.
        """

    def rank(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], ranks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Write for each key how many of the map's are below it."""

    def select(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: Annotated[NDArray, dict(device='cpu')], values: Annotated[NDArray, dict(device='cpu')] | None) -> None:
        """Write the key and the value of each position."""

    def min(self) -> object:
        """Return the least key, or None."""

    def max(self) -> object:
        """Return the largest key, or None."""

    def size(self) -> int: ...

    def clear(self) -> None: ...

    def shrink_to_fit(self) -> None: ...

    def configuration(self) -> IndexConfiguration: ...

    def configure(self, configuration: IndexConfiguration) -> None:
        """Set the configuration of leaves made from now on."""

    def convert(self, cursor: int, most_keys: int) -> int | None:
        """
        Convert leaves from the code `cursor` on, of about `most_keys` keys; return the next cursor, or None at the end.
        """

    def statistics(self) -> dict: ...

    def verify(self) -> None: ...

    def activity(self, since: int = 0) -> tuple:
        """
        Return for each operation (operations, effective, timed, timed_ns), `effective` of the timed ones; the number of operations sampled so far; and operations and codes of the sample from number `since` on.
        """

    def begin_recording(self, halvings: int, most: int, yields: bool) -> int:
        """
        Record operations on one key in 2^halvings, at most so many. Return the recording's number, or 0 if one is under way that does not yield its place.
        """

    def end_recording(self, number: int) -> tuple | None:
        """
        Return (halvings, operations, codes, present), or None if that one is not under way.
        """

class IndexCursor:
    """
    An entry of a map and the way to its neighbours. Each move returns (key, value), or None at no entry.
    """

    def __init__(self, map: IndexMap) -> None: ...

    def seek(self, key: object | None) -> object:
        """Go to the least key that is not below `key`; None: to the first one."""

    def next(self) -> object: ...

    def previous(self) -> object:
        """At no entry: go to the last one."""

class IndexConversion:
    """Conversion of a map's leaves, in slices."""

    def __init__(self, slice_s: float = 0.0003, share: float = 0.5) -> None: ...

    def run(self, map: IndexMap, seconds: float) -> bool:
        """Convert for about so many seconds; return whether leaves are left."""

    @property
    def slices(self) -> int: ...

    @property
    def longest_s(self) -> float:
        """Longest time that a slice held the map's lock, in seconds."""

class IndexSelection:
    """Reading of the keys that a recording selects, in slices."""

    def __init__(self, halvings: int, share: float) -> None: ...

    def run(self, map: IndexMap, seconds: float) -> bool:
        """Read for about so many seconds; return whether keys are left."""

    def codes(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C')]: ...

def index_tables() -> dict:
    """
    Return the types of leaves, keys and values, and the limits of a configuration, by name: what headrace/index/tables.py has.
    """

class DurableBatch:
    """Changes that are committed as one group."""

    def __init__(self, keys: str) -> None: ...

    def put(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def erase(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)]) -> None: ...

    def size(self) -> int: ...

    def clear(self) -> None: ...

class DurableRows:
    """Rows in a folder. Threads may share it."""

    def __init__(self, folder: str, keys: str, accept_loss: bool, checkpoint_log_bytes: int) -> None: ...

    def commit(self, batch: DurableBatch, sync: bool) -> None: ...

    def build(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Replace all rows."""

    def sync(self) -> None: ...

    def checkpoint(self) -> None:
        """Write a snapshot, and wait for it."""

    def close(self) -> None: ...

    def log_bytes(self) -> int: ...

    def find(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')], found: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """Write values and `found`; return the number found."""

    def scan(self, first: int, last: int, keys: Annotated[NDArray, dict(device='cpu')], values: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write keys of codes from `first` to `last`, ascending, as many as fit; return their number.
        """

    def code(self, key: object) -> int:
        """Return the code of a key."""

    def size(self) -> int: ...

    def groups(self) -> int:
        """Return the number of groups committed ever."""

class DurableReader:
    """Rows in a folder that another process may change."""

    def __init__(self, folder: str, keys: str) -> None: ...

    def refresh(self) -> bool:
        """Read what was committed since; return whether rows may have changed."""

    def find(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')], found: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """Write values and `found`; return the number found."""

    def scan(self, first: int, last: int, keys: Annotated[NDArray, dict(device='cpu')], values: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write keys of codes from `first` to `last`, ascending, as many as fit; return their number.
        """

    def code(self, key: object) -> int:
        """Return the code of a key."""

    def size(self) -> int: ...

    def groups(self) -> int:
        """Return the number of groups committed ever."""

class IndexRows:
    """Keys and their rows in a table, in shards. Threads may share it."""

    def __init__(self, keys: str, shards: int, configuration: IndexConfiguration) -> None: ...

    def build(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], threads: int) -> None:
        """Load keys and their rows into an empty map."""

    def find(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write rows, -1 for keys that have none; return the number of keys found.
        """

    def find_or_insert(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], is_new: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """Write rows and `is_new`; return the number of new keys."""

    def erase(self, keys: Annotated[NDArray, dict(device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write the rows that keys had, which are retired, or -1; return the number of keys erased.
        """

    def release(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Make retired rows free."""

    def scan(self, keys: Annotated[NDArray, dict(device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write keys, ascending, and their rows: as many as fit; return their number.
        """

    def size(self) -> int: ...

    def shards(self) -> int: ...

    def bytes(self) -> int: ...

    def rows(self) -> int:
        """Return one more than the largest row that is in use or retired."""

    def free_rows(self) -> int: ...

    def retired_rows(self) -> int: ...

    def verify(self) -> None: ...

def recording_selects(codes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], halvings: int, out: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Write for each code whether a recording of so many halvings selects it.
    """

def replay_index(value_bytes: int, configurations: Sequence[IndexConfiguration], loaded: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], operations: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], batch: int = 1, most_seconds: float = float('inf'), threads: int = 1) -> list[dict]:
    """
    Load maps and run a trace on them by turns, one operation after another, or by windows.
    """

class GraphError(ValueError):
    pass

class ScheduleSearch:
    """
    Local search for fast schedules of a training step within a budget. Drafts are flat columns with three numbers for each step: stage, operator and implementation; `stop` is polled, and true ends a move with what it has.
    """

    def __init__(self, *, forward_count: int, resident_bytes: int, first_way: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], again: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], reads_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], reads: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], creates_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], creates: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], overwrites: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], time_us: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], workspace_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], nbytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], creator: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], outputs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], results: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], budget: int, seed: int, repeated: Sequence[Sequence[tuple[Sequence[int], Sequence[int]]]]) -> None: ...

    def simulate(self, steps: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[float, int, Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))]] | None:
        """
        Time, bytes above the budget, bytes by step, and each lifetime of a storage: storage, first and last step. None if a step reads what is not live.
        """

    def repair(self, steps: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], noise: float, stop: Callable) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """A draft that fits, or one with less excess."""

    def polish(self, steps: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], stop: Callable) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """A draft without what it can do without."""

    def exchanged(self, steps: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], stop: Callable) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The best draft with implementations that are faster together."""

    def spread(self, steps: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], stop: Callable) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The best draft in which equal blocks are like one of them."""

    def improve(self, steps: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], rounds: int, stop: Callable, found: Callable) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """
        The best draft of some rounds that change, repair and polish; `found` is called with each that is faster than those before.
        """
