"""Cache of the values used last, of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

_V = TypeVar("_V")


class Remembered(Generic[_V]):
    """The `limit` values that were asked for last, by keys that name their version: of any number of threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Hashable, _V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> _V | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: _V) -> _V:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._values)
