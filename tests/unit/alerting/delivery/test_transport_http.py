"""The parts of the way out by HTTP that need no network."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from alerting.delivery.transports.http import HttpAnswer, by_status, retry_after_s
from lagloss_server.net.addresses import is_public
from lagloss_server.net.outcome import Refused, Sent, TryLater
from lagloss_server.net.sanitize import Redactor

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
        "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0",
        "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::", "2002:808:808::",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1",
        "::127.0.0.1", "not an address", "",
    ],
)  # fmt: skip
def test_an_address_that_only_some_reach_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::1111", "2a00:1450::1"]
)
def test_an_address_that_everybody_reaches_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0), ("17", 17.0), (" 17 ", 17.0), ("99999999999999999999", 3_600.0),
        ("Sat, 21 Nov 2026 08:02:00 GMT", 120.0), ("Sat, 21 Nov 2026 07:00:00 GMT", 0.0),
        ("Sat, 21 Nov 2027 07:00:00 GMT", 3_600.0), ("", None), ("soon", None), ("-5", None), ("²", None),
        ("1.5", None),
    ],
)  # fmt: skip
def test_retry_after_is_read_in_seconds_and_as_a_date_up_to_an_hour(value: str, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Sent), (204, Sent), (301, Refused), (308, Refused), (400, Refused), (401, Refused), (404, Refused),
        (408, TryLater), (410, Refused), (413, Refused), (429, TryLater), (500, TryLater), (503, TryLater),
    ],
)  # fmt: skip
def test_a_status_means_done_never_or_later(status: int, kind: type) -> None:
    assert isinstance(by_status(HttpAnswer(status, "", None)), kind)


def test_an_address_is_taken_out_of_texts_in_whatever_way_it_is_written() -> None:
    url = "https://us%20er:pass%2Fword@host.example/services/T0/abc%3Ddef?token=tök/en&b=1#frag"
    redact = Redactor(["routing-key-1"], [url])
    for secret in (url, "us er", "pass/word", "abc=def", "tök/en", "routing-key-1", "host.example"):
        written = (
            secret,
            secret.upper(),
            quote(secret),
            quote(secret, safe=""),
            json.dumps(secret),
            html.escape(secret),
        )
        for form in (*written, secret.replace("/", "\\/")):
            left = redact(f"no such thing: {form} at all").casefold()
            assert secret.casefold() not in left
            assert quote(secret, safe="").casefold() not in left
            assert left.endswith(" at all")


def test_a_text_without_secrets_is_left_alone() -> None:
    assert Redactor(["abc"], ["https://host.example/v2?a=1"])("HTTP 400: a v2 1") == "HTTP 400: a v2 1"
    assert Redactor()("anything") == "anything"
