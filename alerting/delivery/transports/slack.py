"""Slack by an incoming webhook: Block Kit, within its limits, no text of others taken for a link or a mention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from alerting.delivery.rendering import RenderedMessage, TextLine, TextSection, Tone, message
from alerting.delivery.transports.base import HttpConfig
from alerting.delivery.transports.http import HttpAnswer, HttpTarget, by_status
from alerting.incidents.notification import Notification
from lagloss_server.net.outcome import Outcome, Refused, TryLater
from lagloss_server.net.sanitize import one_line
from lagloss_server.net.secret import Secret

MAX_HEADER: Final = 150
MAX_TEXT: Final = 3_000
MAX_SECTIONS: Final = 15
"""Incidents, or pipelines of a report, shown in one message: three blocks each, and Slack takes 50."""

_COLOURS: Final[dict[Tone, str]] = {
    "critical": "#d32f2f",
    "warning": "#f9a825",
    "acknowledged": "#1976d2",
    "resolved": "#388e3c",
    "test": "#757575",
}
_EMOJI: Final[dict[Tone, str]] = {
    "critical": "🔴",
    "warning": "🟠",
    "acknowledged": "🔵",
    "resolved": "🟢",
    "test": "⚪",
}
_ADVICE: Final = {
    "invalid_payload": "Slack cannot parse the message: a bug in lagloss",
    "invalid_blocks": "Slack rejects the message's blocks: a bug in lagloss",
    "no_text": "Slack found no text in the message: a bug in lagloss",
    "too_many_attachments": "Slack rejects a message with that many attachments: a bug in lagloss",
    "invalid_token": "the webhook's address is invalid or was revoked; create a new one",
    "no_service": "the webhook was removed or disabled; create a new one",
    "no_service_id": "the webhook's address is incomplete",
    "no_team": "the webhook's workspace does not exist or was deleted",
    "team_disabled": "the webhook's workspace is disabled",
    "user_not_found": "the user it posts to does not exist",
    "channel_not_found": "the channel does not exist or was deleted",
    "channel_is_archived": "the channel is archived",
    "action_prohibited": "an administrator forbids posting there",
    "posting_to_general_channel_denied": "an administrator forbids posting to the general channel",
}


class SlackConfig(HttpConfig):
    url: Secret

    def build(self) -> SlackTransport:
        return SlackTransport(HttpTarget(self.url.reveal(), allow_private=self.allow_private, ca_file=self.ca_file))


class SlackTransport:
    at_most: int = MAX_SECTIONS
    resend_s: float | None = None

    def __init__(self, target: HttpTarget) -> None:
        self._target = target
        self.timeout_s: float = target.timeout_s

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        body = json.dumps(payload(message(notifications)), ensure_ascii=False).encode("utf-8", "replace")
        return self._target.post(body, {}, meaning=_meaning)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def payload(said: RenderedMessage) -> dict[str, Any]:
    """Return the message for Slack: the title, and for each incident an attachment with its colour. Slack shows `text`
    where it shows no blocks, such as in a notification on a phone."""
    shown = said.sections[:MAX_SECTIONS]
    several = len(said.sections) > 1
    emoji = _EMOJI[_loudest(said.sections)]
    fallback = said.title if several else f"{said.title}: {said.sections[0].summary}"
    document: dict[str, Any] = {
        "text": _escaped(f"{emoji} {fallback}", MAX_TEXT),
        "blocks": [{"type": "header", "text": _plain(f"{emoji} {said.title}")}],
        "attachments": [
            {"color": _COLOURS[section.tone], "blocks": _blocks(section, with_title=several)} for section in shown
        ],
    }
    if len(shown) < len(said.sections):
        more = _literal(f"and {len(said.sections) - len(shown)} more")
        document["attachments"].append({"blocks": [{"type": "context", "elements": [more]}]})
    return document


def _loudest(sections: Sequence[TextSection]) -> Tone:
    return min((section.tone for section in sections), key=list(_EMOJI).index)  # in the order of severity


def _blocks(section: TextSection, *, with_title: bool) -> list[dict[str, Any]]:
    head = f"{_EMOJI[section.tone]} *{_escaped(section.title, 400)}*\n" if with_title else ""
    texts = [line for line in section.lines if line.kind == "text"]
    others = [line for line in section.lines if line.kind != "text"]
    blocks = [_mrkdwn([head + (_escaped(section.summary, 2_000) or "–")])]
    if texts:
        blocks.append(_mrkdwn([_mrkdwn_line(line) for line in texts]))
    if others:
        blocks.append(_mrkdwn([_mrkdwn_line(line) for line in others]))
    return blocks


def _mrkdwn(lines: Sequence[str]) -> dict[str, Any]:
    """Return a section block of as many of these lines as it can hold; none of them is cut, since that would cut
    markup."""
    pieces: list[str] = []
    for line in lines:
        if sum(map(len, pieces)) + len(pieces) + len(line) > MAX_TEXT - 2:
            pieces.append("…")
            break
        pieces.append(line)
    return {"type": "section", "text": _literal("\n".join(pieces))}


def _mrkdwn_line(line: TextLine) -> str:
    if not line.label:
        return f"• {_escaped(line.text, 1_500)}"
    if line.kind == "link":
        address = line.text.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E")
        return f"*{line.label}:* <{address.replace('&', '&amp;')}>" if len(address) < 2_500 else f"*{line.label}:* …"
    if line.kind == "command":
        return f"*{line.label}:* `{_escaped(line.text.replace('`', chr(39)), 1_500)}`"
    return f"*{line.label}:* {_escaped(line.text, 1_500)}"


def _literal(text: str) -> dict[str, Any]:
    """Return a text in which Slack makes links and mentions only of what is written as one."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": _escaped(text, MAX_HEADER), "emoji": True}


def _escaped(text: str, limit: int) -> str:
    """Return at most `limit` characters with Slack's three control characters escaped, none of them cut in two."""
    line = one_line(text, limit)
    length = 0
    pieces: list[str] = []
    for character in line:
        escaped = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)
        length += len(escaped)
        if length > limit - 1 and len(pieces) < len(line) - 1:
            return "".join(pieces) + "…"
        pieces.append(escaped)
    return "".join(pieces)


def _meaning(answer: HttpAnswer) -> Outcome:
    """Slack says why in one word. One it has not documented is shown as it came."""
    word = one_line(answer.text, 100)
    if answer.status == 429 or word == "rate_limited":
        return TryLater(f"HTTP {answer.status}: too many messages", answer.retry_after_s)
    if word in _ADVICE and answer.status < 500:
        return Refused(f"HTTP {answer.status} {word}: {_ADVICE[word]}")
    return by_status(answer)
