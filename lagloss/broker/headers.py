"""Headers of the records that a confluent-kafka consumer returns."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import Message

# confluent-kafka both returns a list with holes and sets an exception where a header's name is no UTF-8. A warm loop of
# Python 3.11 and later does not look for both, and the exception comes up anywhere later; methodcaller always looks.
_ask: Final = methodcaller("headers")


def headers_of(message: Message) -> list[tuple[str, Any]] | None:
    """Return a message's headers in their order, each value bytes or None.

    None means that a name is no UTF-8, as clients in other languages than Java may send it. The message then has no
    headers any more: asked again, the client would return its list with holes, and reading it ends the process.
    """
    try:
        return _ask(message) or []
    except (SystemError, UnicodeDecodeError):
        message.set_headers([])
        return None
