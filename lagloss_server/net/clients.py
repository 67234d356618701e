"""Where a request comes from: the peer, or the client that a trusted proxy names."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from starlette.requests import HTTPConnection

Network = IPv4Network | IPv6Network
UNKNOWN: Final = "unknown"
THIS_MACHINE: Final = frozenset({"127.0.0.1", "::1"})
"""Not all of 127/8: meshes deliver what comes from elsewhere from 127.0.0.6."""
_HANDED_ON: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers by which a proxy names the client that it asks for."""
_IPV6_PREFIX: Final = 64
"""Prefix that one customer of a provider gets: addresses within it are one guesser's."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks as a.b.c.d/n, or single addresses. Raises ValueError for anything else."""
    return tuple(ip_network(text) for text in texts)


def is_loopback(address: str) -> bool:
    """Return whether an address, or the name localhost, is this machine's own."""
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False


def peer(connection: HTTPConnection) -> str:
    """Return the address that the connection comes from."""
    return connection.client.host if connection.client else UNKNOWN


def is_local(connection: HTTPConnection) -> bool:
    """Return whether a process of this machine asks, for itself."""
    return peer(connection) in THIS_MACHINE and not any(name in connection.headers for name in _HANDED_ON)


def is_within(address: str, networks: Iterable[Network]) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks)


def client(connection: HTTPConnection, trusted: Iterable[Network]) -> str:
    """Return the client's address: the last in X-Forwarded-For that is no trusted proxy, if the peer is one. Anybody
    may have written what precedes it."""
    trusted = tuple(trusted)
    forwarded = ",".join(connection.headers.getlist("x-forwarded-for")).split(",")
    client_address = peer(connection)
    for address in reversed([address.strip() for address in forwarded if address.strip()]):
        if not is_within(client_address, trusted):
            break
        client_address = address
    return client_address


def guesser(address: str) -> str:
    """Return the address that guesses are counted by; of IPv6 the network."""
    try:
        ip = ip_address(address)
    except ValueError:
        return UNKNOWN
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(IPv6Network((ip.packed, _IPV6_PREFIX), strict=False))
    return str(ip)
