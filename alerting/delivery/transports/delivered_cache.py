"""Who of several has a message already, so that trying it again for the rest does not repeat it to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

MAX_REMEMBERED: Final = 1_000


class Reached:
    """Kept in memory: after a restart everybody is sent the message again, as at-least-once allows."""

    def __init__(self) -> None:
        self._by_message: OrderedDict[str, set[str]] = OrderedDict()

    def add(self, message: str, names: Iterable[str]) -> None:
        self._by_message.setdefault(message, set()).update(names)
        self._by_message.move_to_end(message)
        while len(self._by_message) > MAX_REMEMBERED:
            self._by_message.popitem(last=False)

    def of(self, message: str) -> frozenset[str]:
        return frozenset(self._by_message.get(message, ()))

    def forget(self, message: str) -> None:
        self._by_message.pop(message, None)
