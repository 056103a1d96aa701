"""Damaged environments that ``headrace doctor`` diagnoses rightly."""

import tempfile
import time
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.instruments.damaged import DAMAGES, HEALTHY, diagnose, mistakes


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {"doctor-right": f">={len(DAMAGES)}"}


def measure(report: Report, *, quick: bool) -> None:
    """Diagnose every damage, and count the diagnoses without a mistake."""
    del quick  # all of it is quick
    right = 0
    with tempfile.TemporaryDirectory() as folder:
        code, diagnosis, errors = diagnose(HEALTHY, Path(folder, "healthy"))
        if code != 0:
            report.note(f"the doctor finds this machine unfit without a damage: {errors}")
        findings = diagnosis.get("findings", ())
        unfit = {finding["name"] for finding in findings if finding["status"] != "ok"}
        for number, damage in enumerate(DAMAGES):
            began = time.perf_counter()
            code, diagnosis, _ = diagnose(damage, Path(folder, str(number)))
            problems = mistakes(damage, code, diagnosis, {*unfit, "namespaces"})
            right += not problems
            report.row(
                "damages",
                damage=damage.name,
                asked=" ".join(damage.asked),
                exit_code=code,
                seconds=round(time.perf_counter() - began, 1),
                mistakes="; ".join(problems) or "none",
            )
    report.bar("doctor-right", right)
