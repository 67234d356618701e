"""Reads that several readers share: one of each version, however many ask for it at once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

_V = TypeVar("_V")


class SharedReads(Generic[_V]):
    """The values read last, each with the stamp of its version; a request for one that is being read waits for it.

    `limit`: how much is kept, by the `weight` of values; the newest is kept in any case.
    """

    def __init__(self, limit: int, weight: Callable[[_V], int] = lambda _: 1) -> None:
        self._limit, self._weight = limit, weight
        self._kept: OrderedDict[Hashable, tuple[Hashable, _V]] = OrderedDict()
        self._reading: dict[tuple[Hashable, Hashable], Future[_V]] = {}
        self._lock = threading.Lock()

    def read(self, key: Hashable, stamp: Hashable, work: Callable[[], _V], *, anew: bool = False) -> _V:
        """Return what `work` reads, or has read for this stamp before; with `anew`, only what is being read now.

        Raises what `work` raises, for every request that waits.
        """
        with self._lock:
            entry = self._kept.get(key)
            if entry is not None and entry[0] == stamp and not anew:
                self._kept.move_to_end(key)
                return entry[1]
            is_first = (key, stamp) not in self._reading
            reading = self._reading.setdefault((key, stamp), Future())
        if is_first:
            self._read(reading, key, stamp, work)
        return reading.result()

    def _read(self, reading: Future[_V], key: Hashable, stamp: Hashable, work: Callable[[], _V]) -> None:
        try:
            result = work()
        except BaseException as error:
            with self._lock:
                del self._reading[key, stamp]
            reading.set_exception(error)
            return
        with self._lock:
            del self._reading[key, stamp]
            self._kept[key] = stamp, result
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(self._weight(value) for _, value in self._kept.values()) > self._limit:
                self._kept.popitem(last=False)
        reading.set_result(result)
