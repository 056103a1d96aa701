"""Small training steps, random and made by hand, and schedules of them."""

from dataclasses import replace
from random import Random

from headrace.memory.graph import Graph, Implementation, Operator, Storage
from headrace.memory.schedule import Schedule, Step


def implementation(
    name: str = "default",
    *,
    time_us: float = 1.0,
    workspace_bytes: int = 0,
    reads: tuple[int, ...] = (),
    creates: tuple[int, ...] = (),
    overwrites: int | None = None,
) -> Implementation:
    return Implementation(
        name=name,
        time_us=time_us,
        workspace_bytes=workspace_bytes,
        reads=reads,
        creates=creates,
        overwrites=overwrites,
    )


def operator(name: str, *ways: Implementation, module: str = "", again: bool = True) -> Operator:
    return Operator(name=name, module=module, again=again, implementations=ways)


def chain(length: int, nbytes: int = 10, resident: int = 0) -> Graph:
    """Return a chain of operators in modules ``0`` to ..., each backward one reading its input.

    Storage i is the output of forward operator i, storage 2 * length - 1 - i its gradient.
    """
    names = [f"x{i}" for i in range(length)] + [f"g{i}" for i in reversed(range(length))]
    forward = [
        operator(
            f"forward{i}",
            implementation(reads=() if i == 0 else (i - 1,), creates=(i,)),
            module=str(i),
        )
        for i in range(length)
    ]
    backward: list[Operator] = []
    for i in reversed(range(length)):
        made = 2 * length - 1 - i
        read = ((i - 1,) if i else ()) + ((made - 1,) if i < length - 1 else ())
        way = implementation(reads=read, creates=(made,))
        backward.append(operator(f"backward{i}", way, module=str(i), again=False))
    return Graph(
        storages=tuple(Storage(name=name, nbytes=nbytes) for name in names),
        operators=(*forward, *backward),
        forward_count=length,
        outputs=frozenset({length - 1}),
        results=frozenset({2 * length - 1}),
        resident={"parameters": resident} if resident else {},
    )


class _Builder:
    """Collects the parts of a random training step."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storages: list[Storage] = []
        self.operators: list[Operator] = []

    def storage(self, name: str, nbytes: int) -> int:
        self.storages.append(Storage(name=name, nbytes=nbytes))
        return len(self.storages) - 1

    def time(self) -> float:
        return float(self.random.randint(1, 9))


def random_graph(random: Random, most: int = 8, *, ways: bool = True, least: int = 1) -> Graph:
    """Return a random training step of up to `most` forward operators, the last one the loss.

    Parameters
    ----------
    ways : with several implementations: other workspaces, in place, from output, from signs.
    """
    build, count = _Builder(random), random.randint(least, most)
    inputs: list[tuple[int, ...]] = []
    signs: list[int | None] = []
    outputs: list[int] = []
    for i in range(count):
        last = i == count - 1
        read = tuple(
            sorted(random.sample(outputs[-4:], min(len(outputs[-4:]), random.choice((1, 1, 2)))))
        )
        if last and i:
            read = tuple(sorted({*read, outputs[-1]}))
        same = bool(read) and random.random() < 0.4
        size = build.storages[read[0]].nbytes if same else random.randint(1, 6)
        made = build.storage(f"x{i}", size)
        default = implementation(time_us=build.time(), reads=read, creates=(made,))
        kinds, sign = [default], None
        if ways and not last:
            if random.random() < 0.3:
                kinds.append(
                    implementation(
                        "lean" if random.random() < 0.5 else "fast",
                        time_us=build.time(),
                        workspace_bytes=random.randint(1, 4),
                        reads=read,
                        creates=(made,),
                    )
                )
            if same and random.random() < 0.6:
                kinds.append(
                    implementation(
                        "in place", time_us=1, reads=read, creates=(made,), overwrites=read[0]
                    )
                )
            if random.random() < 0.3:
                sign = build.storage(f"signs{i}", 1)
                kinds.append(
                    implementation(
                        "with signs",
                        time_us=default.time_us + 1,
                        reads=read,
                        creates=(made, sign),
                    )
                )
        again = last or random.random() < 0.9
        build.operators.append(operator(f"f{i}", *kinds, module=f"block{i // 3}", again=again))
        inputs.append(read)
        outputs.append(made)
        signs.append(sign)
    results = _backward(build, inputs, outputs, signs, ways)
    return Graph(
        storages=tuple(build.storages),
        operators=tuple(build.operators),
        forward_count=count,
        outputs=frozenset({outputs[-1]}),
        results=frozenset(results),
        resident={"parameters": random.randint(0, 5)},
    )


def _backward(
    build: _Builder,
    inputs: list[tuple[int, ...]],
    outputs: list[int],
    signs: list[int | None],
    ways: bool,
) -> list[int]:
    """Append the backward operators; return the results."""
    random, results = build.random, list[int]()
    gradients: dict[int, list[int]] = {output: [] for output in outputs}
    for i in reversed(range(len(inputs))):
        own = tuple(gradients[outputs[i]])
        made: list[int] = []
        for read in inputs[i]:
            made.append(build.storage(f"g{i}_{read}", build.storages[read].nbytes))
            gradients[read].append(made[-1])
        if random.random() < 0.5 or not made:
            made.append(build.storage(f"w{i}", random.randint(1, 3)))
            results.append(made[-1])
        values = tuple(read for read in inputs[i] if random.random() < 0.8)
        way = implementation(time_us=build.time(), creates=tuple(made))
        kinds = [replace(way, reads=own + values, workspace_bytes=random.choice((0, 0, 2)))]
        sign = signs[i]
        if ways and random.random() < 0.4:
            kinds.append(replace(way, name="from output", reads=(*own, outputs[i])))
        if sign is not None:
            kinds.append(replace(way, name="from signs", reads=(*own, sign)))
        build.operators.append(operator(f"b{i}", *kinds, again=False))
    return results


def random_schedule(graph: Graph, random: Random, reruns: int = 6) -> Schedule:
    """Return a valid schedule with random reruns, by implementations that overwrite nothing."""

    steps = [Step(index) for index in range(len(graph.operators))]
    able = [i for i in range(graph.forward_count) if graph.operators[i].again]
    for _ in range(random.randint(0, reruns)):
        if able:
            chosen = random.choice(able)
            after = next(k for k, step in enumerate(steps) if step.operator == chosen)
            steps.insert(random.randint(after + 1, len(steps)), Step(chosen))
    first = next(k for k, step in enumerate(steps) if step.operator >= graph.forward_count)
    return Schedule(steps=tuple(steps), forward_steps=first)
