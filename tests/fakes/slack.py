"""Slack's incoming webhooks as its documentation describes them: Block Kit's limits, and errors said in one word.

Sources: docs.slack.dev, "Sending messages using incoming webhooks", "Changes to errors for incoming webhooks" and the
reference of the blocks used; chat.postMessage for the limit on attachments.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.fakes.http_receiver import HttpReceiver, Reply, Request

_LIMITS = {"plain_text": 3_000, "mrkdwn": 3_000}
_ENTITY_OR_LINK = re.compile(r"&(amp|lt|gt);|<https?://[^<>|]+(\|[^<>]*)?>")


class FakeSlack(HttpReceiver):
    """`messages`: what was posted to the channel. `gone`: status and word to answer with instead."""

    def __init__(self, path: str = "/services/T0000/B0000/XXXXXXXXXXXXXXXXXXXXXXXX") -> None:
        super().__init__()
        self.path = path
        self.url += path
        self.messages: list[dict[str, Any]] = []
        self.gone: tuple[int, str] | None = None

    def answer(self, request: Request) -> Reply:
        if request.path != self.path:
            return Reply(404, b"no_service")
        if self.gone is not None:
            return Reply(self.gone[0], self.gone[1].encode())
        try:
            payload = json.loads(request.body.decode("utf-8"))
        except ValueError:
            return Reply(400, b"invalid_payload")
        error = error_of(payload)
        if error is not None:
            return Reply(400, error.encode())
        self.messages.append(payload)
        return Reply(200, b"ok")


def error_of(payload: Any) -> str | None:
    """The word that Slack answers with; None where it takes the message."""
    if not isinstance(payload, dict):
        return "invalid_payload"
    attachments = payload.get("attachments", [])
    if not payload.get("text") and not payload.get("blocks") and not attachments:
        return "no_text"
    if len(attachments) > 100:
        return "too_many_attachments"
    blocks = [*payload.get("blocks", []), *(block for part in attachments for block in part.get("blocks", []))]
    if len(payload.get("text", "")) > 40_000 or len(blocks) > 50 or not all(_is_block(block) for block in blocks):
        return "invalid_blocks"
    if any(not re.fullmatch(r"#[0-9a-f]{6}", part.get("color", "#000000")) for part in attachments):
        return "invalid_payload"
    return None


def _is_block(block: Any) -> bool:
    match block:
        case {"type": "header", "text": {"type": "plain_text", "text": str(text)}}:
            return 0 < len(text) <= 150
        case {"type": "section", "text": {"type": "plain_text" | "mrkdwn" as kind, "text": str(text)} as object_}:
            return 0 < len(text) <= _LIMITS[kind] and not (kind == "plain_text" and "verbatim" in object_)
        case {"type": "context", "elements": [*elements]}:
            return 0 < len(elements) <= 10
        case {"type": "divider"}:
            return True
    return False


def stray_controls(text: str) -> str:
    """Of a text, the characters `& < >` that Slack would take for markup other than entities and links."""
    return "".join(re.findall(r"[&<>]", _ENTITY_OR_LINK.sub("", text)))


def texts(payload: dict[str, Any]) -> list[str]:
    """All texts of a message."""
    blocks = [*payload["blocks"], *(block for part in payload["attachments"] for block in part["blocks"])]
    return [payload["text"], *(block["text"]["text"] for block in blocks if "text" in block)]


def is_literal(payload: Any) -> bool:
    """Whether every text with markup is `verbatim`: in others Slack makes links of addresses and `#channel`, and calls
    whom `@here` means."""
    if isinstance(payload, dict):
        return (payload.get("type") != "mrkdwn" or payload.get("verbatim") is True) and is_literal([*payload.values()])
    return all(map(is_literal, payload)) if isinstance(payload, list) else True
