"""Labels of a deployment go with the reports, and a mistake in the environment does not end a service."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import REPORTS
from lagloss.wire.format import REPORT_SCHEMA, EmitterReport, decode_report


def report_of(labels: Mapping[str, str] | None = None) -> tuple[bytes, EmitterReport]:
    """The last report of an emitter with these labels: the bytes it begins with, and what it says."""
    outlet = MemoryOutlet()
    with Emitter("orders", "mid", outlet=lambda: outlet, labels=labels) as emitter:
        emitter.received("a", 1_780_000_020_000)
    value = [value for topic, _, _, value in outlet.records if topic == REPORTS][-1]
    return value[:10], decode_report(value)


def test_labels_are_those_given_or_else_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_LABELS", "version=1.4.2, zone = eu-1a,nonsense,=nameless,empty=")
    assert report_of()[1].labels == {"version": "1.4.2", "zone": "eu-1a", "empty": ""}
    assert report_of({"team": "billing"})[1].labels == {"team": "billing"}


def test_without_labels_an_older_server_reads_the_report() -> None:
    assert report_of()[0] == REPORT_SCHEMA.versions[0].header
    assert report_of({"team": "billing"})[0] == REPORT_SCHEMA.versions[1].header


@pytest.mark.parametrize("labels", [{"a": "x" * 101}, {"a": "\0"}, {str(at): "" for at in range(21)}])
def test_labels_past_the_limits_are_the_callers_error_and_no_deployments(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="at most 20 labels of 100 characters"):
        report_of(labels)
    monkeypatch.setattr("os.environ", {"LAGLOSS_LABELS": ",".join(f"{name}={value}" for name, value in labels.items())})
    assert report_of()[1].labels == {}
