"""Which requests are answered, by the page and the name that they come by."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from lagloss_server.net.origins import Origins, is_navigation, origin_of
from lagloss_server.net.problem_details import Problem

OPEN = Origins("", loopback_only=True)
HTTPS = Origins("https://lagloss.example", loopback_only=False)


def asked(
    method: str = "GET", *, kind: str = "http", host: str | None = "127.0.0.1:8050", **headers: str
) -> HTTPConnection:
    named = {name.replace("_", "-"): value for name, value in headers.items()} | ({"host": host} if host else {})
    return HTTPConnection(
        {
            "type": kind,
            "method": method,
            "scheme": "http" if kind == "http" else "ws",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
    )


def refused(origins: Origins, connection: HTTPConnection) -> int | None:
    try:
        origins.check(connection)
    except Problem as problem:
        return problem.status
    return None


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Lagloss.example:443/x?y", "https://lagloss.example"),
        ("http://127.0.0.1:8050", "http://127.0.0.1:8050"),
        ("http://[::1]:8050/", "http://[::1]:8050"),
        ("http://a:99999", ""),
        ("javascript://a", ""),
        ("lagloss.example", ""),
        ("", ""),
    ],
)
def test_an_origin_is_written_as_browsers_write_it(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost", "LOCALHOST:1", "[::1]:8050", "127.9.9.9"])
def test_without_a_login_names_of_this_machine_are_answered(host: str) -> None:
    assert refused(OPEN, asked(host=host)) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil"]
)
def test_without_a_login_a_name_that_was_bent_to_this_machine_is_not_answered(host: str) -> None:
    assert refused(OPEN, asked(host=host)) == 421


@pytest.mark.parametrize("host", [None, "", ":8050", "127.0.0.1:x"])
def test_a_host_that_is_none_is_refused(host: str | None) -> None:
    assert refused(OPEN, asked(host=host)) == 400


def test_without_a_login_the_configured_name_is_answered() -> None:
    origins = Origins("http://dashboard:8050", loopback_only=True)
    assert refused(origins, asked(host="dashboard:8050")) is None
    assert refused(origins, asked(host="other:8050")) == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"])
def test_something_is_done_for_a_page_of_ours_only(method: str) -> None:
    assert refused(OPEN, asked(method, origin="http://127.0.0.1:8050")) is None
    for other in ("http://evil.example", "http://127.0.0.1:8051", "https://127.0.0.1:8050", "null", ""):
        assert refused(OPEN, asked(method, origin=other)) == 403, other


def test_fetch_metadata_stand_in_for_a_missing_origin() -> None:
    assert refused(OPEN, asked("POST", sec_fetch_site="same-origin", cookie="lagloss=x")) is None
    for site in ("none", "same-site", "cross-site"):
        assert refused(OPEN, asked("POST", sec_fetch_site=site)) == 403, site


def test_a_script_without_anything_of_a_browser_may_act_but_not_with_a_cookie() -> None:
    assert refused(OPEN, asked("POST")) is None
    assert refused(OPEN, asked("POST", cookie="lagloss=x")) == 403


def test_where_https_is_configured_a_page_by_http_is_another_site() -> None:
    assert refused(HTTPS, asked("POST", host="lagloss.example", origin="https://lagloss.example")) is None
    assert refused(HTTPS, asked("POST", host="lagloss.example", origin="http://lagloss.example")) == 403


def test_a_proxy_that_hands_on_another_host_is_no_hindrance() -> None:
    assert refused(HTTPS, asked("POST", host="10.0.0.7:8050", origin="https://lagloss.example")) is None


def test_a_websocket_is_opened_for_a_page_of_ours_only() -> None:
    assert refused(OPEN, asked(kind="websocket", origin="http://127.0.0.1:8050")) is None
    assert refused(OPEN, asked(kind="websocket", origin="http://evil.example")) == 403


def test_another_sites_page_may_lead_here_but_not_fetch() -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert refused(OPEN, asked(**link, sec_fetch_dest="document")) is None
    for dest in ("iframe", "object", "embed"):
        assert refused(OPEN, asked(**link, sec_fetch_dest=dest)) == 403
    for mode in ("no-cors", "cors", "websocket"):
        assert refused(OPEN, asked(sec_fetch_site="cross-site", sec_fetch_mode=mode, sec_fetch_dest="image")) == 403
    assert refused(OPEN, asked("POST", **link, sec_fetch_dest="document", origin="http://127.0.0.1:8050")) == 403


def test_two_headers_where_one_belongs_are_refused() -> None:
    twice = asked("POST", origin="http://127.0.0.1:8050")
    twice.scope["headers"].append((b"origin", b"http://evil.example"))
    assert refused(OPEN, HTTPConnection(dict(twice.scope))) == 403
    twice = asked()
    twice.scope["headers"].append((b"host", b"127.0.0.1"))
    assert refused(OPEN, HTTPConnection(dict(twice.scope))) == 400


def test_old_browsers_are_known_to_navigate_by_what_they_accept() -> None:
    assert is_navigation(asked(accept="text/html,*/*"))
    assert not is_navigation(asked(accept="application/json"))
    assert not is_navigation(asked("POST", accept="text/html"))
    assert not is_navigation(asked(accept="text/html", sec_fetch_mode="cors"))
