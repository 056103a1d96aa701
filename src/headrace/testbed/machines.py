"""Machines that a testbed emulates, and the racks that hold them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One emulated machine.

    Attributes
    ----------
    rack : index of its rack.
    address : used by jobs; its IPv4 address unless the testbed has IPv6 only.
    second_address : its IPv6 address, where the testbed has both families.
    """

    name: str
    rack: int
    address: str
    bytes_per_s: int
    second_address: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of its addresses."""
        return (self.address, *([self.second_address] if self.second_address else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """Hosts behind one uplink; `bytes_per_s` is the uplink's rate, the same both ways."""

    name: str
    bytes_per_s: int
