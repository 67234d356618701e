"""The program's own files, as a browser gets them: small, kept, and no more than it needs."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, expect
from plotly.offline import get_plotlyjs_version

import dashboard
from tests.support.dashboards import Watched, serving_clicks

ASSETS = Path(dashboard.__file__).parent / "assets"
CSS = "/assets/lagloss.css"


@pytest.fixture(scope="module")
def url(module_database_url: str) -> Iterator[str]:
    with serving_clicks(module_database_url) as url:
        yield url


def test_a_file_comes_compressed_and_the_same_each_time(url: str) -> None:
    path = "/assets/vendor/plotly-basic.min.js"
    with httpx2.Client(base_url=url) as client:
        first, again = client.get(path), client.get(path)
        with client.stream("GET", path) as raw:
            packed = b"".join(raw.iter_raw())
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert first.content == again.content == plain.content == (ASSETS / "vendor/plotly-basic.min.js").read_bytes()
    assert first.headers["content-encoding"] == again.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert gzip.decompress(packed) == plain.content
    assert len(packed) < len(plain.content) / 2


def test_a_client_that_leaves_in_the_middle_spoils_no_file(url: str) -> None:
    server = urlsplit(url)
    path = "/assets/vendor/plotly-basic.min.js?left-early"
    asking = f"GET {path} HTTP/1.1\r\nHost: {server.netloc}\r\nAccept-Encoding: gzip\r\n\r\n".encode()
    for _ in range(5):
        with socket.create_connection((server.hostname, server.port), timeout=10) as client:
            client.sendall(asking)
            assert client.recv(1)
    assert httpx2.get(url + path).content == (ASSETS / "vendor/plotly-basic.min.js").read_bytes()


def test_what_a_browser_has_it_is_not_sent_again(url: str) -> None:
    with httpx2.Client(base_url=url) as client:
        first = client.get(CSS)
        again = client.get(CSS, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(CSS).status_code == 200


def test_a_file_that_is_none_is_asked_for_each_time(url: str) -> None:
    assert [httpx2.get(f"{url}/assets/none.js").status_code for _ in range(2)] == [404, 404]


def test_charts_are_drawn_without_the_large_bundle_and_the_polyfill(url: str, browser: Browser) -> None:
    asked: list[str] = []
    with Watched(browser) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/pipelines/clicks?range=1h&zone=UTC")
        expect(page.locator("#pipeline-panels .main-svg").first).to_be_attached()
        assert page.evaluate("Plotly.version") == get_plotlyjs_version()  # what figures are made for here
    assert any("vendor/plotly-basic.min.js" in each for each in asked)
    assert not [each for each in asked if "plotly.min.js" in each or "polyfill" in each]
