"""An interpreter of MSCCL XML that shares no code with headrace: the reference for both.

It runs the threadblocks under random interleavings. A connection is a queue of whole steps,
`depth` deep; with a depth of 0 a send waits for its receive, and a step that receives and sends
takes both at once. Values are (item, ranks combined); memory that was not written is None.
"""

import random
from xml.etree import ElementTree

Value = tuple[int, frozenset[int]] | None


class Machine:
    """One XML text, to be run as often as wanted."""

    def __init__(self, text: str) -> None:
        algo = ElementTree.fromstring(text)
        self.coll = algo.attrib["coll"]
        self.loop = int(algo.attrib["nchunksperloop"])
        self.gpus = sorted(algo, key=lambda gpu: int(gpu.attrib["id"]))
        self.n = len(self.gpus)
        self.modes = [m for m in ("outofplace", "inplace") if algo.attrib[m] == "1"]

    def misbehaves(self, runs: int, root: int = 0, depth: int = 2) -> str:
        """Return what went wrong in the first bad of `runs` runs, or ""."""
        for mode in self.modes:
            for seed in range(runs):
                problem = self._run(seed, mode == "inplace", root, depth)
                if problem:
                    return f"{mode}, run {seed}: {problem}"
        return ""

    def _run(self, seed: int, in_place: bool, root: int, depth: int) -> str:
        rng = random.Random(seed)
        self.depth = depth
        self._fill(in_place, root)
        self.blocks = []
        for gpu in self.gpus:
            for tb in gpu:
                steps = [dict(step.attrib) for step in tb]
                self.blocks.append(
                    {"gpu": int(gpu.attrib["id"]), "at": 0, "steps": steps, **tb.attrib}
                )
        self.queues: dict[tuple[int, int, str], list[list[Value]]] = {}
        self.flags: dict[tuple[int, int], int] = {}
        agents = list(range(len(self.blocks)))
        while True:
            rng.shuffle(agents)
            if not any(self._advance(self.blocks[agent]) for agent in agents):
                break
        stuck = [b for b in self.blocks if b["at"] < len(b["steps"])]
        if stuck:
            return f"stuck at gpu {stuck[0]['gpu']}, tb {stuck[0]['id']}, step {stuck[0]['at']}"
        return self._compare(in_place, root)

    def _advance(self, block: dict) -> bool:
        if block["at"] == len(block["steps"]):
            return False
        step = block["steps"][block["at"]]
        if int(step["depid"]) >= 0:
            flag = self.flags.get((block["gpu"], int(step["depid"])), -1)
            if flag < int(step["deps"]):
                return False
        kind = step["type"]
        count = int(step["cnt"])
        src, dst = self._place(block, step, "src"), self._place(block, step, "dst")
        memory = self.memory[block["gpu"]]
        recv = kind in ("r", "rcs", "rrs", "rrc", "rrcs")
        send = kind in ("s", "rcs", "rrs", "rrcs")
        incoming = (int(block["recv"]), block["gpu"], block["chan"])
        outgoing = (block["gpu"], int(block["send"]), block["chan"])
        if recv and not self.queues.get(incoming):
            return False
        if send and len(self.queues.setdefault(outgoing, [])) >= self.depth:
            return False
        values = [memory.get((src[0], src[1] + k)) for k in range(count)]
        if recv:
            arrived = self.queues[incoming].pop(0)
            if len(arrived) != count:
                return False
            values = (
                [_combine(a, b) for a, b in zip(values, arrived, strict=True)]
                if kind[:2] == "rr"
                else arrived
            )
        if kind == "re":
            values = [_combine(memory.get((dst[0], dst[1] + k)), values[k]) for k in range(count)]
        if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            for k in range(count):
                memory[dst[0], dst[1] + k] = values[k]
        if send:
            self.queues[outgoing].append(values)
        if step["hasdep"] == "1" and kind != "nop":
            self.flags[block["gpu"], int(block["id"])] = block["at"]
        block["at"] += 1
        return True

    def _place(self, block: dict, step: dict, end: str) -> tuple[str, int]:
        buffer, offset = step[f"{end}buf"], int(step[f"{end}off"])
        return self._alias(block["gpu"], buffer, offset)

    def _alias(self, gpu: int, buffer: str, offset: int) -> tuple[str, int]:
        if not self.in_place or buffer == "s":
            return buffer, offset
        c, rooted = self.chunks, gpu == self.root
        if self.coll in ("allreduce", "reduce", "broadcast", "alltoall"):
            return "i", offset
        if self.coll == "allgather" or (self.coll == "gather" and rooted):
            return ("o", gpu * c + offset) if buffer == "i" else (buffer, offset)
        if self.coll == "reducescatter" or (self.coll == "scatter" and rooted):
            return ("i", gpu * c + offset) if buffer == "o" else (buffer, offset)
        return buffer, offset

    def _fill(self, in_place: bool, root: int) -> None:
        n, coll = self.n, self.coll
        blocks = n if coll in ("allgather", "reducescatter", "alltoall") else 1
        self.chunks = c = self.loop // blocks
        self.in_place, self.root = in_place, root
        self.memory: list[dict[tuple[str, int], Value]] = [{} for _ in range(n)]
        for gpu in range(n):
            width = {"alltoall": n * c, "reducescatter": n * c, "scatter": n * c}.get(coll, c)
            if coll in ("broadcast", "scatter") and gpu != root:
                continue
            for k in range(width):
                item = {
                    "alltoall": gpu * n * c + k,
                    "allgather": gpu * c + k,
                    "gather": gpu * c + k,
                }
                value = (item.get(coll, k), frozenset({gpu}))
                self.memory[gpu][self._alias(gpu, "i", k)] = value

    def _compare(self, in_place: bool, root: int) -> str:
        n, c, coll = self.n, self.chunks, self.coll
        everyone = frozenset(range(n))
        for gpu in range(n):
            if coll in ("reduce", "gather") and gpu != root:
                continue
            wanted: dict[int, Value] = {}
            for k in range(c):
                if coll in ("allreduce", "reduce"):
                    wanted[k] = (k, everyone)
                elif coll == "broadcast":
                    wanted[k] = (k, frozenset({root}))
                elif coll == "reducescatter":
                    wanted[k] = (gpu * c + k, everyone)
                elif coll == "scatter":
                    wanted[k] = (gpu * c + k, frozenset({root}))
                for s in range(n):
                    if coll in ("allgather", "gather"):
                        wanted[s * c + k] = (s * c + k, frozenset({s}))
                    elif coll == "alltoall":
                        wanted[s * c + k] = (s * n * c + gpu * c + k, frozenset({s}))
            for offset, value in wanted.items():
                found = self.memory[gpu].get(self._alias(gpu, "o", offset))
                if found != value:
                    return f"gpu {gpu}: o[{offset}] holds {found}, needs {value}"
        return ""


def _combine(a: Value, b: Value) -> Value:
    if a is None or b is None or a[0] != b[0] or a[1] & b[1]:
        return None
    return a[0], a[1] | b[1]
