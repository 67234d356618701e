"""The login's rules that need no server: where one goes, who comes from where, what groups mean."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from dashboard.login import account, check_binding
from dashboard.login.groups import GroupRoles, claimed
from dashboard.login.headers import content_security_policy
from dashboard.login.local import PER_ADDRESS, PER_NAME, Throttle
from dashboard.login.next_path import HOME, checked_next, wanted
from dashboard.login.oidc import ProviderError, trusted_metadata
from dashboard.login.sessions import Lifetime
from dashboard.request.current_user import Person
from lagloss_server.base.errors import BadLogin, OpenToAll, TeamsWithoutLogin
from lagloss_server.base.settings import Settings
from lagloss_server.net.clients import UNKNOWN, client, guesser, parse_networks
from lagloss_server.net.problem_details import Problem

PROVIDER = {
    "login": "oidc",
    "oidc_issuer": "https://id.example",
    "oidc_client_id": "lagloss",
    "oidc_client_secret": "s",
    "dashboard_url": "https://lagloss.example",
    "login_viewers": "*",
}


def settings(**values: Any) -> Settings:
    return Settings(**values)


def came_from(peer: str | None, *forwarded: str) -> HTTPConnection:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    return HTTPConnection({"type": "http", "client": (peer, 1) if peer else None, "headers": headers})


# where one goes


@pytest.mark.parametrize("path", ["/", "/?pipeline=a%20b&range=1h", "/windows/a/1?x=/y//z", "/a:b@c", "/loss"])
def test_a_path_of_ours_is_gone_to(path: str) -> None:
    assert checked_next(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "", "x", "https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "/\n/evil", "\\/evil",
        "/a\r\nSet-Cookie: x", "/ /evil.example", "javascript:alert(1)", "/login", "/login?next=/login", "/logout",
        "/login/", "/login/oidc/callback", "/" + "a" * 5_000,
    ],
)  # fmt: skip
def test_anything_else_leads_home(path: str) -> None:
    assert checked_next(path) == HOME


@given(st.text(alphabet=st.sampled_from("/\\.:@%?#\t\r\n ae\u00fc\u2028"), max_size=12))
def test_no_text_leads_to_another_site_or_breaks_a_header(text: str) -> None:
    path = checked_next(text)
    assert path.isascii()
    assert path.isprintable()
    assert path.startswith("/")
    # as a browser reads it: backslashes are slashes
    assert urlsplit(path.replace("\\", "/")).netloc == ""


def test_one_comes_back_to_the_query_one_asked_for() -> None:
    scope = {"type": "http", "path": "/x y", "raw_path": b"/x%20y", "query_string": b"a=1&b=%2F", "headers": []}
    assert wanted(HTTPConnection(scope)) == "/x%20y?a=1&b=%2F"


# who comes from where


def test_only_a_trusted_proxy_says_whom_it_asks_for() -> None:
    trusted = parse_networks(["10.0.0.0/8"])
    assert client(came_from("1.2.3.4", "9.9.9.9"), trusted) == "1.2.3.4"
    assert client(came_from("10.0.0.1", "9.9.9.9"), trusted) == "9.9.9.9"
    assert client(came_from("10.0.0.1"), trusted) == "10.0.0.1"
    assert client(came_from(None, "9.9.9.9"), trusted) == UNKNOWN


def test_what_stands_before_the_last_trusted_proxy_is_not_believed() -> None:
    trusted = parse_networks(["10.0.0.0/8"])
    assert client(came_from("10.0.0.1", "6.6.6.6, 9.9.9.9, 10.0.0.2"), trusted) == "9.9.9.9"
    assert client(came_from("10.0.0.1", "6.6.6.6", "9.9.9.9"), trusted) == "9.9.9.9"
    assert client(came_from("::ffff:10.0.0.1", "9.9.9.9"), trusted) == "9.9.9.9"


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("made up", UNKNOWN),
    ],
)
def test_addresses_that_one_guesser_has_count_together(address: str, counted: str) -> None:
    assert guesser(address) == counted


def test_guesses_are_limited_by_address_and_by_name() -> None:
    async def guess() -> tuple[int, int]:
        by_address, by_name = Throttle(), Throttle()
        for number in range(PER_ADDRESS):
            await by_address.check(f"user{number}", "1.2.3.4")
            await by_address.count(f"user{number}", "1.2.3.4")
        await by_address.check("ann", "1.2.3.5")
        with pytest.raises(Problem) as first:
            await by_address.check("ann", "1.2.3.4")
        for number in range(PER_NAME):
            await by_name.check("ann", f"1.2.{number}.4")
            await by_name.count("Ann", f"1.2.{number}.4")
        await by_name.check("bob", "9.9.9.9")
        with pytest.raises(Problem) as second:
            await by_name.check("ann", "9.9.9.9")
        return int(first.value.headers["Retry-After"]), second.value.status

    wait_s, status = asyncio.run(guess())
    assert 1 <= wait_s <= 15 * 60
    assert status == 429


# what groups mean

GROUPS = GroupRoles(frozenset({"sre"}), frozenset({"staff"}))


@pytest.mark.parametrize(
    ("groups", "role"),
    [({"sre"}, "operator"), ({"sre", "staff"}, "operator"), ({"staff", "x"}, "viewer"), ({"x"}, None), (set(), None)],
)
def test_a_role_follows_from_groups(groups: set[str], role: str | None) -> None:
    assert GROUPS.role(groups) == role


def test_a_star_lets_everybody_look_and_nobody_act() -> None:
    assert GroupRoles(frozenset({"sre"}), frozenset("*")).role(()) == "viewer"


@pytest.mark.parametrize(
    ("claims", "name", "found"),
    [
        ({"groups": ["a", "b"]}, "groups", {"a", "b"}),
        ({"groups": "a"}, "groups", {"a"}),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"https://x.example/roles": ["a"]}, "https://x.example/roles", {"a"}),
        ({"groups": [1, None, {"a": 1}, "", "*", "b"]}, "groups", {"b"}),
        ({"groups": {"a": True}}, "groups", set()),
        ({"groups": True}, "groups.x", set()),
        ({}, "groups", set()),
    ],
)
def test_groups_are_read_from_claims_of_many_forms(claims: dict[str, Any], name: str, found: set[str]) -> None:
    assert claimed(claims, name) == found


# when a session ends


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_session_ends_after_so_long_in_any_case_and_sooner_without_requests(age_h: int, unseen_h: int) -> None:
    lifetime = Lifetime(idle=timedelta(hours=8), longest=timedelta(hours=72))
    now = datetime(2026, 11, 21, tzinfo=UTC)
    is_over = lifetime.is_over(now - timedelta(hours=age_h), now - timedelta(hours=min(age_h, unseen_h)), now)
    assert is_over == (age_h >= 72 or min(age_h, unseen_h) >= 8)


# what settings can be used


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_without_a_login_this_machine_is_listened_on(address: str) -> None:
    check_binding(settings(bind_address=address))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "dashboard"])
def test_without_a_login_nothing_else_is_listened_on(address: str) -> None:
    with pytest.raises(OpenToAll, match=r"LAGLOSS_LOGIN.*127\.0\.0\.1") as refused:
        check_binding(settings(bind_address=address))
    assert refused.value.exit_code == 2
    check_binding(settings(bind_address=address, login="local"))


def test_a_whole_set_of_settings_can_be_used() -> None:
    check_binding(settings(**PROVIDER))
    check_binding(settings(**PROVIDER | {"oidc_issuer": "http://127.0.0.1:9400"}))
    check_binding(settings(login="proxy", proxy_trusted="10.1.2.3, fd00::/8", login_operators="sre"))
    check_binding(settings(**PROVIDER | {"login_viewers": "", "access_file": "access.yaml"}))
    check_binding(settings(login="local", access_file="access.yaml"))


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        (PROVIDER | {"oidc_issuer": ""}, "LAGLOSS_OIDC_ISSUER"),
        (PROVIDER | {"oidc_issuer": "http://id.example"}, "LAGLOSS_OIDC_ISSUER"),
        (PROVIDER | {"oidc_client_id": ""}, "LAGLOSS_OIDC_CLIENT_ID"),
        (PROVIDER | {"oidc_client_secret": ""}, "LAGLOSS_OIDC_CLIENT_SECRET"),
        (PROVIDER | {"dashboard_url": "lagloss.example"}, "LAGLOSS_DASHBOARD_URL"),
        (PROVIDER | {"login_viewers": ""}, "LAGLOSS_LOGIN_VIEWERS"),
        (PROVIDER | {"login_operators": "*"}, "LAGLOSS_LOGIN_OPERATORS"),
        ({"login": "proxy", "login_viewers": "*"}, "LAGLOSS_PROXY_TRUSTED"),
        ({"login": "proxy", "login_viewers": "*", "proxy_trusted": "10.0.0.1/8"}, "LAGLOSS_PROXY_TRUSTED"),
        ({"login": "local", "proxy_trusted": "nginx"}, "LAGLOSS_PROXY_TRUSTED"),
        (
            PROVIDER | {"access_file": "access.yaml"},
            r"LAGLOSS_LOGIN_VIEWERS: expected no value with LAGLOSS_ACCESS_FILE.*, found \*",
        ),
        (
            {"login": "proxy", "login_viewers": "*", "proxy_trusted": "::1", "proxy_user_header": ""},
            "PROXY_USER_HEADER",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_told_by_name(values: dict[str, Any], variable: str) -> None:
    with pytest.raises(BadLogin, match=variable):
        check_binding(settings(**values))


def test_teams_are_of_no_use_without_a_login() -> None:
    with pytest.raises(TeamsWithoutLogin, match=r"LAGLOSS_ACCESS_FILE is access\.yaml, but teams need a login"):
        check_binding(settings(access_file="access.yaml"))


# what browsers are told


def test_scripts_run_from_files_and_by_hash_only() -> None:
    policy = content_security_policy(["sha256-abc=", "'sha256-def='"])
    assert "script-src 'self' 'sha256-abc=' 'sha256-def=';" in policy
    assert policy.count("unsafe") == 1
    assert "style-src 'self' 'unsafe-inline'" in policy


def test_logging_out_is_offered_where_it_means_something() -> None:
    ann = Person("ann", "viewer")
    can = {login: account(ann, settings(login=login)).can_log_out for login in ("", "local", "oidc", "proxy")}
    assert can == {"": False, "local": True, "oidc": True, "proxy": False}


# what is believed of a provider


class Metadata:
    """A client that was told this."""

    def __init__(self, **told: Any) -> None:
        self.server_metadata = {"issuer": "https://id.example", **told}

    async def load_server_metadata(self) -> dict[str, Any]:
        return self.server_metadata


def test_signatures_that_anybody_can_make_are_not_believed() -> None:
    told = Metadata(id_token_signing_alg_values_supported=["none", "HS256", "ES256"])
    asyncio.run(trusted_metadata(told, settings(**PROVIDER)))
    assert told.server_metadata["id_token_signing_alg_values_supported"] == ["ES256"]
    told = Metadata(id_token_signing_alg_values_supported=["none"])
    with pytest.raises(ProviderError, match="signed"):
        asyncio.run(trusted_metadata(told, settings(**PROVIDER)))


def test_another_issuers_metadata_are_not_believed() -> None:
    told = Metadata(issuer="https://evil.example")
    with pytest.raises(ProviderError, match=r"LAGLOSS_OIDC_ISSUER.*evil\.example"):
        asyncio.run(trusted_metadata(told, settings(**PROVIDER)))
    assert told.server_metadata == {}
