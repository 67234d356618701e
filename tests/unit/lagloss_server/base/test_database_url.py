"""Addresses of PostgreSQL: what libpq reads, and what is shown of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from lagloss.errors import BadSetting
from lagloss_server.base.database_url import SECRET_OPTIONS, as_url, connection_options, without_password

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
hosts = st.sampled_from(["db", "db.example.com", "10.0.0.1", "::1", "/var/run/postgresql", "a,b,c"])
options = st.fixed_dictionaries(
    {"host": hosts},
    optional={
        "port": st.sampled_from(["5432", "6543"]),
        "user": texts,
        "dbname": texts,
        "password": texts.map(lambda text: f"secret-{text}"),
        "sslmode": st.just("verify-full"),
        "sslrootcert": st.just("/etc/a b/ca.pem"),
        "sslpassword": st.just("secret-of-key"),
        "passfile": texts,
    },
)


@given(options)
def test_what_is_shown_is_the_same_address_without_its_secrets(given: dict[str, str]) -> None:
    text = make_conninfo(**given)
    shown = without_password(text)
    assert "secret" not in shown
    wanted = {name: value for name, value in connection_options(text).items() if name not in SECRET_OPTIONS}
    assert connection_options(shown) == wanted


@given(options)
def test_any_address_is_a_url_with_its_secrets(given: dict[str, str]) -> None:
    text = make_conninfo(**given)
    url = as_url(text)
    assert url.startswith("postgresql://")
    assert connection_options(url) == connection_options(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://lagloss:hunter2@127.0.0.1:5432/lagloss", "postgresql://lagloss@127.0.0.1:5432/lagloss"),
        ("postgres://u:p%40x@h1:1,h2:2/db?sslmode=require", "postgresql://u@h1:1,h2:2/db?sslmode=require"),
        ("postgresql://h/db?password=hunter2&user=u", "postgresql://u@h/db"),
        ("http://u:hunter2@h", "***"),
    ],
)
def test_a_password_is_found_wherever_it_stands(url: str, shown: str) -> None:
    assert (
        without_password(url)
        .replace("&target_session_attrs=read-write", "")
        .replace("target_session_attrs=read-write&", "")
        == shown
    )


def test_what_is_no_address_is_refused_without_its_password() -> None:
    with pytest.raises(BadSetting, match=r"LAGLOSS_DATABASE_URL is neither") as refused:
        connection_options("http://u:hunter2@h")
    assert "hunter2" not in str(refused.value)


def test_of_several_hosts_one_that_can_be_written_to_is_wanted() -> None:
    assert connection_options("postgresql://a,b/db")["target_session_attrs"] == "read-write"
    assert connection_options("postgresql://a,b/db?target_session_attrs=any")["target_session_attrs"] == "any"
    assert "target_session_attrs" not in connection_options("postgresql://a/db")
    assert connection_options("postgresql://a,b/db?port=5433")["port"] == "5433,5433"
