"""One rank's member of each rival: the same collectives, each through its own interface.

Each is the only one in its process. All are called on NumPy's memory, without copies by the
benchmark; a rival works in place where that does not slow it down.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.executor.patterns import Buffers, Empty, Floats, plain
from headrace._native import DataType, Operator
from headrace.collectives.demand import Collective, Demand
from headrace.executor import empty_shared
from headrace.executor.connect.addresses import host_of

if TYPE_CHECKING:
    from headrace.collectives.plan.verify import Proof
    from headrace.collectives.program import Program

Call = Callable[[], object]

Exchange = Callable[[str], list[str]]
"""Exchanges a text with all ranks; returns the texts by rank."""

CHANNELS = 2
TAG = 7
MIDDLING = (128 << 10, 64 << 20)
"""Bytes from and to which Open MPI's reduce-scatter by counts beats that of equal blocks.

Measured with four ranks on two processors: 3.4 to 12 ms at 1 MiB, 36 to 59 at 16; but 550 to 260 at
64 MiB, and no difference at 64 KiB.
"""

_WORD_BYTES = 8


class Messenger(Protocol):
    """Sends messages from rank to rank."""

    rank: int

    def send(self, data: Floats, peer: int) -> Call:
        """Return the call that sends `data` and ends when it may be overwritten."""
        ...

    def receive(self, data: Floats, peer: int) -> Call:
        """Return the call that receives `data`."""
        ...

    def latest(self, moment: float) -> float:
        """Return the largest of all ranks' moments: a barrier, too."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Backend(Messenger, Protocol):
    """Runs collectives of float32, too.

    Attributes
    ----------
    in_place : collectives whose source and target share memory; see `Buffers.make`.
    empty : allocates the memory that collectives work on.
    """

    ranks: int
    in_place: frozenset[Collective]
    empty: Empty

    def prepare(self, buffers: Buffers) -> Call:
        """Return the call that runs the buffers' collective once."""
        ...


def connect_native(
    rank: int, ranks: int, host: str, exchange: Exchange, *, tls: bool = False, threads: int = 1
) -> tuple[Any, bool]:
    """Return headrace's executor, connected to all ranks, and whether all are on one host.

    Parameters
    ----------
    host : the address of this rank's host.
    tls : True to encrypt traffic between hosts.
    threads : number of threads that may move bytes at one time.
    """
    from headrace.executor import Executor

    executor = Executor(
        rank,
        ranks,
        host=host,
        secret="benchmark",
        channels=CHANNELS,
        tls=tls,
        threads=threads,
    )
    addresses = exchange(executor.address)
    executor.connect(addresses)
    return executor, len(set(map(host_of, addresses))) == 1


