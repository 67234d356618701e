"""One POST of a message to the webhook, and what its answer means for the message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import httpx

TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Done: the receiver answered 2xx."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Failed for good: the receiver will not take this message however often it comes."""

    error: str


@dataclass(frozen=True, slots=True)
class TryLater:
    """Not now; `after_s` where the receiver said when."""

    error: str
    after_s: float | None = None


class Webhook:
    """The receiver. Its address may hold a secret, so no error or log names it."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=False, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def post(self, message_id: int, body: dict[str, Any]) -> Sent | Refused | TryLater:
        """`webhook-id` is the same at every attempt of a message, so that a receiver can drop a repeated one."""
        headers = {
            "webhook-id": f"lagloss-{message_id}",
            "webhook-timestamp": str(int(datetime.now(UTC).timestamp())),
            "user-agent": "lagloss",
        }
        try:
            # streamed, so that the answer's body is never read: nothing in it matters, however long it is
            with self._client.stream("POST", self._url, json=body, headers=headers) as response:
                return _meaning(response)
        except httpx.InvalidURL:
            return Refused("the webhook's address is not a URL")
        except httpx.UnsupportedProtocol:
            return Refused("the webhook's address is neither http nor https")
        except httpx.TimeoutException as error:
            return TryLater(f"no answer in time ({type(error).__name__})")
        except httpx.HTTPError as error:
            return TryLater(f"{type(error).__name__}: {str(error).replace(self._url, '***')}"[:500])


def _meaning(response: httpx.Response) -> Sent | Refused | TryLater:
    status = response.status_code
    if 200 <= status < 300:
        return Sent()
    if 400 <= status < 500 and status not in (408, 429):
        return Refused(f"HTTP {status}")
    return TryLater(f"HTTP {status}", _retry_after_s(response.headers.get("retry-after")))


def _retry_after_s(header: str | None) -> float | None:
    """Seconds; the header's date form is rare and left to our own backoff."""
    return min(float(header), 3_600.0) if header is not None and header.isdigit() else None
