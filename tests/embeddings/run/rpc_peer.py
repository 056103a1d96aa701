"""A process that serves calls, or makes one: for tests that end it."""

import atexit
import os
import signal
import sys
import threading
from typing import Any

from headrace.errors import CommunicationError, ForkError
from tests.waiting import ENDLESS_S, HANG_S

SECRET = "of the tests"


def main(purpose: str, address: str = "") -> None:
    printed = threading.Event()
    if purpose == "leave":
        # before that of the module below, so that it runs after it
        atexit.register(printed.wait, HANG_S)
    from headrace.embeddings.run.rpc.calls import EMPTY, RpcCall, RpcClient, RpcMessage, RpcServer

    if purpose == "serve":
        called = threading.Condition()

        def wait(call: RpcCall) -> RpcMessage:
            print("waits", flush=True)
            with called:
                call.wait(called, lambda: False)
            return EMPTY

        server = RpcServer("the server", {"wait": wait}, secret=SECRET)
        print(server.address, flush=True)
        threading.Event().wait(ENDLESS_S)
        return
    client = RpcClient(address, peer_role="the server", role="the caller", secret=SECRET)
    if purpose == "call":
        client.call("wait", deadline_s=ENDLESS_S)
        return
    if purpose == "fork":
        fork_beside_a_call(client)
        return

    def call() -> None:
        try:
            client.call("wait", deadline_s=ENDLESS_S)
        except CommunicationError as error:
            print(error, flush=True)
            printed.set()

    threading.Thread(target=call, daemon=True).start()
    sys.stdin.readline()


def fork_beside_a_call(client: Any) -> None:
    """Fork a child that ends as programs do, after it has tried what its parent's client does."""

    def call() -> None:
        client.call("wait", deadline_s=ENDLESS_S)
        print("answered", flush=True)

    calling = threading.Thread(target=call)
    calling.start()
    sys.stdin.readline()
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANG_S))  # ends it where it hangs
        try:
            client.call("echo")
        except ForkError as error:
            print(error, flush=True)
        client.close()
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    calling.join()
    print(client.call("echo").head["peer"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
