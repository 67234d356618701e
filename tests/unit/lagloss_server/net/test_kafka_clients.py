"""Tokens for kafka-python, as an endpoint of OAuth 2 gives them."""

from __future__ import annotations

import httpx2
import pytest

from lagloss_server.net import http_answers
from lagloss_server.net.kafka_clients import ClientCredentials
from tests.support.token_server import SECRET_OF, token_server


def test_a_token_is_read_unless_its_answer_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    with token_server("kafka") as url:
        given = {
            "token.endpoint.url": url,
            "scope": "kafka",
            "client.id": "ann",
            "client.secret": SECRET_OF.format("ann"),
        }
        properties = {f"sasl.oauthbearer.{name}": value for name, value in given.items()}
        assert ClientCredentials(properties).token().count(".") == 2
        with pytest.raises(httpx2.HTTPStatusError, match="401"):
            ClientCredentials({**properties, "sasl.oauthbearer.client.secret": "wrong"}).token()
        monkeypatch.setattr(http_answers, "MAX_ANSWER_BYTES", 100)
        with pytest.raises(httpx2.HTTPError, match="up to 100 bytes"):
            ClientCredentials(properties).token()
