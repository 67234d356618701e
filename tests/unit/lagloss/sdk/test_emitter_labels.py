"""Labels of a deployment go with the reports, and a mistake in the environment does not end a service."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import REPORTS
from lagloss.wire.format import EmitterReport, decode_report


def report_of(labels: Mapping[str, str] | None = None) -> EmitterReport:
    """The last report of an emitter with these labels."""
    outlet = MemoryOutlet()
    with Emitter("orders", "mid", outlet=lambda: outlet, labels=labels) as emitter:
        emitter.received("a", 1_780_000_020_000)
    return decode_report(outlet.values(REPORTS)[-1])


def test_labels_are_those_given_or_else_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_LABELS", "version=1.4.2, zone = eu-1a,nonsense,=nameless,empty=")
    assert report_of().labels == {"version": "1.4.2", "zone": "eu-1a", "empty": ""}
    assert report_of({"team": "billing"}).labels == {"team": "billing"}


@pytest.mark.parametrize("labels", [{"a": "x" * 101}, {"a": "\0"}, {str(at): "" for at in range(21)}])
def test_labels_past_the_limits_are_the_callers_error_and_no_deployments(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="up to 20 labels of up to 100 characters"):
        report_of(labels)
    monkeypatch.setattr("os.environ", {"LAGLOSS_LABELS": ",".join(f"{name}={value}" for name, value in labels.items())})
    assert report_of().labels == {}
