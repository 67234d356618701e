"""`lagloss doctor` says what a tapped table lacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.ops.checks import Check
from lagloss_server.ops.table_checks import check_tables
from tests.support.tapped_tables import TappedDatabase, tapped_database


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TappedDatabase]:
    with tapped_database(database_url, monkeypatch) as database:
        yield database


def check(spec: TableSpec) -> Check:
    taps = [TableTap("p", node, spec, ("out",), first=False) for node in "ab"]
    (found,) = check_tables(taps)
    assert found.name == f"table {spec.table} of shop"
    return found


def test_a_table_that_has_all_it_needs_is_well(shop: TappedDatabase) -> None:
    found = check(shop.table("sequence"))
    assert (found.verdict, found.finding) == ("ok", "read by n, a sequence")


def test_the_missing_index_is_named(shop: TappedDatabase) -> None:
    spec = shop.table("clock")
    shop.owner.execute("DROP INDEX orders_n_idx")
    found = check(spec)
    assert found.verdict == "warn"
    assert found.what_to_do == 'CREATE INDEX CONCURRENTLY ON "public"."orders" ("n")'
    shop.owner.execute("CREATE INDEX ON orders (n) WHERE state = 'paid'")
    assert check(spec).verdict == "warn"


def test_an_index_on_the_id_is_wanted_where_rows_are_compared_again(shop: TappedDatabase) -> None:
    spec = shop.table("xid8")
    assert check(spec).verdict == "ok"
    compared = spec.model_copy(update={"recheck": 86_400_000})
    assert check(compared).what_to_do == 'CREATE INDEX CONCURRENTLY ON "public"."orders" ("id")'
    shop.owner.execute("CREATE INDEX ON orders (id)")
    assert check(compared).verdict == "ok"


def test_a_missing_right_and_a_missing_database_are_failures(
    shop: TappedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = shop.table("xid8")
    shop.owner.execute(f"REVOKE SELECT ON orders FROM {shop.role}")  # type: ignore[call-overload]
    assert (check(spec).verdict, check(spec).finding) == ("fail", "permission denied for table orders")
    monkeypatch.setenv("LAGLOSS_TABLES_SHOP_URL", "mysql://shop")
    assert "is not a postgresql:// URL" in check(spec).finding
