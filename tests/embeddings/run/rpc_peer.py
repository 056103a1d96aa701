"""A process that serves calls, or makes one: for tests that end it."""

import atexit
import sys
import threading

from headrace.errors import CommunicationError
from tests.waiting import ENDLESS_S, HANG_S

SECRET = "of the tests"


def main(purpose: str, address: str = "") -> None:
    printed = threading.Event()
    if purpose == "leave":
        # before that of the module below, so that it runs after it
        atexit.register(printed.wait, HANG_S)
    from headrace.embeddings.run.rpc import EMPTY, RpcCall, RpcClient, RpcMessage, RpcServer

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

    def call() -> None:
        try:
            client.call("wait", deadline_s=ENDLESS_S)
        except CommunicationError as error:
            print(error, flush=True)
            printed.set()

    threading.Thread(target=call, daemon=True).start()
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
