"""Addresses of a host: resolved within a deadline, and classified as public or not."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

from lagloss_server.net.deadline import Deadline

Resolver = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host (name, port), best first; raises OSError if there are none."""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are the IPv4 address of the destination."""
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")
_SITE_LOCAL: Final = ipaddress.IPv6Network("fec0::/10")


def system_resolver(host: str, port: int) -> Sequence[str]:
    """Return the addresses of the system's resolver."""
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def resolve_within(resolver: Resolver, host: str, port: int, deadline: Deadline) -> Sequence[str]:
    """Return the host's addresses.

    Raises:
        TimeoutError: the resolver, which knows no time limit, took too long. It is left running.
        OSError: there are none.
    """
    found: list[Sequence[str]] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            found.append(resolver(host, port))
        except UnicodeError:
            failed.append(OSError("invalid host name"))
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(deadline.left_s())
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError("the host's name was not resolved in time")
    if not found[0]:
        raise OSError("the host's name has no address")
    return found[0]


def is_public(address: str) -> bool:
    """Return True if this address is reachable from the whole internet.

    One that carries an IPv4 address is as public as that.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        elif found in _SIX_TO_FOUR or found in _SITE_LOCAL:  # both deprecated; the first carries IPv4
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)
