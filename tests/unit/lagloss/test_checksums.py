"""Checksums of payloads: CRC-32C, however a payload comes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.checksums import Checksums

CHECK = 0xE3069283
"""Of `123456789`; source: the catalogue of CRC algorithms, CRC-32/ISCSI."""


@pytest.mark.parametrize("payload", ["123456789", b"123456789"])
def test_a_checksum_is_crc_32c_of_the_bytes(payload: str | bytes) -> None:
    assert Checksums().of(payload) == {"payload_crc": CHECK, "payload_bytes": 9}


def test_text_is_taken_as_utf_8_and_no_payload_has_no_checksum() -> None:
    assert Checksums().of("é") == Checksums().of("é".encode())
    assert Checksums().of(b"") == {"payload_crc": 0, "payload_bytes": 0}
    assert Checksums().of(None) == {}


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_payload_in_parts_has_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    checksums, crc = Checksums(), 0
    for part in parts:
        crc = checksums.extend(crc, part)
    assert crc == checksums.of(b"".join(parts))["payload_crc"]


@pytest.mark.parametrize(
    "made",
    [
        "from lagloss.kafka import KafkaNode; KafkaNode('a', 'b', 'unused', checksum=True)",
        "from lagloss.asgi import BeaconMiddleware; BeaconMiddleware(None, None, checksum=True)",
    ],
)
def test_without_their_extra_it_is_said_how_to_get_it(made: str) -> None:
    code = f"import sys; sys.modules['google_crc32c'] = None; {made}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "checksums need google-crc32c: run `pip install 'lagloss[checksum]'`" in done.stderr
