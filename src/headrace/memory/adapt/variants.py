"""Scheduled steps by the attributes of modules that they were traced with.

A trace has attributes as constants. So where one has changed the step is traced again, and runs by
the same schedules if its operators are the same. Attributes that `forward` does not use, such
as a counter of a log, are told by a trace in which they are replaced by probes, and compared no
more.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.graph import Graph
from headrace.memory.measure.arguments import named_parts
from headrace.memory.measure.attributes import (
    AttributeChange,
    AttributeReader,
    Name,
    described,
    differing_names,
    is_replaceable,
    type_of,
)
from headrace.memory.measure.capture import capture
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.computation import Computation
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.probe import ValueProbe
from headrace.memory.measure.refuse import has_global_hooks, is_hooked
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.run.step import ScheduledStep, scheduled_step
from headrace.memory.schedule import Schedule

SchedulesOf = Callable[[Capture], Mapping[int, Schedule]]
"""Schedules of a captured step, by their budgets in bytes."""

_MOST_VARIANTS = 32
"""Steps of one kind of arguments that are kept: each is a graph, without tensors of its own."""
_MOST_PROBED = 4
"""Attributes that are probed one by one, where some of those that differ are used."""
_MOST_REFUSED = 3
"""Traces for nothing, where all captures are used, before other attributes are not traced."""
_WARNED_CHANGES = 8
"""Values of an attribute that were traced, before a warning says what it costs."""


@dataclass(slots=True, kw_only=True, eq=False)
class StepVariant:
    """A step as traced with attributes of some contents.

    Attributes
    ----------
    steps : by budget.
    contents : of the attributes.
    unused : attributes that `forward` does not use, but to count them up.
    schedules : by budget; empty if the step is to run without one.
    changes : of attributes, behind each run.
    plans : whether the schedules were planned for it, not for an earlier variant.
    """

    steps: Mapping[int, ScheduledStep] = field(default_factory=dict[int, ScheduledStep])
    contents: Mapping[Name, Any]
    unused: set[Name] = field(default_factory=set[Name])
    computation: Computation | None = None
    operators: "_Operators | None" = None
    schedules: Mapping[int, Schedule] = field(default_factory=dict[int, Schedule])
    changes: tuple[AttributeChange, ...] = ()
    plans: bool = False

    def serves(self, contents: Mapping[Name, Any]) -> bool:
        """Return whether a step with other attributes is this one."""
        if contents is self.contents:
            return True
        if not all(
            name in self.unused and type_of(self.contents, name) == type_of(contents, name)
            for name in differing_names(self.contents, contents)
        ):
            return False
        self.contents = contents
        return True


@dataclass(frozen=True, slots=True)
class _Operators:
    """Operators and their arguments but for real numbers: a plan depends on these."""

    graph: Graph
    nodes: str

    @classmethod
    def of(cls, captured: Capture) -> "_Operators":
        return cls(captured.graph, "\n".join(map(_signature, captured.fx.nodes)))


def _signature(node: Node) -> str:
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    texts = ["float" if isinstance(leaf, float) else str(leaf) for leaf in leaves]
    return f"{node.name} {node.op} {node.target} {texts} {spec}"


class Variants:
    """Steps of a module that are captured, planned and compiled when they are first asked for.

    Parameters
    ----------
    model : with its loss.
    implemented : traced step -> step with all implementations.
    schedules_of : of a step with all implementations.
    captures : how many steps are planned.
    at_start : whether a step is planned only until one has run by an earlier plan: a solver in the
        middle of training would be a pause.
    plans : list that `schedules_of` appends its plans to.

    Raises
    ------
    CaptureError : `captures` is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        implemented: Callable[[Capture], Capture],
        schedules_of: SchedulesOf,
        *,
        captures: int,
        at_start: bool = False,
        plans: Sequence[MemoryPlan] = (),
    ) -> None:
        if captures < 1:
            raise CaptureError(f"captures is {captures}, needs 1 or more kinds of arguments")
        self._model, self._implemented, self._schedules_of = model, implemented, schedules_of
        self._captures, self._at_start, self._runs = captures, at_start, False
        self.plans = plans
        self._kinds: dict[Hashable, list[StepVariant]] = {}
        self._reader = AttributeReader(model)
        self._refused = 0
        self._used: set[Name] = set()  # attributes that no further trace is to look at
        self._traced: Counter[Name] = Counter()
        self._warned: set[Name] = set()

    @property
    def budgets(self) -> tuple[int, ...]:
        """Budgets in bytes that there are schedules for, the least first."""
        variants = [variant for kind in self._kinds.values() for variant in kind]
        return tuple(sorted({budget for variant in variants for budget in variant.schedules}))

    def find(
        self,
        kind: Hashable,
        modules: list[nn.Module],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        runs: bool = True,
    ) -> StepVariant | None:
        """Return the step for the modules as they are; None where it is to run without a schedule.

        Parameters
        ----------
        kind : of the step, but for attributes.
        modules : of the model.
        runs : whether the step runs now, or is prepared alone.
        """
        contents = self._reader.read(modules)
        variants = self._kinds.get(kind, [])
        variant = next((earlier for earlier in variants if earlier.serves(contents)), None)
        self._runs |= runs and variant is not None and bool(variant.schedules)
        hooked = has_global_hooks() or any(map(is_hooked, modules))
        hooked_later = hooked and bool(self._kinds)
        if variant is None and not hooked_later:
            variant = self._new(kind, contents, args, kwargs)
        return variant if variant is not None and variant.schedules else None

    def differing(self, kind: Hashable, modules: list[nn.Module]) -> str:
        """Return the names of attributes by which a step differs from the latest of its kind."""
        planned = [variant for variant in self._kinds.get(kind, ()) if variant.schedules]
        if not planned:
            return ""
        return described(differing_names(planned[-1].contents, self._reader.read(modules)))

    def _new(
        self,
        kind: Hashable,
        contents: Mapping[Name, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> StepVariant | None:
        variants = self._kinds.get(kind, [])
        may_plan = self._planned < self._captures and not (self._at_start and self._runs)
        if not may_plan and (not variants or self._refused >= _MOST_REFUSED):
            return None
        with preserved(self._model):
            variant = self._variant(variants, contents, args, kwargs, may_plan=may_plan)
        if variant not in variants:
            self._kinds[kind] = _newest([*variants, variant])
            self._note_changes(variants, contents)
        return variant

    @property
    def _planned(self) -> int:
        return sum(variant.plans for kind in self._kinds.values() for variant in kind)

    def _variant(
        self,
        variants: Sequence[StepVariant],
        contents: Mapping[Name, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        may_plan: bool,
    ) -> StepVariant:
        """Return an earlier variant that serves these contents too, or a new one."""
        traced = capture(self._model, args, kwargs)
        assert traced.joint is not None
        computation = Computation.of(traced.joint)
        equal = next(
            (variant for variant in variants if computation.equals(variant.computation)), None
        )
        names = {change.name for change in traced.changes}
        if equal is not None:
            names |= {*differing_names(equal.contents, contents)} - equal.unused
        changes, unused = self._probed(names, computation, traced.changes, args, kwargs)
        if equal is not None:
            equal.unused |= unused
            if equal.serves(contents):
                equal.changes = changes
                return equal
            return StepVariant(
                contents=contents,
                unused=unused,
                computation=computation,
                operators=equal.operators,
                schedules=equal.schedules,
                steps=equal.steps,
                changes=changes,
            )
        captured = self._implemented(traced)
        operators = _Operators.of(captured)
        alike = next((variant for variant in variants if variant.operators == operators), None)
        if alike is None and not may_plan:
            self._refused += 1
            return StepVariant(contents=contents, unused=unused)
        schedules = self._schedules_of(captured) if alike is None else alike.schedules
        return StepVariant(
            contents=contents,
            unused=unused,
            computation=computation,
            operators=operators,
            schedules=schedules,
            steps={
                budget: scheduled_step(captured, schedule) for budget, schedule in schedules.items()
            },
            changes=changes,
            plans=alike is None,
        )

    def _probed(
        self,
        names: set[Name],
        computation: Computation,
        changes: tuple[AttributeChange, ...],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[tuple[AttributeChange, ...], set[Name]]:
        """Return the changes, as additions where they are, and which attributes are not used."""
        modules = dict(named_parts(self._model))
        values = {
            (module, attribute): vars(modules[module]).get(attribute)
            for module, attribute in names
            if module in modules
        }
        candidates = {
            name: value
            for name, value in sorted(values.items(), key=lambda item: not _is_number(item[1]))
            if name not in self._used and is_replaceable(value)
        }
        unused: set[Name] = set()
        merged = {change.name: change for change in changes}
        singly = [{name} for name in list(candidates)[:_MOST_PROBED]]
        for probed in (set(candidates), *singly):
            if not probed or probed <= unused:
                continue
            with preserved(self._model):
                for module, attribute in probed:
                    probe = ValueProbe(type(candidates[module, attribute]), (module, attribute))
                    vars(modules[module])[attribute] = probe
                try:
                    traced = capture(self._model, args, kwargs)
                except CaptureError:
                    continue
            assert traced.joint is not None
            if computation.equals(Computation.of(traced.joint)) and _are_equal_but_for(
                probed, changes, traced.changes
            ):
                unused |= probed
                merged = {name: change for name, change in merged.items() if name not in probed}
                merged |= {
                    change.name: change for change in traced.changes if change.name in probed
                }
        self._used |= candidates.keys() - unused
        return tuple(merged.values()), unused

    def _note_changes(self, variants: Sequence[StepVariant], contents: Mapping[Name, Any]) -> None:
        """Warn of attributes that are traced again and again."""
        if not variants:
            return
        names = differing_names(variants[-1].contents, contents)
        self._traced.update(names)
        often = {name for name in names if self._traced[name] >= _WARNED_CHANGES} - self._warned
        if often:
            self._warned |= often
            warnings.warn(
                f"{described(sorted(often))} has had {_WARNED_CHANGES} values in training steps, "
                "each of which was traced anew, in the time of many steps: pass it to the model as "
                "a tensor, or register it as a buffer",
                stacklevel=6,
            )


def _are_equal_but_for(
    names: set[Name],
    traced_changes: Sequence[AttributeChange],
    probed_changes: Sequence[AttributeChange],
) -> bool:
    """Return whether changes of other attributes are equal, and those of some can be repeated."""
    first, second = (
        {change for change in changes if change.name not in names}
        for changes in (traced_changes, probed_changes)
    )
    return first == second and all(change.repeats for change in probed_changes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _newest(variants: list[StepVariant]) -> list[StepVariant]:
    """Return the variants without the oldest that was not planned, if there are too many."""
    if len(variants) <= _MOST_VARIANTS:
        return variants
    oldest = next((variant for variant in variants[:-1] if not variant.plans), variants[0])
    return [variant for variant in variants if variant is not oldest]
