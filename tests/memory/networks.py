"""Networks as graphs, with roofline times: large enough to try what has to scale."""

from headrace.memory.graph import Graph, Implementation, Operator, Storage

_FLOPS_PER_US = 8e6
_BYTES_PER_US = 5e5


class Network:
    """Collects forward operators, each with the way it is differentiated."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.forward: list[Operator] = []
        self._backward: list[tuple[str, int, tuple[int, ...], float, float, int]] = []
        self.parameters = 0

    def storage(self, name: str, nbytes: int) -> int:
        self.storages.append(Storage(name=name, nbytes=nbytes))
        return len(self.storages) - 1

    def operator(
        self,
        kind: str,
        reads: tuple[int, ...],
        nbytes: int,
        *,
        flops: float = 0.0,
        workspace: int = 0,
        parameters: int = 0,
        module: str = "",
    ) -> int:
        made = self.storage(f"{kind}{len(self.forward)}", nbytes)
        moved = nbytes + sum(self.storages[each].nbytes for each in reads)
        time = flops / _FLOPS_PER_US + moved / _BYTES_PER_US
        way = Implementation(
            name="default", time_us=time, workspace_bytes=workspace, reads=reads, creates=(made,)
        )
        self.forward.append(
            Operator(
                name=f"{kind}{len(self.forward)}", module=module, again=True, implementations=(way,)
            )
        )
        self._backward.append((kind, made, reads, time, flops, parameters))
        self.parameters += parameters
        return made

    def graph(self) -> Graph:
        """Return the training step: convolutions' gradients in two operators (4.4)."""
        backward: list[Operator] = []
        gradients: dict[int, list[int]] = {}
        results: list[int] = []

        def add(name: str, time: float, reads: tuple[int, ...], creates: tuple[int, ...]) -> None:
            way = Implementation(
                name="default", time_us=time, workspace_bytes=0, reads=reads, creates=creates
            )
            backward.append(Operator(name=name, module="", again=False, implementations=(way,)))

        for index in reversed(range(len(self._backward))):
            kind, made, reads, time, _, parameters = self._backward[index]
            own = tuple(gradients.get(made, ()))
            if len(own) > 1:
                total = self.storage(f"sum{index}", self.storages[made].nbytes)
                add(f"sum{index}", 3 * self.storages[made].nbytes / _BYTES_PER_US, own, (total,))
                own = (total,)
            new: list[int] = []
            for read in reads:
                new.append(self.storage(f"g{index}_{read}", self.storages[read].nbytes))
                gradients.setdefault(read, []).append(new[-1])
            if parameters:
                weight = self.storage(f"w{index}", parameters)
                results.append(weight)
                add(f"{kind}{index}_w", time, own + reads, (weight,))
            values = {"conv": (), "linear": (), "add": (), "relu": (made,)}.get(kind, reads)
            if new:
                add(f"{kind}{index}_x", time, own + values, tuple(new))
        return Graph(
            storages=tuple(self.storages),
            operators=(*self.forward, *backward),
            forward_count=len(self.forward),
            outputs=frozenset({self._backward[-1][1]}),
            results=frozenset(results),
            resident={"parameters": self.parameters},
        )


def resnet(batch: int = 184, blocks: tuple[int, ...] = (3, 4, 6, 3), side: int = 224) -> Graph:
    """Return a ResNet of bottlenecks (50 layers by default), without implementations to choose."""
    net = Network()

    def unit(reads: int, ins: int, outs: int, kernel: int, size: int, name: str) -> int:
        nbytes = 4 * batch * outs * size * size
        weights = 4 * ins * outs * kernel * kernel
        made = net.operator(
            "conv",
            (reads,) if reads >= 0 else (),
            nbytes,
            flops=weights / 2 * batch * size * size,
            parameters=weights,
            module=name,
        )
        return net.operator("norm", (made,), nbytes, module=name)

    def relu(reads: int, name: str) -> int:
        return net.operator("relu", (reads,), net.storages[reads].nbytes, module=name)

    size = side // 2
    x = relu(unit(-1, 3, 64, 7, size, "stem"), "stem")
    size //= 2
    x, ins = net.operator("pool", (x,), 4 * batch * 64 * size * size, module="stem"), 64
    for level, count in enumerate(blocks):
        width = 64 << level
        for block in range(count):
            name = f"layer{level}.{block}"
            inner = relu(unit(x, ins, width, 1, size, name), name)
            if level and not block:
                size //= 2
            inner = relu(unit(inner, width, width, 3, size, name), name)
            inner = unit(inner, width, 4 * width, 1, size, name)
            short = x if block else unit(x, ins, 4 * width, 1, size, name)
            ins = 4 * width
            added = net.operator("add", (short, inner), 4 * batch * ins * size * size, module=name)
            x = relu(added, name)
    x = net.operator("mean", (x,), 4 * batch * ins)
    x = net.operator("linear", (x,), 4 * batch * 1000, parameters=4 * ins * 1000)
    net.operator("loss", (x,), 512)
    return net.graph()
