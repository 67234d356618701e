"""Login by a password, over HTTP: people in PostgreSQL, their sessions, and who is kept out."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from argon2 import PasswordHasher
from sqlalchemy import delete, func, insert, select, update
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from dashboard.login.local import PER_ADDRESS
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.store import users
from lagloss_server.store.audit import audit_table
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import SessionRow, UserRow
from lagloss_server.store.store import Store
from tests.support.dashboards import until
from tests.support.login_world import NAVIGATION, PASSWORD, SCRIPT_HASH, browser_like, log_in, serving
from tests.support.teams_world import ACCESS

REVOKED_WITHIN_S = 10
_session = table_of(SessionRow)
_user = table_of(UserRow)


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    store = Store(module_database_url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    with serving(store, login="local", proxy_trusted="127.0.0.1/32") as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def password_hash() -> Iterator[str]:
    """A hash of the password. Hashes are cheap here: a hundred passwords are checked; test_users.py has dear ones."""
    cheap = PasswordHasher(time_cost=1, memory_cost=1_024)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "_HASHER", cheap)
        users._decoy.cache_clear()
        yield cheap.hash(PASSWORD)
    users._decoy.cache_clear()


@pytest.fixture(autouse=True)
def people(store: Store, password_hash: str) -> Iterator[None]:
    """ann may look, olga may act."""
    common = {"password_hash": password_hash, "created_at": datetime.now(UTC)}
    rows = [{"name": "ann", "role": "viewer", **common}, {"name": "olga", "role": "operator", **common}]
    with store.engine.begin() as connection:
        connection.execute(insert(_user), rows)
    yield
    with store.engine.begin() as connection:
        connection.execute(delete(_session))
        connection.execute(delete(_user))


@pytest.fixture
def ann(url: str) -> Iterator[httpx2.Client]:
    with browser_like(url) as client:
        assert log_in(client).status_code == 303
        yield client


def count_sessions(store: Store) -> int:
    with store.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(_session)).scalar_one()


def wait_until_turned_away(client: httpx2.Client) -> None:
    deadline = time.monotonic() + REVOKED_WITHIN_S
    while (answer := client.get("/api/v1/who")).status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert answer.status_code == 401


def ask_for(socket: ClientConnection, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        socket.send("who am I?")
        socket.recv(10)


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_a_stranger_is_led_to_the_login_and_then_to_where_they_wanted(url: str) -> None:
    with browser_like(url) as client:
        answer = client.get("/?pipeline=a%20b&range=1h", headers=NAVIGATION)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2F%3Fpipeline%3Da%2520b%26range%3D1h"
        form = client.get(answer.headers["location"])
        assert 'value="/?pipeline=a%20b&amp;range=1h"' in form.text
        answer = log_in(client, next_path="/?pipeline=a%20b&range=1h")
        assert (answer.status_code, answer.headers["location"]) == (303, "/?pipeline=a%20b&range=1h")
        assert client.get("/api/v1/who").json() == {"name": "ann", "role": "viewer"}


@pytest.mark.parametrize("path", ["/api/v1/who", "/_dash-layout", "/assets/lagloss.css", "/openapi.json", "/nothing"])
def test_whatever_a_script_of_a_stranger_asks_for_it_gets_nothing(url: str, path: str) -> None:
    answer = httpx2.get(url + path)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    assert answer.headers["www-authenticate"] == 'Basic realm="lagloss"'
    assert "Basic" not in httpx2.get(url + path, headers={"sec-fetch-mode": "cors"}).headers["www-authenticate"]


def test_a_stranger_learns_that_all_is_well_and_nothing_else(url: str, ann: httpx2.Client) -> None:
    assert httpx2.get(f"{url}/healthz").json() == {"status": "ok"}
    assert httpx2.get(f"{url}/healthz", headers=basic("ann", "wrong")).json() == {"status": "ok"}
    assert "detail" in ann.get("/healthz").json()


@pytest.mark.parametrize(
    ("name", "password"), [("ann", "wrong"), ("nobody", PASSWORD), ("", ""), ("a\0b", "c\0d"), ("ann", "é" * 1_000)]
)
def test_a_wrong_name_is_told_apart_from_a_wrong_password_by_nobody(url: str, name: str, password: str) -> None:
    with browser_like(url) as client:
        answer = log_in(client, name, password)
        assert answer.status_code == 401
        assert "name or password is wrong" in answer.text
        assert client.cookies == {}


def test_what_is_typed_as_a_name_stays_text(url: str) -> None:
    with browser_like(url) as client:
        answer = log_in(client, '"><script>alert(1)</script>')
    assert "<script>" not in answer.text
    assert "&lt;script&gt;" in answer.text


def test_nobody_is_led_to_another_site(url: str) -> None:
    with browser_like(url) as client:
        for path in ("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "/a\r\nX: y"):
            assert log_in(client, next_path=path).headers["location"] == "/"


def test_a_form_of_another_site_logs_nobody_in_and_does_nothing(url: str, ann: httpx2.Client, store: Store) -> None:
    before = count_sessions(store)
    for origin in ("http://evil.example", "null"):
        answer = ann.post("/login", data={"name": "olga", "password": PASSWORD}, headers={"origin": origin})
        assert answer.status_code == 403
        assert ann.post("/logout", headers={"origin": origin}).status_code == 403
        assert ann.post("/api/v1/act", headers={"origin": origin}).status_code == 403
    assert count_sessions(store) == before
    assert ann.get("/logout", headers=NAVIGATION).status_code == 405


def test_the_cookie_is_out_of_reach_of_scripts_and_the_database_does_not_hold_it(url: str, store: Store) -> None:
    with browser_like(url) as client:
        (cookie,) = log_in(client).headers.get_list("set-cookie")
        token = client.cookies["lagloss"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/" in cookie
    assert "Secure" not in cookie  # by plain HTTP, a browser would throw it away
    with store.engine.connect() as connection:
        (row,) = connection.execute(select(_session)).all()
    assert token.encode() not in row.token_hash
    assert len(row.token_hash) == 32


def test_with_https_the_cookie_and_the_headers_insist_on_it(store: Store) -> None:
    with (
        serving(store, login="local", dashboard_url="https://lagloss.example") as url,
        httpx2.Client(base_url=url) as client,
    ):
        answer = client.post(
            "/login", data={"name": "ann", "password": PASSWORD}, headers={"origin": "https://lagloss.example"}
        )
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-lagloss=")
        assert "Secure" in cookie
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        token = cookie.split("=")[1].split(";")[0]
        assert client.get("/api/v1/who", headers={"cookie": f"__Host-lagloss={token}"}).status_code == 200
        assert client.get("/api/v1/who", headers={"cookie": f"lagloss={token}"}).status_code == 401


def test_logging_in_again_gives_a_new_token_and_ends_the_old_one(url: str, ann: httpx2.Client, store: Store) -> None:
    first = ann.cookies["lagloss"]
    log_in(ann, "olga")
    assert ann.get("/api/v1/who").json()["name"] == "olga"
    assert ann.cookies["lagloss"] != first
    assert httpx2.get(f"{url}/api/v1/who", headers={"cookie": f"lagloss={first}"}).status_code == 401
    assert count_sessions(store) == 1


def test_logging_out_ends_the_session_at_once(url: str, ann: httpx2.Client, store: Store) -> None:
    token = ann.cookies["lagloss"]
    answer = ann.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert ann.cookies == {}
    assert httpx2.get(f"{url}/api/v1/who", headers={"cookie": f"lagloss={token}"}).status_code == 401
    assert count_sessions(store) == 0


def test_a_removed_user_is_logged_out_within_seconds(ann: httpx2.Client, store: Store) -> None:
    assert ann.get("/api/v1/who").status_code == 200
    users.remove(store, "ann")
    wait_until_turned_away(ann)
    assert log_in(ann).status_code == 401


def test_another_password_logs_out_within_seconds(ann: httpx2.Client, store: Store) -> None:
    users.set_password(store, "ann", "another long password")
    wait_until_turned_away(ann)
    assert log_in(ann).status_code == 401
    assert log_in(ann, password="another long password").status_code == 303


def test_another_role_holds_within_seconds_without_logging_in_again(ann: httpx2.Client, store: Store) -> None:
    assert ann.post("/api/v1/act").status_code == 403
    users.set_role(store, "ann", "operator")
    deadline = time.monotonic() + REVOKED_WITHIN_S
    while (answer := ann.post("/api/v1/act")).status_code == 403 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (answer.status_code, answer.text) == (200, "ann")


def test_a_password_that_was_changed_while_it_was_checked_begins_no_session(store: Store) -> None:
    checked = users.recognise(store, "ann", PASSWORD)
    assert checked is not None
    users.set_password(store, "ann", "another long password")
    with store.engine.begin() as connection:
        assert users.hold(connection, checked) is None


@pytest.mark.parametrize(("column", "hours"), [("seen_at", 8), ("created_at", 72)])
def test_a_session_ends_by_itself_and_is_removed(ann: httpx2.Client, store: Store, column: str, hours: int) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=hours)
    with store.engine.begin() as connection:
        connection.execute(update(_session).values({column: long_ago}))
    wait_until_turned_away(ann)
    log_in(ann, "olga")
    assert count_sessions(store) == 1


def test_requests_keep_a_session_alive(ann: httpx2.Client, store: Store) -> None:
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with store.engine.begin() as connection:
        connection.execute(update(_session).values(seen_at=an_hour_ago))
    assert ann.get("/api/v1/who").status_code == 200
    with store.engine.connect() as connection:
        seen_at = connection.execute(select(_session.c.seen_at)).scalar_one()
    assert seen_at > an_hour_ago + timedelta(minutes=59)


def test_a_session_of_another_kind_of_login_is_none(ann: httpx2.Client, store: Store) -> None:
    with store.engine.begin() as connection:
        connection.execute(update(_session).values(login="oidc"))
    wait_until_turned_away(ann)


def test_guessing_is_slowed_down_by_address_and_nobody_else_is_locked_out(url: str) -> None:
    with browser_like(url) as client:
        from_there = {"x-forwarded-for": "203.0.113.7"}
        guess = {"name": "ann", "password": "wrong"}
        answers = [client.post("/login", data=guess, headers=from_there) for _ in range(PER_ADDRESS + 1)]
        assert [answer.status_code for answer in answers] == [401] * PER_ADDRESS + [429]
        assert int(answers[-1].headers["retry-after"]) > 0
        assert "try again in" in answers[-1].text
        right = {"name": "ann", "password": PASSWORD}
        assert client.post("/login", data=right, headers=from_there).status_code == 429
        assert httpx2.get(f"{url}/api/v1/who", headers=from_there | basic("ann", PASSWORD)).status_code == 429
        assert client.post("/login", data=right, headers={"x-forwarded-for": "203.0.113.8"}).status_code == 303


def test_scripts_log_in_by_http_basic_and_get_no_session(url: str, store: Store) -> None:
    answer = httpx2.get(f"{url}/api/v1/who", headers=basic("Olga", PASSWORD))
    assert (answer.json(), answer.cookies) == ({"name": "olga", "role": "operator"}, {})
    assert httpx2.post(f"{url}/api/v1/act", headers=basic("olga", PASSWORD)).text == "olga"
    assert httpx2.post(f"{url}/api/v1/act", headers=basic("ann", PASSWORD)).status_code == 403
    assert httpx2.get(f"{url}/api/v1/who", headers=basic("olga", "wrong")).status_code == 401
    for text in ("Basic", "Basic !", "Basic b2xnYQ==", "Bearer x", "Basic /////w=="):
        assert httpx2.get(f"{url}/api/v1/who", headers={"authorization": text}).status_code == 401
    assert count_sessions(store) == 0
    other = basic("olga", PASSWORD) | {"origin": "http://evil.example"}
    assert httpx2.post(f"{url}/api/v1/act", headers=other).status_code == 403


def test_a_form_that_is_none_is_refused_before_it_is_read(url: str) -> None:
    with browser_like(url) as client:
        assert client.post("/login", content=b"x" * 100_000).status_code == 413
        assert client.post("/login", content="&".join("a=b" for _ in range(50))).status_code == 400
        assert client.post("/login", content=b"name=\xff").status_code == 400


def test_every_answer_has_the_headers_and_none_is_kept(url: str, ann: httpx2.Client) -> None:
    stranger = httpx2.Client(base_url=url)
    answers = [
        ann.get("/"),
        ann.get("/fault", headers={"connection": "close"}),  # as the server does after a fault, a moment later
        ann.get("/nothing"),
        stranger.get("/login"),
        stranger.get("/api/v1/who"),
    ]
    answers += [stranger.get("/healthz"), ann.post("/api/v1/act", headers={"origin": "null"})]
    stranger.close()
    for answer in answers:
        assert f"script-src 'self' '{SCRIPT_HASH}';" in answer.headers["content-security-policy"], answer.url
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store", answer.url
        assert "strict-transport-security" not in answer.headers
    assert ann.get("/assets/lagloss.css").headers["cache-control"] == "public, max-age=600"


def test_a_websocket_is_of_who_is_logged_in(url: str, ann: httpx2.Client) -> None:
    address = url.replace("http", "ws") + "/ws"
    cookie = {"Cookie": f"lagloss={ann.cookies['lagloss']}"}
    with connect(address, additional_headers=cookie | {"Origin": url}, proxy=None) as socket:
        socket.send("who am I?")
        assert socket.recv(10) == "ann, viewer"
    for headers in ({"Origin": url}, cookie | {"Origin": "http://evil.example"}, cookie, basic("ann", PASSWORD)):
        with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=headers, proxy=None):
            pass
        assert refused.value.response.status_code == 403


def test_a_websocket_that_is_open_hears_of_another_role_and_of_the_end(
    url: str, ann: httpx2.Client, store: Store
) -> None:
    headers = {"Cookie": f"lagloss={ann.cookies['lagloss']}", "Origin": url}
    deadline = time.monotonic() + REVOKED_WITHIN_S
    with connect(url.replace("http", "ws") + "/ws", additional_headers=headers, proxy=None) as socket:
        users.set_role(store, "ann", "operator")
        said = ""
        while said != "ann, operator" and time.monotonic() < deadline:
            socket.send("who am I?")
            said = str(socket.recv(10))
        assert said == "ann, operator"
        users.remove(store, "ann")
        with pytest.raises(ConnectionClosed) as ended:
            ask_for(socket, REVOKED_WITHIN_S)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1008


def test_without_a_login_nobody_is_asked_but_other_names_and_sites_are_refused(store: Store) -> None:
    with serving(store) as url:
        assert httpx2.get(f"{url}/api/v1/who").json() == {"name": "local", "role": "operator"}
        assert httpx2.post(f"{url}/api/v1/act").status_code == 200
        assert httpx2.get(f"{url}/", headers={"host": "evil.example"}).status_code == 421
        assert httpx2.post(f"{url}/api/v1/act", headers={"origin": "http://evil.example"}).status_code == 403
        image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
        assert httpx2.get(f"{url}/", headers=image).status_code == 403
        assert "detail" in httpx2.get(f"{url}/healthz").json()
        with (
            pytest.raises(InvalidStatus),
            connect(url.replace("http", "ws") + "/ws", origin="http://evil.example", proxy=None),
        ):
            pass


def test_while_postgresql_is_away_nobody_is_let_in_and_it_is_said() -> None:
    away = Store("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")
    with serving(away, login="local") as url, browser_like(url) as client:
        assert httpx2.get(f"{url}/api/v1/who", headers={"cookie": "lagloss=x"}).status_code == 503
        page = client.get("/", headers=NAVIGATION | {"cookie": "lagloss=x"})
        assert (page.status_code, "PostgreSQL" in page.text) == (503, True)
        form = {"name": "ann", "password": PASSWORD}
        page = client.post("/login", data=form, headers={"accept": "text/html"})
        assert (page.status_code, "PostgreSQL" in page.text) == (503, True)
        assert "<h1>" in page.text
        assert httpx2.get(f"{url}/healthz", headers={"cookie": "lagloss=x"}).status_code == 200
    away.close()


def definition(name: str, team: str) -> Definition:
    text = f"{{apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {name}, labels: {{team: {team}}}}}, spec: "
    return parse_definition(text + "{nodes: [{name: a, to: [b]}, {name: b}]}}")


def test_teams_of_a_local_user_follow_their_groups_within_seconds(store: Store, tmp_path: Path) -> None:
    store.apply(definition("red-orders", "red"))
    store.apply(definition("blue-salaries", "blue"))
    file = tmp_path / "access.yaml"
    file.write_text(ACCESS)

    def sees(client: httpx2.Client) -> object:
        return client.get("/api/v1/sees").json()

    with serving(store, login="local", access_file=file) as url, browser_like(url) as ann, browser_like(url) as olga:
        refused = log_in(ann)
        assert (refused.status_code, "ann is not in a team with access" in refused.text) == (403, True)
        assert ann.cookies == {}
        users.set_groups(store, "ann", ["red-ops"])
        assert log_in(ann).status_code == 303
        assert sees(ann) == ["red-orders"]
        assert ann.get("/api/v1/who").json() == {"name": "ann", "role": "operator"}
        assert httpx2.get(f"{url}/api/v1/sees", headers=basic("ann", PASSWORD)).json() == ["red-orders"]
        users.set_groups(store, "ann", ["red", "blue"])
        until(lambda: sees(ann) == ["blue-salaries", "red-orders"], "the new groups")
        store.apply(definition("red-orders", "green"))
        until(lambda: sees(ann) == ["blue-salaries"], "the new label")
        users.set_groups(store, "ann", [])
        until(lambda: ann.get("/api/v1/sees").status_code == 403, "the member without a team to be refused")
        assert "Ask an operator" in ann.get("/", headers=NAVIGATION).text
        log_in(olga, "olga")
        assert sees(olga) is None
    store.delete("red-orders")
    store.delete("blue-salaries")


def test_logging_in_and_out_is_in_the_trail_with_the_address_that_a_trusted_proxy_names(url: str, store: Store) -> None:
    with browser_like(url) as client:
        client.headers["x-forwarded-for"] = "198.51.100.7"
        log_in(client)
        log_in(client, "olga")
        client.post("/logout")
        log_in(client, "ann", "a wrong password")
    asked = select(audit_table).where(audit_table.c.address == "198.51.100.7").order_by(audit_table.c.id)
    with store.engine.connect() as connection:
        found = connection.execute(asked).all()
    assert [(row.actor, row.known_by, row.action, row.object) for row in found] == [
        ("ann", "local", "session.begin", "ann"),
        ("olga", "local", "session.begin", "olga"),
        ("ann", "local", "session.end", "ann"),
        ("olga", "local", "session.end", "olga"),
    ]


def test_a_proxy_is_believed_and_nobody_else(store: Store) -> None:
    proxy = {"login": "proxy", "login_operators": "sre", "login_viewers": "staff"}
    with serving(store, **proxy, proxy_trusted="127.0.0.0/8") as url:
        told = {"x-forwarded-user": "Jürgen".encode(), "x-forwarded-groups": b"x, sre"}
        assert httpx2.get(f"{url}/api/v1/who", headers=told).json() == {"name": "Jürgen", "role": "operator"}
        told = {"x-forwarded-user": b"ann", "x-forwarded-groups": b"staff"}
        assert httpx2.get(f"{url}/api/v1/who", headers=told).json() == {"name": "ann", "role": "viewer"}
        assert httpx2.get(f"{url}/api/v1/who", headers={"x-forwarded-user": "ann"}).status_code == 403
        assert httpx2.get(f"{url}/api/v1/who", headers={"x-forwarded-groups": "sre"}).status_code == 401
        twice = [("x-forwarded-user", "ann"), ("x-forwarded-user", "root"), ("x-forwarded-groups", "sre")]
        assert httpx2.get(f"{url}/api/v1/who", headers=twice).status_code == 403
        page = httpx2.get(f"{url}/", headers=NAVIGATION)
        assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert httpx2.get(f"{url}/healthz").json() == {"status": "ok"}
    with serving(store, **proxy, proxy_trusted="10.0.0.0/8") as url:
        told = {"x-forwarded-user": b"ann", "x-forwarded-groups": b"sre", "x-forwarded-for": b"10.0.0.1"}
        assert httpx2.get(f"{url}/api/v1/who", headers=told).status_code == 403
        assert httpx2.get(f"{url}/healthz").json() == {"status": "ok"}