class Native:
    """headrace's executor without torch, with the plans that a group without a book chooses."""

    in_place = frozenset({Collective.ALLGATHER, Collective.REDUCE_SCATTER})
    empty: Empty = staticmethod(plain)
    tls = False
    threads = 1

    def __init__(self, rank: int, ranks: int, host: str, exchange: Exchange) -> None:
        from headrace.collectives.run.choose import Chooser

        self.rank, self.ranks = rank, ranks
        self._executor, one_host = connect_native(
            rank, ranks, host, exchange, tls=self.tls, threads=self.threads
        )
        self._chooser = Chooser(ranks, one_host=one_host)
        self._loaded: dict[str, Any] = {}
        self._moment = np.zeros(1, np.float64)
        choice = self._chooser.choose(Collective.ALLREDUCE, _WORD_BYTES)
        self._latest = self._call(
            choice.program,
            choice.proof,
            [self._moment],
            dtype=DataType.float64,
            operator=Operator.max,
        )

    def prepare(self, buffers: Buffers) -> Call:
        """Return the call that runs the buffers' collective once."""
        match buffers.collective:
            case Collective.ALLGATHER:
                arrays = [buffers.target]
            case Collective.ALL_TO_ALL:
                arrays = [buffers.source, buffers.target]
            case _:
                arrays = [buffers.source]
        choice = self._chooser.choose(buffers.collective, arrays[0].nbytes)
        return self._call(choice.program, choice.proof, arrays)

    def reduce_fp8(self, data: "np.ndarray[Any, Any]") -> Call:
        """Return the call that sums all ranks' fp8 (e4m3) at rank 0, directly from each."""
        from headrace.collectives.plan.generators.templates.direct import direct
        from headrace.collectives.plan.ir.lower import lower
        from headrace.collectives.plan.verify import verify

        demand = Demand(collective=Collective.REDUCE, ranks=self.ranks, chunks=1)
        program = lower(direct(demand))
        return self._call(program, verify(program), [data], dtype=DataType.float8_e4m3fn)

    def _call(
        self,
        program: "Program",
        proof: "Proof",
        arrays: "list[np.ndarray[Any, Any]]",
        *,
        dtype: DataType = DataType.float32,
        operator: Operator = Operator.sum,
    ) -> Call:
        digest = proof.program_digest
        if digest not in self._loaded:
            self._loaded[digest] = self._executor.load(program, proof)
        demand, run = program.demand, self._executor.run
        segments = [
            (array.ctypes.data, array.size // demand.blocks, demand.blocks, demand.chunks)
            for array in arrays
        ]
        call = self._executor.prepare(
            self._loaded[digest], segments, dtype=dtype, operator=operator
        )
        return lambda: run(call)

    def send(self, data: Floats, peer: int) -> Call:
        """Return the call that sends `data` and ends when it may be overwritten."""
        executor, address, size = self._executor, data.ctypes.data, data.nbytes
        return lambda: executor.wait(executor.send(address, size, peer, TAG))

    def receive(self, data: Floats, peer: int) -> Call:
        """Return the call that receives `data`."""
        executor, address, size = self._executor, data.ctypes.data, data.nbytes
        return lambda: executor.wait(executor.recv(address, size, peer, TAG))

    def latest(self, moment: float) -> float:
        """Return the largest of all ranks' moments."""
        self._moment[0] = moment
        self._latest()
        return float(self._moment[0])

    def close(self) -> None:
        """Leave the group."""
        self._executor.close()


class ZeroCopy(Native):
    """The same on shared buffers, which the other ranks may read."""

    empty = staticmethod(empty_shared)


class Encrypted(Native):
    """The same over TLS."""

    tls = True


class TwoThreads(Native):
    """The same with two threads a rank."""

    threads = 2


NATIVE: dict[str, type[Native]] = {
    "native": Native,
    "lent": ZeroCopy,
    "tls": Encrypted,
    "2 threads": TwoThreads,
}


class Torch:
    """torch.distributed over `name` ("gloo" or "headrace"), from torchrun's variables."""

    in_place = frozenset[Collective]()  # torch wants an input of its own
    empty: Empty = staticmethod(plain)

    def __init__(self, name: str) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(name)
        self._torch, self._dist = torch, dist
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def prepare(self, buffers: Buffers) -> Call:
        """Return the call that runs the buffers' collective once."""
        source = self._torch.from_numpy(buffers.source)
        target = self._torch.from_numpy(buffers.target)
        dist = self._dist
        match buffers.collective:
            case Collective.ALLREDUCE:
                return lambda: dist.all_reduce(target)
            case Collective.ALLGATHER:
                return lambda: dist.all_gather_into_tensor(target, source)
            case Collective.REDUCE_SCATTER:
                return lambda: dist.reduce_scatter_tensor(target, source)
            case _:
                return lambda: dist.all_to_all_single(target, source)

    def send(self, data: Floats, peer: int) -> Call:
        """Return the call that sends `data` and ends when it may be overwritten."""
        tensor, dist = self._torch.from_numpy(data), self._dist
        return lambda: dist.send(tensor, peer, tag=TAG)

    def receive(self, data: Floats, peer: int) -> Call:
        """Return the call that receives `data`."""
        tensor, dist = self._torch.from_numpy(data), self._dist
        return lambda: dist.recv(tensor, peer, tag=TAG)

    def chained(self, callback: bool) -> Call:
        """Return the call that waits for the future of 4 bytes, or for a callback of it."""
        tensor, dist = self._torch.zeros(1), self._dist
        if callback:
            return lambda: (
                dist.all_reduce(tensor, async_op=True).get_future().then(lambda _: None).wait()
            )
        return lambda: dist.all_reduce(tensor, async_op=True).get_future().wait()

    def latest(self, moment: float) -> float:
        """Return the largest of all ranks' moments."""
        box = self._torch.tensor([moment], dtype=self._torch.float64)
        self._dist.all_reduce(box, self._dist.ReduceOp.MAX)
        return float(box)

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()


class Sockets:
    """One blocking TCP connection between two ranks: bare messages."""

    def __init__(self, rank: int, host: str, exchange: Exchange) -> None:
        self.rank = rank
        with socket.create_server((host, 0)) as server:
            addresses = exchange(f"{host}:{server.getsockname()[1]}")
            if rank == 0:
                link, _ = server.accept()
            else:
                address, port = addresses[0].rsplit(":", 1)
                link = socket.create_connection((address, int(port)))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links = {1 - rank: link}

    def send(self, data: Floats, peer: int) -> Call:
        """Return the call that sends `data` and ends when it may be overwritten."""
        link, view = self._links[peer], memoryview(data).cast("B")
        return lambda: link.sendall(view)

    def receive(self, data: Floats, peer: int) -> Call:
        """Return the call that receives `data`."""
        link, view = self._links[peer], memoryview(data).cast("B")

        def call() -> None:
            got = 0
            while got < len(view):
                more = link.recv_into(view[got:])
                if more == 0:
                    raise ConnectionError("the other rank is gone")
                got += more

        return call

    def latest(self, moment: float) -> float:
        """Return the larger of both ranks' moments."""
        other = 1 - self.rank
        mine, theirs = plain(2), plain(2)
        mine.view(np.float64)[0] = moment
        self.send(mine, other)()
        self.receive(theirs, other)()
        return max(moment, float(theirs.view(np.float64)[0]))

    def close(self) -> None:
        """End the connection."""
        for link in self._links.values():
            link.close()


class OpenMpi:
    """Open MPI through mpi4py's calls on buffers (those with an upper-case letter)."""

    in_place = frozenset({Collective.ALLGATHER})
    empty: Empty = staticmethod(plain)

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "single"  # the cheapest: no locks
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.ranks = self._comm.Get_rank(), self._comm.Get_size()

    def prepare(self, buffers: Buffers) -> Call:
        """Return the call that runs the buffers' collective once."""
        comm, in_place, real = self._comm, self._mpi.IN_PLACE, self._mpi.FLOAT
        source, target = [buffers.source, real], [buffers.target, real]
        match buffers.collective:
            case Collective.ALLREDUCE:
                return lambda: comm.Allreduce(in_place, target)
            case Collective.ALLGATHER:
                return lambda: comm.Allgather(in_place, target)
            case Collective.REDUCE_SCATTER:
                # not in place: it would copy its input first to keep it whole
                if MIDDLING[0] <= buffers.source.nbytes < MIDDLING[1]:
                    counts = [buffers.target.size] * self.ranks
                    return lambda: comm.Reduce_scatter(source, target, counts)
                return lambda: comm.Reduce_scatter_block(source, target)
            case _:
                return lambda: comm.Alltoall(source, target)

    def send(self, data: Floats, peer: int) -> Call:
        """Return the call that sends `data` and ends when it may be overwritten."""
        comm, buffer = self._comm, [data, self._mpi.FLOAT]
        return lambda: comm.Send(buffer, peer, TAG)

    def receive(self, data: Floats, peer: int) -> Call:
        """Return the call that receives `data`."""
        comm, buffer = self._comm, [data, self._mpi.FLOAT]
        return lambda: comm.Recv(buffer, peer, TAG)

    def latest(self, moment: float) -> float:
        """Return the largest of all ranks' moments."""
        return float(self._comm.allreduce(moment, self._mpi.MAX))

    def close(self) -> None:
        """Leave the group; mpi4py does the rest as the process ends."""
        self._comm.Barrier()
