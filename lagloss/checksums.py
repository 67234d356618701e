"""Checksums of payloads: CRC-32C, by which lagloss finds messages whose payload changed on a link.

Computed by google-crc32c, which the extra `checksum` installs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TypedDict

_INSTALL = "checksums need google-crc32c: run `pip install 'lagloss[checksum]'`"


class Payload(TypedDict, total=False):
    """What beacons say of a payload, as the arguments of an emitter."""

    payload_crc: int
    payload_bytes: int


class Checksums:
    """Computes CRC-32C.

    Raises:
        ImportError: google-crc32c is not installed.
    """

    def __init__(self) -> None:
        try:
            self._extend = import_module("google_crc32c").extend
        except ImportError as error:
            raise ImportError(_INSTALL) from error

    def of(self, payload: str | bytes | None) -> Payload:
        """Return a payload's checksum and size; neither for none."""
        if payload is None:
            return {}
        content = payload.encode() if isinstance(payload, str) else payload
        return {"payload_crc": self._extend(0, content), "payload_bytes": len(content)}

    def extend(self, crc: int, part: bytes) -> int:
        """Return the checksum of a payload that goes on with this part; 0 is that of nothing."""
        extended: int = self._extend(crc, part)
        return extended
