"""Limits of what people and services add to the database: at the limit, past it, and what others may still add."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from dashboard.login.sessions import MAX_SESSIONS, Lifetime, Sessions
from dashboard.request.current_user import Person
from lagloss_server.base.errors import BadSilence, BadText, LimitReached
from lagloss_server.incidents import actions
from lagloss_server.incidents.actions import MAX_AUTHOR, MAX_SILENCE_S, MAX_SILENCES, MAX_TEXT
from lagloss_server.model.definition import Definition
from lagloss_server.model.matchers import MAX_MATCHER, MAX_MATCHERS
from lagloss_server.store import recompute_requests, tokens, users
from lagloss_server.store.recompute_requests import MAX_WAITING
from lagloss_server.store.store import MAX_PIPELINES, MAX_VERSIONS, Store
from lagloss_server.store.tokens import MAX_RATE, MAX_TOKENS
from lagloss_server.store.users import MAX_GROUPS, MAX_USERS

PASSWORD = "correct horse battery"
HOUR_S = 3_600


def pipeline(name: str, description: str = "") -> Definition:
    metadata = {"name": name, "description": description}
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": metadata}
    return Definition.model_validate({**document, "spec": {"nodes": [{"name": "n"}]}})


def copied(store: Store, table: str, columns: str, values: str, count: int, where: str = "true") -> None:
    """Add copies of a row, with a number `n` in their values."""
    query = f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table}, generate_series(1, {count}) n WHERE {where}"
    with store.engine.begin() as connection:
        connection.execute(text(query))


def refused(call: Callable[[], object], what: str) -> None:
    with pytest.raises(LimitReached, match=what):
        call()


def test_a_pipeline_has_so_many_active_tokens_and_others_have_their_own(store: Store) -> None:
    store.change([pipeline("p"), pipeline("q")])
    made = [tokens.create(store, "p")[0] for _ in range(MAX_TOKENS)]
    refused(lambda: tokens.create(store, "p"), f"up to {MAX_TOKENS} active tokens of p")
    tokens.create(store, "q")
    tokens.revoke(store, made[0].id)
    tokens.create(store, "p")
    refused(lambda: tokens.create(store, "p"), "lagloss token revoke")


def test_a_rate_has_a_limit(store: Store) -> None:
    store.change([pipeline("p")])
    assert tokens.create(store, "p", rate=MAX_RATE)[0].rate == MAX_RATE
    with pytest.raises(BadText, match="the rate"):
        tokens.create(store, "p", rate=MAX_RATE + 1)


def test_there_are_so_many_users_at_most(store: Store) -> None:
    users.add(store, "ann", "viewer", PASSWORD, [f"g{number}" for number in range(MAX_GROUPS)])
    refused(lambda: users.set_groups(store, "ann", ["g"] * (MAX_GROUPS + 1)), "groups of a user")
    columns = "name, role, password_hash, groups, created_at"
    copied(store, "login_user", columns, "'u' || n, role, password_hash, '[]', created_at", MAX_USERS - 2)
    users.add(store, "bob", "viewer", PASSWORD)
    refused(lambda: users.add(store, "eve", "viewer", PASSWORD), "up to 10,000 users")
    users.remove(store, "bob")
    users.add(store, "eve", "viewer", PASSWORD)


def test_an_installation_has_so_many_pipelines_at_most(store: Store) -> None:
    store.change([pipeline("first")])
    columns = "name, version, applied_at, definition"
    values = "'p' || n, 1, applied_at, jsonb_set(definition::jsonb, '{metadata,name}', to_jsonb('p' || n))"
    copied(store, "pipeline", columns, values, MAX_PIPELINES - 2)
    store.change([pipeline("last")])
    refused(lambda: store.change([pipeline("more")]), "up to 10,000 pipelines")
    assert "more" not in store.newest_versions()
    store.change([pipeline("last")])  # nothing is added
    store.change([pipeline("more")], ["last"])
    assert "more" in store.newest_versions()


def test_by_tokens_a_pipeline_gets_so_many_versions_at_most_and_an_operator_may_add_more(store: Store) -> None:
    store.change([pipeline("p"), pipeline("q")])
    columns = "name, version, applied_at, definition"
    copied(store, "pipeline", columns, "name, n + 1, n, definition", MAX_VERSIONS - 2, "name = 'p'")
    assert store.apply(pipeline("p", "a"), max_per_day=100) == MAX_VERSIONS
    refused(lambda: store.apply(pipeline("p", "b"), max_per_day=100), "up to 1,000 versions of p, .* `lagloss apply`")
    assert store.apply(pipeline("p", "a"), max_per_day=100) == MAX_VERSIONS
    store.apply(pipeline("q", "b"), max_per_day=100)
    assert store.apply(pipeline("p", "b")) == MAX_VERSIONS + 1


def silence(
    store: Store, author: str = "ann", matcher: str = "pipeline=p", reason: str = "r", for_s: float = HOUR_S
) -> str:
    return actions.silence(store, [matcher], reason=reason, author=author, for_s=for_s)[0].id


def test_an_author_has_so_many_silences_and_others_have_their_own(store: Store) -> None:
    made = [silence(store) for _ in range(MAX_SILENCES)]
    refused(lambda: silence(store), f"up to {MAX_SILENCES} active silences of ann")
    silence(store, "bob")
    actions.unsilence(store, made[0], "ann")
    silence(store)
    refused(lambda: silence(store), "End one of them")


def test_what_a_silence_says_has_limits(store: Store) -> None:
    matcher = "pipeline=" + "p" * (MAX_MATCHER - len("pipeline="))
    assert actions.checked_matchers([matcher] * MAX_MATCHERS) == [matcher] * MAX_MATCHERS
    with pytest.raises(BadText, match="a matcher"):
        actions.checked_matchers([matcher + "p"])
    with pytest.raises(BadSilence, match="at most 20 matchers"):
        actions.checked_matchers([matcher] * (MAX_MATCHERS + 1))
    silence(store, "a" * MAX_AUTHOR, matcher, "r" * MAX_TEXT, MAX_SILENCE_S)
    with pytest.raises(BadText, match="an author"):
        silence(store, "a" * (MAX_AUTHOR + 1))
    with pytest.raises(BadText, match="a reason"):
        silence(store, reason="r" * (MAX_TEXT + 1))
    with pytest.raises(BadSilence, match="up to 24 h"):
        silence(store, for_s=MAX_SILENCE_S + 1)


def test_so_many_recompute_requests_of_a_pipeline_wait_at_most(store: Store) -> None:
    for _ in range(MAX_WAITING):
        recompute_requests.add(store, "p", 0, 60)
    refused(lambda: recompute_requests.add(store, "p", 0, 60), "recompute requests of p")
    recompute_requests.add(store, "q", 0, 60)


def test_a_person_has_so_many_sessions_and_the_oldest_ends(store: Store) -> None:
    sessions = Sessions(store, "local", Lifetime(timedelta(hours=12), timedelta(days=7)))
    now = datetime.now(UTC)

    def begin(name: str, number: int) -> str:
        with store.engine.begin() as connection:
            return sessions.begin(connection, Person(name, "viewer"), now + timedelta(milliseconds=number))

    others = begin("bob", 0)
    made = [begin("ann", number) for number in range(MAX_SESSIONS)]
    assert sessions.find(made[0], now) is not None
    begin("ann", MAX_SESSIONS)
    assert sessions.find(made[0], now) is None
    assert sessions.find(made[1], now) is not None
    assert sessions.find(others, now) is not None
