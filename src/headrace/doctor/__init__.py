"""``headrace doctor``: which stages of the capabilities can run here, and what would mend the rest.

It changes nothing, needs no root, and imports the standard library alone, so that it works where a
package, torch or the native module is missing or broken: those are imported in processes of their
own, which may fail, crash or hang.
"""

from headrace.doctor.diagnosis import Diagnosis, diagnose
from headrace.doctor.finding import CheckFinding, Status
from headrace.doctor.needs import StageNeeds

__all__ = [
    "Diagnosis",
    "CheckFinding",
    "StageNeeds",
    "Status",
    "diagnose",
]
