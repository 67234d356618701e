"""Faults on purpose: which events are lost, filtered, dead-lettered, doubled or held back, decided by id alone.

A fault hits an id or it does not, whichever process asks and however often, so that an event processed again after a
crash meets the same fate and the ledger needs no undo. Written as

======================================  ==============================================================================
``lose:link:A->B:SHARE``                A says that it sent the event to B, and does not
``lose:node:N:SHARE``                   N takes the event in and forgets it
``filter:N:SHARE``                      N drops the event on purpose, with a reason
``dead:N:SHARE``                        N puts the event into the dead-letter queue
``duplicate:N:SHARE``                   N sends the event twice
``delay:N:DURATION:SHARE``              N holds the event for so long before it goes on with it
======================================  ==============================================================================

where SHARE is more than 0 and at most 1, and DURATION is like ``250ms`` or ``2s``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline_under_test.topology import COL_SERVICE, NEXT

Kind = Literal["lose-link", "lose-node", "filter", "dead", "duplicate", "delay"]
INJECTED: Final = "injected"
"""The reason that injected `filtered` and `dead` events carry."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


class BadFault(ValueError):
    """A fault that cannot be understood; the message says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens at `node` (to what it sends to `to`, for a link) to which share of the ids."""

    kind: Kind
    node: str
    share: float
    text: str
    to: str | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the faults of one node do to one event."""

    swallow: bool = False
    filtered: bool = False
    dead: bool = False
    copies: int = 1
    delay_s: float = 0.0
    lost_links: frozenset[str] = frozenset()


NO_FAULT: Final = Plan()


def parse(text: str) -> Fault:
    """The fault that `text` names.

    Raises:
        BadFault: for anything that is not in the table above, and for nodes and links that the pipeline has not.
    """
    match text.split(":"):
        case ["lose", "link", link, share]:
            sender, arrow, receiver = link.partition("->")
            if not arrow or receiver not in NEXT.get(sender, ()):
                links = ", ".join(f"{node}->{to}" for node, nexts in NEXT.items() for to in nexts)
                raise BadFault(f"expected one of the links {links}, found {link!r} in {text!r}")
            return Fault("lose-link", sender, _share(share, text), text, to=receiver)
        case ["lose", "node", node, share]:
            return Fault("lose-node", _node(node, text), _share(share, text), text)
        case ["delay", node, duration, share]:
            return Fault("delay", _node(node, text), _share(share, text), text, delay_s=_seconds(duration, text))
        case ["dead", node, share]:
            if node == COL_SERVICE:
                raise BadFault(f"expected filter, since {COL_SERVICE} has no dead-letter queue, found {text!r}")
            return Fault("dead", _node(node, text), _share(share, text), text)
        case ["filter", node, share]:
            return Fault("filter", _node(node, text), _share(share, text), text)
        case ["duplicate", node, share]:
            return Fault("duplicate", _node(node, text), _share(share, text), text)
    raise BadFault(
        "expected lose:link:A->B:SHARE, lose:node:N:SHARE, filter:N:SHARE, dead:N:SHARE, duplicate:N:SHARE or "
        f"delay:N:DURATION:SHARE, found {text!r}"
    )


def _node(name: str, text: str) -> str:
    if name not in NEXT:
        raise BadFault(f"expected one of the nodes {', '.join(NEXT)}, found {name!r} in {text!r}")
    return name


def _share(share: str, text: str) -> float:
    try:
        value = float(share)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise BadFault(f"expected a share above 0 and at most 1, found {share!r} in {text!r}")
    return value


def _seconds(duration: str, text: str) -> float:
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise BadFault(f"expected a duration such as 250ms or 2s, found {duration!r} in {text!r}")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


class Faults:
    """The faults of one node. Asking is free where there are none."""

    def __init__(self, node: str, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self._faults = [(fault, f"{seed}|{fault.text}|".encode()) for fault in faults if fault.node == node]

    def plan(self, message_id: str) -> Plan:
        """What happens to this event here; each fault decides by itself, so several may meet in one event."""
        if not self._faults:
            return NO_FAULT
        return _combined([fault for fault, salt in self._faults if _hits(salt, message_id, fault.share)])


def _hits(salt: bytes, message_id: str, share: float) -> bool:
    digest = hashlib.blake2b(salt + message_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _combined(hits: Sequence[Fault]) -> Plan:
    if not hits:
        return NO_FAULT
    kinds = {fault.kind for fault in hits}
    return Plan(
        swallow="lose-node" in kinds,
        filtered="filter" in kinds,
        dead="dead" in kinds,
        copies=2 if "duplicate" in kinds else 1,
        delay_s=sum(fault.delay_s for fault in hits),
        lost_links=frozenset(fault.to for fault in hits if fault.to is not None),
    )
