"""The diagnosis: the findings of all checks, and the stages that can run by them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.doctor import installation, machine, storage, torch
from headrace.doctor.finding import CheckFinding, Status
from headrace.doctor.needs import StageNeeds, asked_stages
from headrace.facades import public_value

_CHECKS: tuple[Callable[[], CheckFinding], ...] = (
    machine.check_python,
    installation.check_installation,
    machine.check_kernel,
    machine.check_processors,
    machine.check_network,
    machine.check_shared_memory,
    machine.check_copies,
    machine.check_namespaces,
    machine.check_open_files,
    machine.check_compiler,
    storage.check_temporary,
    storage.check_cache,
    storage.check_settings,
)
"""Of the machine: they take milliseconds, and are shown whatever is asked."""

_ALWAYS = ("python", "kernel", "installation", "settings", "temporary-files", "typer", "rich")
"""Checks that every command needs."""

_TORCH = ("torch", "torch-backends", "devices")
_NATIVE = ("native", "tls")


@public_value("headrace.doctor")
class Diagnosis:
    """The findings on this machine and installation, and the stages that can run by them.

    Attributes
    ----------
    findings : of every check that was made, by name.
    stages : those that were asked about, with the names of their checks.
    """

    findings: dict[str, CheckFinding]
    stages: tuple[StageNeeds, ...]

    @property
    def ready(self) -> bool:
        """True if every stage that was asked about can run."""
        return not any(self.missing(stage) for stage in self.stages)

    def missing(self, stage: StageNeeds) -> list[str]:
        """Return the checks without which a stage cannot run, and which found nothing."""
        return self._without((*_ALWAYS, *stage.needs), Status.MISSING)

    def limits(self, stage: StageNeeds) -> list[str]:
        """Return the checks that limit a stage that can run."""
        limited = self._without((*_ALWAYS, *stage.needs, *stage.helps), Status.LIMITED)
        return [*limited, *self._without(stage.helps, Status.MISSING)]

    def _without(self, names: Iterable[str], status: Status) -> list[str]:
        return [name for name in dict.fromkeys(names) if self.findings[name].status is status]

    def to_json(self) -> dict[str, Any]:
        """Return it as a value of JSON; docs/doctor.md describes the fields."""
        capabilities: dict[str, dict[str, Any]] = {}
        for stage in self.stages:
            missing = self.missing(stage)
            capabilities.setdefault(stage.capability, {})[stage.stage] = {
                "ready": not missing,
                "missing": missing,
                "limits": self.limits(stage),
            }
        return {
            "ready": self.ready,
            "capabilities": capabilities,
            "findings": [finding.to_json() for finding in self.findings.values()],
        }


def diagnose(capability: str | None = None, stage: str | None = None) -> Diagnosis:
    """Check this machine and installation; takes as long as importing the packages.

    Parameters
    ----------
    capability : a capability, or a verb such as ``report``; None: all of them.
    stage : one stage of the capability; None: all.

    Raises
    ------
    InputError : if a name is not known; names the nearest.
    """
    stages = asked_stages(capability, stage)
    if storage.encrypts():
        stages = [needs.with_needed("tls") for needs in stages]
    names = {name for needs in stages for name in (*_ALWAYS, *needs.needs, *needs.helps)}
    findings: dict[str, CheckFinding] = {}
    with ThreadPoolExecutor() as threads:
        slow: list[Any] = []
        if names.intersection(_TORCH):
            slow.append(threads.submit(_torch_findings))
        if names.intersection(_NATIVE):
            slow.append(threads.submit(installation.check_native, connects="tls" in names))
        quick = [threads.submit(check) for check in _CHECKS]
        findings = {finding.name: finding for finding in (done.result() for done in quick)}
        packages = sorted(names.difference(findings, _TORCH, _NATIVE))
        slow.append(threads.submit(_package_findings, packages))
        for done in slow:
            findings.update({finding.name: finding for finding in done.result()})
    return Diagnosis(findings=findings, stages=tuple(stages))


def _torch_findings() -> tuple[CheckFinding, ...]:
    checked = torch.check_torch()
    return checked.torch, checked.entry_points, checked.devices


def _package_findings(names: list[str]) -> list[CheckFinding]:
    problems = installation.import_problems(names)
    return [installation.check_package(name, problems) for name in names]
