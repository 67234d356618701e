"""How faults are written, on the command line and in scenarios.

Faults of single events: SHARE of the ids meet them, the same ones whichever process asks.

=========================================  ===========================================================================
``lose:link:A->B:SHARE``                   A says that it sent the event to B, and does not
``lose:node:N:SHARE``                      N takes the event in and forgets it
``corrupt:A->B:SHARE``                     the event's body is changed between A and B
``filter:N:SHARE``                         N drops the event on purpose, with a reason
``dead:N:SHARE``                           N puts the event into the dead-letter queue
``duplicate:N:SHARE``                      N sends the event twice
``delay:N:DURATION:SHARE``                 N holds the event for this long before it continues
``wait:N:DURATION:SHARE``                  N's thread waits for so long, as for a lock or an answer; others queue up
``burn:N:DURATION:SHARE``                  N's thread computes for so long
``poison:SHARE``                           col-service sends on bytes that no reader can decode
``refuse:VENDOR:SHARE``                    the vendor answers 400 to each request that holds the event, however often
=========================================  ===========================================================================

Faults of processes and servers, for as long as they are on:

=========================================  ===========================================================================
``crash:N`` or ``crash:N:DURATION``        N's processes are killed (-9), once or again each DURATION
``stall:N``                                N's processes are stopped (SIGSTOP) and go on at the end; if that comes after
                                           more than 15 s, the health check has replaced them, and that was its end
``stop:N``                                 N has no processes
``restart:N``                              N's processes are replaced one after the other (`all`: those of every node)
``skew:N:+DURATION`` (or ``-``)            N's clock is so far ahead (behind); its processes are started anew for it
``broker:kill:NUMBER``                     that broker is killed (-9) and started again at the end
``broker:restart``                         all brokers are ended and started again, one after the other
``receiver:VENDOR:ANSWER:SHARE``           the vendor answers so: a status (`503`, `400`, `429=5s` with Retry-After),
                                           `slow=2s`, `timeout`, `reset`, or `partial` (takes half of the batch)
``burst:FACTOR``                           the load is this many times as high
=========================================  ===========================================================================

where SHARE is more than 0 and at most 1, and DURATION is like ``250ms``, ``2s`` or ``5m``. Faults of processes hit the
shadow, too, where the pipeline runs one: as the node ``event-norm-shadow``. Those of the node ``warehouse`` need a
pipeline with a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lagloss_server.model.place import ends_of, link_name
from pipeline_under_test.harness.faults import BadFault, Fault, factor_of, naming_the_text, seconds_of, share_of
from pipeline_under_test.stream.topology import ALL_NEXT, COL_SERVICE, NODES, SHADOW, VENDORS, WAREHOUSE

GROUPS: Final = (*NODES, WAREHOUSE, SHADOW)
"""Whose processes a fault can hit."""
ALL: Final = "all"
"""Instead of a node, in `restart:all`."""
_STATUS: Final = re.compile(r"[2345]\d\d")


@naming_the_text
def parse(text: str) -> Fault:
    """Return the fault that `text` names.

    Raises:
        BadFault: for anything that is not in the tables above, and for nodes and links that the pipeline has not.
    """
    match text.split(":"):
        case ["lose", "link", link, share]:
            sender, receiver = _link(link)
            return Fault("lose-link", text, sender, share_of(share), receiver)
        case ["corrupt", link, share]:
            sender, receiver = _link(link)
            return Fault("corrupt", text, sender, share_of(share), receiver)
        case ["lose", "node", node, share]:
            return Fault("lose-node", text, _node(node), share_of(share))
        case ["dead", node, share]:
            if node == COL_SERVICE:
                raise BadFault(f"{COL_SERVICE} has no dead-letter queue: expected filter, found dead")
            return Fault("dead", text, _node(node), share_of(share))
        case ["filter" | "duplicate" as kind, node, share]:
            return Fault(kind, text, _node(node), share_of(share))
        case ["delay" | "wait" | "burn" as kind, node, duration, share]:
            return Fault(kind, text, _node(node), share_of(share), seconds=seconds_of(duration))
        case ["poison", share]:
            return Fault("poison", text, COL_SERVICE, share_of(share))
        case ["refuse", vendor, share]:
            return Fault("refuse", text, _vendor(vendor), share_of(share))
        case ["crash", node]:
            return Fault("crash", text, _node(node, GROUPS))
        case ["crash", node, duration]:
            return Fault("crash", text, _node(node, GROUPS), seconds=seconds_of(duration))
        case ["stall" | "stop" as kind, node]:
            return Fault(kind, text, _node(node, GROUPS))
        case ["restart", node]:
            return Fault("restart", text, _node(node, (*GROUPS, ALL)))
        case ["skew", node, duration] if duration[:1] in ("+", "-"):
            sign = -1 if duration[0] == "-" else 1
            return Fault("skew", text, _node(node, GROUPS), seconds=sign * seconds_of(duration[1:]))
        case ["broker", "kill", number] if number.isdecimal():
            return Fault("broker-kill", text, number=float(number))
        case ["broker", "restart"]:
            return Fault("broker-restart", text)
        case ["receiver", vendor, answer, share]:
            return _receiver(text, vendor, answer, share)
        case ["burst", factor]:
            return Fault("burst", text, number=factor_of(factor))
    raise BadFault(
        "expected lose:link:A->B:SHARE, lose:node:N:SHARE, corrupt:A->B:SHARE, filter:N:SHARE, dead:N:SHARE, "
        "duplicate:N:SHARE, delay|wait|burn:N:DURATION:SHARE, poison:SHARE, refuse:VENDOR:SHARE, crash:N, stall:N, "
        "stop:N, restart:N, skew:N:+DURATION, broker:kill:NUMBER, broker:restart, receiver:VENDOR:ANSWER:SHARE or "
        "burst:FACTOR, found none"
    )


def _receiver(text: str, vendor: str, answer: str, share: str) -> Fault:
    name, equals, duration = answer.partition("=")
    timed = name in ("slow", "429")
    if not (timed if equals else name in ("timeout", "reset", "partial") or _STATUS.fullmatch(name)):
        raise BadFault(f"expected a status, 429=5s, slow=2s, timeout, reset or partial, found {answer!r}")
    seconds = seconds_of(duration) if equals else 0.0
    return Fault("receiver", text, _vendor(vendor), share_of(share), seconds=seconds, answer=name)


def _vendor(name: str) -> str:
    if name not in VENDORS:
        raise BadFault(f"expected one of the vendors {', '.join(VENDORS)}, found {name!r}")
    return name


def _link(text: str) -> tuple[str, str]:
    sender, receiver = ends_of(text)
    if receiver not in ALL_NEXT.get(sender, ()):
        links = ", ".join(link_name(node, to) for node, nexts in ALL_NEXT.items() for to in nexts)
        raise BadFault(f"expected one of the links {links}, found {text!r}")
    return sender, receiver


def _node(name: str, all_names: Iterable[str] = tuple(ALL_NEXT)) -> str:
    if name not in (all_names := tuple(all_names)):
        raise BadFault(f"expected one of the nodes {', '.join(all_names)}, found {name!r}")
    return name
