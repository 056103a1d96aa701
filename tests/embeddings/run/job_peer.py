"""Processes of a job that serve what the tests of its supervisor ask for.

As a module it is a server, reader or cacher; `SCRIPT` is what trainers run.
"""

import os
import sys

from headrace.embeddings.run.process import RoleSettings, serve_role
from headrace.embeddings.run.rpc.calls import EMPTY, RpcCall, RpcMessage, RpcServer
from headrace.embeddings.run.rpc.pulses import PulseListener
from headrace.launch.worker import Send, run_worker
from tests.waiting import HANG_S


class Peer(RpcServer):
    """Serves calls, and has no figures."""

    def status(self) -> dict[str, object]:
        return {}


def serve(settings: RoleSettings, send: Send) -> Peer:
    if os.environ.get("REFUSES") == settings.role:
        print("line of its output", file=sys.stderr)
        raise ValueError("size is 3")
    if os.environ.get("DIES") == settings.role:
        print("line of its output", file=sys.stderr, flush=True)
        os._exit(7)

    readers: list[object] = []

    def describe(_: RpcCall) -> RpcMessage:
        process = {"pid": os.getpid(), "argv": sys.argv, "rank": os.environ.get("RANK")}
        head = {"role": settings.role, "options": settings.options, "count": settings.count}
        return RpcMessage(head=head | process)

    listener = PulseListener(
        settings.host, settings.secret, HANG_S, lambda *_: None, lambda _: None
    )

    def attend(call: RpcCall) -> RpcMessage:
        if call.peer == "reader 0":
            readers.append(call.message.head["address"])
        if call.peer.startswith("trainer "):
            send(attends=call.peer)
        return RpcMessage(head={"pulses": listener.address, "interval_s": 1.0})

    def serves(_: RpcCall) -> RpcMessage:
        send(serves=True)
        return EMPTY

    def attended(_: RpcCall) -> RpcMessage:
        return RpcMessage(head={"readers": readers})

    methods = {"describe": describe, "attend": attend, "attended": attended, "serves": serves}
    return Peer(settings.role, methods, secret=settings.secret)


SCRIPT = """
import json, os, signal, sys, time, traceback
from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.embeddings.settings import EmbeddingSettings
from tests.embeddings.run.job_peer import run_worker, serve, serve_role

settings = EmbeddingSettings.from_environment()
if settings.role == "reader":
    print("a line of the script")
    print(json.dumps({"address": "of JSON", "status": "started", "error": None}))
    if sys.argv[1] != "ends":
        run_worker(lambda receive, send: serve_role(receive, send, serve), beside_prints=True)
    sys.exit(0)
cacher = RpcClient(settings.cacher, peer_role="cacher", role="trainer", secret=settings.secret)
described = cacher.call("describe").head
first = RpcClient(described["options"]["servers"][0], peer_role="server 0", role="trainer",
                  secret=settings.secret)
match sys.argv[1]:
    case "describe":
        servers = described["options"]["servers"] + described["options"]["readers"]
        clients = [RpcClient(address, peer_role="", role="", secret=settings.secret)
                   for address in servers]
        peers = [described, *(client.call("describe").head for client in clients)]
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                 "MASTER_ADDR", "MASTER_PORT", "EXTRA"]
        variables = {name: os.environ.get(name) for name in names}
        print(json.dumps({"peers": peers, "variables": variables, "pid": os.getpid(),
                          "cache": settings.cache_bytes}))
    case "fail":
        print("first line of output")
        if settings.rank == 1:
            while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
                time.sleep(0.01)
            print("last line of errors", file=sys.stderr)
            sys.exit(3)
        time.sleep(600)
    case "fail and follow":
        if settings.rank == 1:
            try:
                raise ValueError("the cause")
            except ValueError:
                traceback.print_exc()
            time.sleep(3)  # it takes leave
            sys.exit(3)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        raise RuntimeError("trainer 1 has left")
    case "fail behind another":
        if settings.rank == 0:
            while not os.path.exists(sys.argv[2]):
                time.sleep(0.01)
            print("[rank0]: Traceback (most recent call last):", "[rank0]: ValueError: the cause",
                  *(f"[rank0]: call {n} of torch" for n in range(40)), sep="\\n")
            sys.exit(1)
    case "kill the server":
        if settings.rank == 1:
            os.kill(first.call("describe").head["pid"], signal.SIGKILL)
        while True:
            first.call("describe")
    case "be killed":
        if settings.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(600)
    case "kill a reader":
        if settings.rank == 1:
            sys.exit(0)
        for number in range(3):
            while len(readers := cacher.call("attended").head["readers"]) <= number:
                time.sleep(0.01)
            reader = RpcClient(readers[number], peer_role="reader 0", role="trainer",
                               secret=settings.secret)
            pid = reader.call("describe").head["pid"]
            if number < int(sys.argv[2]):
                reader.call("serves")
            if number < 2:
                os.kill(pid, signal.SIGKILL)
        print("a third process", pid)
    case "attend":
        with RpcClient(settings.cacher, peer_role="cacher", role=f"trainer {settings.rank}",
                       secret=settings.secret) as client:
            client.call("attend")
        print("trainers", settings.world_size, os.getpid(), flush=True)
        time.sleep(600 if settings.world_size > 2 else 0)
    case "wait":
        print("pids", os.getpid(), *[described["pid"], first.call("describe").head["pid"]])
        time.sleep(600)
"""

if __name__ == "__main__":
    run_worker(lambda receive, send: serve_role(receive, send, serve))
