from __future__ import annotations

from types import SimpleNamespace

import pytest

from lagloss_server.model.matchers import Matcher, labels_of, match_all, of_pipelines

LABELS = {"pipeline": "clicks", "rule": "lag/node/mid", "team": "checkout"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("pipeline=clicks", True),
        ("pipeline=click", False),
        (' pipeline = "clicks" ', True),
        ("pipeline!=clicks", False),
        ("rule=~lag/.*", True),
        ("rule=~lag", False),
        ("rule!~lag", True),
        ("team!~check.*", False),
        ("region=", True),
        ("region!=", False),
        ("region=~.+", False),
    ],
)
def test_a_matcher_compares_the_whole_value_and_takes_a_missing_label_as_empty(text: str, matches: bool) -> None:
    assert Matcher.parse(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["", "pipeline", "=clicks", "pipe line=x", "rule=~(", "1a=b"])
def test_what_is_no_matcher_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match="expected") as refused:
        Matcher.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["pipeline=clicks", "rule=~lag/.*|loss", "team!=a", "x!~y"])
def test_a_matcher_is_read_back_from_what_it_says(text: str) -> None:
    assert str(Matcher.parse(text)) == text


def test_all_matchers_have_to_match_and_none_match_all() -> None:
    assert match_all([Matcher.parse("pipeline=clicks"), Matcher.parse("team=checkout")], LABELS)
    assert not match_all([Matcher.parse("pipeline=clicks"), Matcher.parse("team=other")], LABELS)
    assert match_all([], LABELS)


def test_matchers_see_what_an_incident_is_over_what_its_pipeline_calls_itself() -> None:
    incident = SimpleNamespace(pipeline="clicks", rule="lag", kind="lag", severity="critical", state="open")
    seen = labels_of(incident, {"team": "checkout", "severity": "none"})
    assert seen == {"team": "checkout", "pipeline": "clicks", "rule": "lag", "kind": "lag", "severity": "critical"}
    assert "team" not in labels_of(incident)


@pytest.mark.parametrize("text", ["severity=critical", "rule=~lag.*", "node=mid", "destination!=conn-ga"])
def test_pipelines_are_not_chosen_by_what_only_incidents_have(text: str) -> None:
    own = (Matcher.parse("pipeline=~click.*"), Matcher.parse("team=web"))
    assert of_pipelines(own) == own
    with pytest.raises(ValueError, match="a label of incidents"):
        of_pipelines((*own, Matcher.parse(text)))
