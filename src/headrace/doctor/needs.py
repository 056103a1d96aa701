"""The stages that the doctor can be asked about, as capabilities and shared verbs register them.

A capability's ``cli`` package has, beside its ``COMMANDS``::

    NEEDS = {"measure": ("native", "torch"), "plan": ("numpy",)}
    HELPS = {"measure": ("compiler",)}

by stage: the checks without which it cannot run, and those without which it does less. A name is
that of a check, or of a distribution that the stage imports. `headrace.cli` registers its verbs in
the same way. The tables are read without an import of the capability, which may not be possible.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace

from headrace.errors import InputError
from headrace.facades import public_value
from headrace.kinds import registered_commands


@public_value("headrace.doctor")
class StageNeeds:
    """A stage of a capability, and its checks.

    Attributes
    ----------
    capability, stage : of ``headrace CAPABILITY STAGE``; the stage of a shared verb is ``run``.
    needs : names of checks without which it cannot run.
    helps : names of checks without which it does less.
    """

    capability: str
    stage: str
    needs: tuple[str, ...]
    helps: tuple[str, ...]

    def with_needed(self, check: str) -> "StageNeeds":
        """Return the stage as one that cannot run without a check, if the check helps it."""
        return replace(self, needs=(*self.needs, check)) if check in self.helps else self


def registered_stages() -> list[StageNeeds]:
    """Return the stages of every capability, then the shared verbs."""
    stages: list[StageNeeds] = []
    for capability, registered in registered_commands():
        needs: Mapping[str, tuple[str, ...]] = registered.get("NEEDS", {})
        helps: Mapping[str, tuple[str, ...]] = registered.get("HELPS", {})
        for stage in needs:
            verb = (stage, "run") if capability == "cli" else (capability, stage)
            stages.append(
                StageNeeds(
                    capability=verb[0],
                    stage=verb[1],
                    needs=needs[stage],
                    helps=helps.get(stage, ()),
                )
            )
    return stages


def asked_stages(capability: str | None, stage: str | None) -> list[StageNeeds]:
    """Return the stages of a capability or verb, or one of them; None: all.

    Raises
    ------
    InputError : if there is none of that name; names the nearest, and all.
    """
    stages = registered_stages()
    if capability is None:
        return stages
    names = dict.fromkeys(needs.capability for needs in stages)
    _check_name("CAPABILITY", capability, [*names])
    stages = [needs for needs in stages if needs.capability == capability]
    if stage is None:
        return stages
    _check_name(f"STAGE of {capability}", stage, [needs.stage for needs in stages])
    return [needs for needs in stages if needs.stage == stage]


def _check_name(argument: str, name: str, names: list[str]) -> None:
    if name in names:
        return
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {nearest[0]}?" if nearest else ""
    raise InputError(f"{argument} is '{name}', needs one of {', '.join(names)}{hint}")
