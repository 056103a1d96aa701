"""A store of keys and values in memory, with delays and faults as wanted."""

import random
import threading
import time
from collections.abc import Callable


class MemoryStore:
    """An `agreement.Store` in memory; several connections may share its `values`."""

    def __init__(
        self,
        values: dict[str, bytes] | None = None,
        *,
        seed: int = 0,
        delay_s: float = 0.0,
        before: Callable[[str, str], None] = lambda _action, _key: None,
    ) -> None:
        self.values = {} if values is None else values
        self._random = random.Random(seed)
        self._delay_s = delay_s
        self._before = before
        self._lock = threading.Lock()

    def _act(self, action: str, key: str) -> None:
        if self._delay_s:
            time.sleep(self._random.random() * self._delay_s)
        self._before(action, key)

    def set(self, key: str, value: str | bytes) -> None:
        self._act("set", key)
        self.values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        self._act("get", key)
        try:
            return self.values[key]
        except KeyError:
            raise RuntimeError(f"no key {key}") from None

    def check(self, keys: list[str]) -> bool:
        self._act("check", keys[0])
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        self._act("delete", key)
        return self.values.pop(key, None) is not None
