"""A webhook as Standard Webhooks describes them: a notification's or report's body, signed, under an id of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from standardwebhooks import Webhook

from alerting.delivery.transports.base import HttpConfig
from alerting.delivery.transports.http import HttpTarget
from alerting.incidents.notification import Notification
from lagloss_server.base.errors import UnusableReceiver
from lagloss_server.net.outcome import Outcome
from lagloss_server.net.secret import Secret


class WebhookConfig(HttpConfig):
    """`secret` signs: base64, with or without `whsec_` before it. Without one nothing is signed."""

    url: Secret
    secret: Secret | None = None

    def build(self) -> WebhookTransport:
        url = self.url.reveal()
        secret = self.secret.reveal() if self.secret else None
        signer = _signer(secret) if secret else None
        target = HttpTarget(
            url, allow_private=self.allow_private, ca_file=self.ca_file, secrets=[secret] if secret else []
        )
        return WebhookTransport(target, signer)


def _signer(secret: str) -> Webhook:
    key = secret.removeprefix("whsec_").rstrip("=")
    # the library drops what is not base64, and would sign with what is left
    if not re.fullmatch(r"[A-Za-z0-9+/]{2,}", key) or len(key) % 4 == 1:
        raise UnusableReceiver(problem="expected the webhook's secret in base64, with or without whsec_ before it")
    return Webhook(key)


class WebhookTransport:
    """`webhook-id` is the same at every attempt of a notification, so that a receiver can drop a repeated one; so is
    `idempotency-key`, by which gateways do. A report brings its own: it is of the time when it was due."""

    at_most: int = 1
    resend_s: float | None = None

    def __init__(self, target: HttpTarget, signer: Webhook | None) -> None:
        self._target = target
        self._signer = signer
        self.timeout_s: float = target.timeout_s

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        (notification,) = notifications
        body = json.dumps(notification.body, separators=(",", ":"))
        name = str(notification.body.get("idempotency_key") or f"lagloss-{notification.key}")
        now = notification.claimed_at
        headers = {"webhook-id": name, "webhook-timestamp": str(int(now.timestamp())), "idempotency-key": name}
        if self._signer is not None:
            headers["webhook-signature"] = self._signer.sign(name, now, body)
        return self._target.post(body.encode(), headers)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""
