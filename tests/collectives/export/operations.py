"""An interpreter of MSCCL++ plans that shares nothing with headrace.

It runs the operations of all threadblocks under random interleavings: counting semaphores of
memory channels and of the GPU, puts into and reads from the memory of peers, byte for byte as the
JSON says. A wrong handshake shows as a wrong value or as threadblocks that wait for ever.
"""

import json
import random

from tests.collectives.export.machine import Machine, Value, _combine


class Operations(Machine):
    """One plan, to be run as often as wanted; memory and comparison are `Machine`'s."""

    def __init__(self, text: str) -> None:
        self.json = json.loads(text)
        self.coll = self.json["collective"]
        self.n = len(self.json["gpus"])
        self.modes = ["inplace" if self.json["inplace"] else "outofplace"]
        first = self.json["gpus"][0]
        by_output = self.coll in ("allgather", "scatter")
        self.loop = first["output_chunks" if by_output else "input_chunks"]
        self.partner: dict[tuple[int, int], tuple[int, int]] = {}
        flat = [
            [peer for channel in gpu["channels"] for peer in channel["connected_to"]]
            for gpu in self.json["gpus"]
        ]
        for a, peers in enumerate(flat):
            for k, b in enumerate(peers):
                nth = peers[:k].count(b)
                there = [x for x, peer in enumerate(flat[b]) if peer == a]
                self.partner[a, k] = b, there[nth]

    def _run(self, seed: int, in_place: bool, root: int, depth: int) -> str:
        rng = random.Random(seed)
        self._fill(in_place, root)
        self.signals = dict.fromkeys(self.partner, 0)
        self.semaphores = [
            [s["init_value"] for s in gpu["semaphores"]] for gpu in self.json["gpus"]
        ]
        blocks = [[gpu["id"], tb, 0] for gpu in self.json["gpus"] for tb in gpu["threadblocks"]]
        while True:
            rng.shuffle(blocks)
            moved = False
            for block in blocks:
                gpu, tb, at = block
                while at < len(tb["ops"]) and self._do(gpu, tb, tb["ops"][at]):
                    moved, at = True, at + 1
                    if rng.random() < 0.5:
                        break
                block[2] = at
            if not moved:
                break
        for gpu, tb, at in blocks:
            if at < len(tb["ops"]):
                return f"stuck at gpu {gpu}, threadblock {tb['id']}, op {at}: {tb['ops'][at]}"
        if any(self.signals.values()) or any(map(any, self.semaphores)):
            return "signals are left over: the next call would begin too early"
        return self._compare(in_place, root)

    def _do(self, gpu: int, tb: dict, op: dict) -> bool:
        name = op["name"]
        if name in ("signal", "wait"):
            ids = [k for channel in tb["channels"] for k in channel["channel_ids"]]
            here = (gpu, ids[op["channel_ids"][0]])
            if name == "signal":
                self.signals[self.partner[here]] += 1
                return True
            if not self.signals[here]:
                return False
            self.signals[here] -= 1
        elif name == "sem_acquire":
            own = self.semaphores[gpu]
            if not all(own[k] for k in op["semaphore_ids"]):
                return False
            for k in op["semaphore_ids"]:
                own[k] -= 1
        elif name == "sem_release":
            for k in op["semaphore_ids"]:
                self.semaphores[gpu][k] += 1
        elif name != "nop":
            self._move(gpu, tb, op)
        return True

    def _move(self, gpu: int, tb: dict, op: dict) -> None:
        loaded = [self._load(gpu, tb, buff) for buff in op["src_buff"]]
        values = loaded[0]
        for other in loaded[1:]:
            values = [_combine(a, b) for a, b in zip(values, other, strict=True)]
        for buff in op["dst_buff"]:
            for k, value in enumerate(values):
                rank, place = self._at(gpu, tb, buff, k)
                self.memory[rank][place] = value

    def _load(self, gpu: int, tb: dict, buff: dict) -> list[Value]:
        at = [self._at(gpu, tb, buff, k) for k in range(buff["size"])]
        return [self.memory[rank].get(place) for rank, place in at]

    def _at(self, gpu: int, tb: dict, buff: dict, k: int) -> tuple[int, tuple[str, int]]:
        if "buffer_id" not in buff:
            return gpu, self._alias(gpu, buff["type"], buff["index"] + k)
        refs = [n for ref in tb["remote_buffer_refs"] for n in ref["remote_buffer_ids"]]
        remote = self.json["gpus"][gpu]["remote_buffers"][refs[buff["buffer_id"]]]
        rank = remote["rank"]
        sizes = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        assert buff["index"] + k < self.json["gpus"][rank][sizes[remote["type"]]]
        return rank, self._alias(rank, remote["type"], buff["index"] + k)
