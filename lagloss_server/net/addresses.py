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
    infos = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in infos))


def resolve_within(resolver: Resolver, host: str, port: int, deadline: Deadline) -> Sequence[str]:
    """Return the host's addresses.

    Raises:
        TimeoutError: the resolver, which knows no time limit, took too long. It is left running.
        OSError: there are none.
    """
    results: list[Sequence[str]] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            results.append(resolver(host, port))
        except UnicodeError:
            failed.append(OSError("invalid host name"))
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(deadline.left_s())
    if failed:
        raise failed[0]
    if not results:
        raise TimeoutError("resolving the host name timed out")
    if not results[0]:
        raise OSError("the host name has no address")
    return results[0]


def is_public(address: str) -> bool:
    """Return True if this address is reachable from the whole internet.

    One that carries an IPv4 address is as public as that.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        elif ip in _SIX_TO_FOUR or ip in _SITE_LOCAL:  # both deprecated; the first carries IPv4
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)
