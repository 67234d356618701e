"""HTTP client of all transports: checked and pinned addresses, one time limit, no secrets in errors."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import httpcore2
import httpx2

from alerting.delivery.transports.dns_pinning import PinnedNetwork
from lagloss_server.base.errors import UnusableReceiver
from lagloss_server.net.addresses import Resolver, is_public, resolve_within, system_resolver
from lagloss_server.net.deadline import Deadline
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.net.sanitize import Redactor, one_line
from lagloss_server.net.tls import add_ca_file

TIMEOUT_S: Final = 10.0
"""For one sending in all: finding the address, connecting, asking and being answered."""
MAX_BODY_BYTES: Final = 512 * 1024
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_RETRY_AFTER_S: Final = 3_600.0
MAX_ERROR_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Answer of a receiver. `text` is read of refusals only, 64 KiB of it at most, and holds no secret."""

    status: int
    text: str
    retry_after_s: float | None


Meaning = Callable[[HttpAnswer], Outcome]


def by_status(answer: HttpAnswer) -> Outcome:
    """Map an answer's status to an outcome, where the receiver documents nothing else."""
    said = one_line(answer.text, 300)
    error = f"HTTP {answer.status}: {said}" if said else f"HTTP {answer.status}"
    if 200 <= answer.status < 300:
        return Sent()
    if 300 <= answer.status < 400:
        return Refused(f"HTTP {answer.status}: redirects are not followed")
    if answer.status in (408, 429) or answer.status >= 500:
        return TryLater(error, answer.retry_after_s)
    return Refused(error)


class HttpTarget:
    """One address to post to. Each request has a connection of its own, so none runs into one that
    the server has closed.

    `secrets` are taken out of all errors, as all parts of the address are; `resolver` is for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        allow_private: bool = False,
        ca_file: Path | None = None,
        secrets: Iterable[str] = (),
        resolver: Resolver = system_resolver,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._url = _checked(url)
        self._allow_private = allow_private
        self._resolver = resolver
        self.timeout_s = timeout_s
        self._redact = Redactor(secrets, [url])
        self._tls = add_ca_file(httpx2.create_ssl_context(), ca_file) if self._url.scheme == "https" else None

    def post(
        self, body: bytes, headers: Mapping[str, str], *, meaning: Meaning = by_status, deadline: Deadline | None = None
    ) -> Outcome:
        """Post and return the outcome. Raise nothing that a network or a receiver can cause."""
        if len(body) > MAX_BODY_BYTES:
            return Refused(f"the message has {len(body)} bytes; the limit is {MAX_BODY_BYTES}")
        deadline = deadline or Deadline(self.timeout_s)
        try:
            addresses = self._addresses(deadline)
            if not addresses:
                return Refused("its host has no public address; `allowPrivate: true` permits private ones")
            outcome = meaning(self._asked(addresses, body, headers, deadline))
        except (TimeoutError, httpcore2.TimeoutException) as error:
            outcome = TryLater(f"no response in time ({type(error).__name__})")
        except httpcore2.LocalProtocolError as error:
            outcome = Refused(f"the request is not valid: {error}")
        except (OSError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            outcome = TryLater(f"{type(error).__name__}: {error}")
        if isinstance(outcome, Sent):
            return outcome
        return replace(outcome, error=one_line(self._redact(outcome.error), MAX_ERROR_CHARACTERS))

    def _addresses(self, deadline: Deadline) -> Sequence[str]:
        addresses = resolve_within(self._resolver, self._url.raw_host.decode(), _port(self._url), deadline)
        return [address for address in addresses if self._allow_private or is_public(address)]

    def _asked(
        self, addresses: Sequence[str], body: bytes, headers: Mapping[str, str], deadline: Deadline
    ) -> HttpAnswer:
        origin = httpcore2.Origin(self._url.raw_scheme, self._url.raw_host, _port(self._url))
        target = httpcore2.URL(
            scheme=origin.scheme, host=origin.host, port=origin.port, target=self._url.raw_path or b"/"
        )
        with (
            httpcore2.HTTPConnection(
                origin, ssl_context=self._tls, network_backend=PinnedNetwork(addresses, deadline)
            ) as connection,
            connection.stream(
                "POST", target, headers=[*self._headers().items(), *headers.items()], content=body
            ) as response,
        ):
            text = "" if 200 <= response.status < 300 else self._text(response)
            return HttpAnswer(response.status, text, _retry_after_s(response))

    def _headers(self) -> dict[str, str]:
        """Return the headers; they ask for an uncompressed answer, since only its beginning is read."""
        headers = {
            "host": self._url.netloc.decode(),
            "user-agent": "lagloss",
            "content-type": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
        }
        if self._url.userinfo:
            pair = unquote(self._url.userinfo.decode())
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return headers

    def _text(self, response: httpcore2.Response) -> str:
        """Return the answer's beginning; a part of it, before a broken connection or the time limit, is enough."""
        read = b""
        try:
            for chunk in response.iter_stream():
                read += chunk
                if len(read) > MAX_ANSWER_BYTES:
                    break
        except (TimeoutError, OSError, httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError):
            pass
        text = self._redact(read[:MAX_ANSWER_BYTES].decode("utf-8", "replace"))
        # where it was cut there may be half a secret
        return text[: -self._redact.longest] if len(read) > MAX_ANSWER_BYTES and self._redact.longest else text


def _checked(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError, TypeError):
        raise UnusableReceiver(problem="expected an address such as https://host/path, found no URL") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UnusableReceiver(problem="expected an address that starts with https://host or http://host")
    return parsed.copy_with(fragment=None)


def _port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _retry_after_s(response: httpcore2.Response) -> float | None:
    headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
    return retry_after_s(headers.get(b"retry-after", ""), _moment(headers.get(b"date", "")) or datetime.now(UTC))


def retry_after_s(value: str, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3), an hour at most; None without one. `now`: by the
    clock of its sender, where that is known."""
    value = value.strip()
    if re.fullmatch(r"[0-9]+", value):
        return min(float(value[:10]), MAX_RETRY_AFTER_S)
    moment = _moment(value)
    return None if moment is None else min(max((moment - now).total_seconds(), 0.0), MAX_RETRY_AFTER_S)


def _moment(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
