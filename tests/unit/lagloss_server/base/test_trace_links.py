"""Where traces are shown: what is a template, and the addresses it makes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lagloss.wire.traces import TraceContext
from lagloss_server.base.settings import Settings
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks, checked_template

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
START_S = 1_795_250_400
TEMPO = (
    "https://grafana.example/explore?schemaVersion=1&orgId=1&panes=%7B%22t%22:%7B%22datasource%22:%22tempo%22,"
    "%22queries%22:%5B%7B%22refId%22:%22A%22,%22queryType%22:%22traceql%22,%22query%22:%22{trace_id}%22%7D%5D,"
    "%22range%22:%7B%22from%22:%22{from_ms}%22,%22to%22:%22{to_ms}%22%7D%7D%7D"
)


def test_a_template_gets_ids_and_an_hour_on_both_sides_of_the_minute() -> None:
    jaeger = TraceLinks("http://jaeger:16686/trace/{trace_id}?uiFind={span_id}")
    assert jaeger.url(TRACE, START_S) == f"http://jaeger:16686/trace/{TRACE.trace_id}?uiFind={TRACE.span_id}"
    url = TraceLinks(TEMPO).url(TRACE, START_S)
    assert url == TEMPO.replace("{trace_id}", TRACE.trace_id).replace("{from_ms}", "1795246800000").replace(
        "{to_ms}", "1795254060000"
    )
    seconds = TraceLinks("https://a.example/{trace_id}?from={from_s}&to={to_s}").url(TRACE, START_S)
    assert seconds == f"https://a.example/{TRACE.trace_id}?from=1795246800&to=1795254060"


def test_braces_that_name_no_place_stay_as_they_are() -> None:
    raw = 'https://grafana.example/explore?panes={"t":{"queries":[{"query":"{trace_id}"}]}}'
    assert checked_template(raw) == raw
    assert TraceLinks(raw).url(TRACE, START_S) == raw.replace("{trace_id}", TRACE.trace_id)


def test_a_trace_is_named_without_a_template_and_nothing_without_a_trace() -> None:
    links = TraceLinks("https://a.example/{trace_id}")
    assert links.document(None, START_S) == {}
    assert links.url(None, START_S) is None
    ids = {"trace_id": TRACE.trace_id, "span_id": TRACE.span_id}
    assert NO_LINKS.document(TRACE, START_S) == ids
    assert links.document(TRACE, START_S) == {**ids, "trace_url": f"https://a.example/{TRACE.trace_id}"}


@pytest.mark.parametrize(
    "text",
    [
        "javascript:alert('{trace_id}')",
        "ftp://a.example/{trace_id}",
        "//a.example/{trace_id}",
        "a.example/{trace_id}",
        "https:///{trace_id}",
        "https://[::1/{trace_id}",
        "https://a.example/traces",
        "https://a.example/{traceid}",
        "https://a.example/{trace_id}/{team}",
        "https://a.example/{trace_id} and more",
        "https://a.example/{trace_id}\n",
    ],
)
def test_what_is_no_template_ends_a_command_with_what_is_expected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_TRACE_URL", text)
    with pytest.raises(ValidationError, match=r"expected http\(s\)://… with \{trace_id\}"):
        Settings()


def test_a_template_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().trace_url == ""
    monkeypatch.setenv("LAGLOSS_TRACE_URL", TEMPO)
    assert Settings().trace_url == TEMPO
