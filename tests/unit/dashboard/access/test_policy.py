"""The access file: who is in which team, what a team grants, and what is wrong with a file that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.access.policy import AccessFile, grants_of
from dashboard.login.groups import GroupRoles
from dashboard.request.current_user import Person, require_operator_of, require_operator_of_all
from dashboard.request.grants import EVERYTHING, NOTHING, ONLY_LOOKS, Grants
from lagloss_server.base.errors import BadDefinition, NotAllowed, NotForTeams, NotOfYourTeam
from lagloss_server.base.settings import Settings
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.matchers import Matcher, match_all, reach
from tests.support.teams_world import asked_by

PIPELINES = {
    "clicks": {"team": "web", "env": "production"},
    "clicks-test": {"team": "web", "env": "test"},
    "orders": {"team": "payments", "env": "production"},
    "bare": {},
}
HEAD = "apiVersion: lagloss/v1\nkind: Access\nteams:\n"
FILE = (
    HEAD
    + """
  - {name: web, groups: [web-dev], pipelines: [team=web]}
  - name: web-oncall
    groups: [web-oncall]
    users: [ada]
    pipelines: [team=web, env=production]
    role: operator
    ids: show
  - {name: all, groups: ["*"], pipelines: ["pipeline=~ba.*"]}
"""
)


def file(text: str = FILE) -> AccessFile:
    return parse_yaml(AccessFile, text, "access.yaml")


@pytest.mark.parametrize(
    ("name", "groups", "teams"),
    [
        ("bob", {"web-dev"}, ["web", "all"]),
        ("ada", set(), ["web-oncall", "all"]),
        ("ada", {"web-dev", "web-oncall"}, ["web", "web-oncall", "all"]),
        ("Ada", {"WEB-DEV"}, ["all"]),
        ("web-dev", {"ada"}, ["all"]),
    ],
)
def test_members_are_known_by_group_or_by_name_as_they_are_spelled(
    name: str, groups: set[str], teams: list[str]
) -> None:
    assert [team.name for team in file().teams_of(name, groups)] == teams


def test_a_member_of_several_teams_has_what_any_of_them_grants() -> None:
    found = grants_of(file().teams_of("ada", {"web-dev"}), PIPELINES)
    assert found == Grants(
        sees=frozenset({"clicks", "clicks-test", "bare"}), acts=frozenset({"clicks"}), ids=frozenset({"clicks"})
    )
    assert not found.is_whole
    assert not found.acts_on_all
    assert grants_of((), PIPELINES) == NOTHING


def test_a_team_grants_only_looks_and_no_ids_unless_the_file_says_more() -> None:
    [team] = file(HEAD + "  - {name: web, groups: [web], pipelines: [team=web]}").teams
    assert (team.role, team.ids) == ("viewer", "hide")


@pytest.mark.parametrize(
    ("teams", "problem"),
    [
        ("[]", "3: teams"),
        ("\n  - {name: a, groups: [x], pipelines: []}", "teams[0].pipelines"),
        ("\n  - {name: a, groups: [x]}", "teams[0].pipelines"),
        ("\n  - {name: a, pipelines: [team=web]}", "expected groups or users, found neither"),
        (
            "\n  - {name: a, groups: [x], pipelines: [severity=critical]}",
            "found severity=critical, which is a label of",
        ),
        ("\n  - {name: a, groups: [x], pipelines: [web]}", "expected a matcher such as"),
        ("\n  - {name: a, groups: [x], pipelines: ['team=~(']}", "expected an RE2 regular expression"),
        ("\n  - {name: a, groups: [x], pipelines: [team=web], role: admin}", "teams[0].role"),
        ("\n  - {name: a, groups: [x], pipelines: [team=web], ids: maybe}", "teams[0].ids"),
        ("\n  - {name: a, group: [x], pipelines: [team=web]}", "teams[0]"),
        (
            "\n  - {name: a, groups: [x], pipelines: [team=web]}\n  - {name: a, groups: [y], pipelines: [team=b]}",
            "5: teams[1].name: expected each team once, found a twice",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_line_and_expectation(teams: str, problem: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        file(HEAD.rstrip() + " " + teams if teams == "[]" else HEAD.rstrip() + teams)
    assert problem in str(refused.value)


_LABELS = st.dictionaries(st.sampled_from(["team", "env"]), st.sampled_from(["web", "payments", ""]), max_size=2)
_MATCHERS = st.lists(
    st.sampled_from(
        [
            "team=web",
            "team!=web",
            "team=~w.*|payments",
            "env!~web",
            "pipeline=clicks",
            "pipeline=~.*s",
            "kind=loss",
            "rule!=x",
        ]
    ),
    min_size=1,
    max_size=3,
)


@given(st.dictionaries(st.sampled_from(list(PIPELINES)), _LABELS), _MATCHERS, st.sampled_from(["loss", "lag"]))
def test_what_a_silence_reaches_is_no_less_than_the_incidents_that_it_matches(
    pipelines: dict[str, dict[str, str]], texts: list[str], kind: str
) -> None:
    matchers = [Matcher.parse(text) for text in texts]
    reached = reach(matchers, pipelines)
    for name, labels in pipelines.items():
        incident = {**labels, "pipeline": name, "kind": kind, "rule": "x", "severity": "critical"}
        assert name in reached or not match_all(matchers, incident)


def test_groups_of_settings_say_who_is_an_operator_and_the_file_who_else_may_look(tmp_path: Path) -> None:
    by_teams = GroupRoles.of(Settings(login_operators="sre", access_file=tmp_path / "access.yaml"))
    assert [by_teams.role({group}) for group in ("sre", "anything")] == ["operator", "viewer"]
    assert GroupRoles.of(Settings(login_operators="sre")).role({"anything"}) is None


def test_a_role_without_a_team_is_of_every_pipeline() -> None:
    assert Person("olga", "operator").grants == EVERYTHING
    assert Person("vera", "viewer").grants == ONLY_LOOKS
    for grants, name, may in ((EVERYTHING, "new", (True,) * 3), (ONLY_LOOKS, "new", (True, False, True))):
        assert (grants.may_see(name), grants.may_act_on(name), grants.may_see_ids(name)) == may


def test_who_acts_for_a_team_acts_on_its_pipelines_and_on_nothing_that_is_of_all() -> None:
    [team] = file(HEAD + "  - {name: web, groups: [web], pipelines: [team=web], role: operator}").teams
    person = Person("ada", "operator", granted=grants_of([team], PIPELINES))
    assert asked_by(person, require_operator_of, "clicks") == person
    with pytest.raises(NotOfYourTeam, match="ada can view orders but not act on it"):
        asked_by(person, require_operator_of, "orders")
    with pytest.raises(NotForTeams, match="a receiver affects all teams"):
        asked_by(person, require_operator_of_all, "a receiver")
    with pytest.raises(NotAllowed, match="has the read-only role viewer"):
        asked_by(Person("vera", "viewer"), require_operator_of, "clicks")
