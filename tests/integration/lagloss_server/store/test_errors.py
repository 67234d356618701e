"""What the text of a failed statement says: never a value of the row, neither sent nor stored."""

from __future__ import annotations

import traceback

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from lagloss_server.store.engine import engine_for

TABLE = "CREATE TEMPORARY TABLE person (name text PRIMARY KEY, hash bytea NOT NULL, age int CHECK (age > 0), of jsonb)"
GOOD = {"name": "s3cr3t", "hash": b"s3cr3t", "age": "7", "of": "{}"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "duplicate key value violates unique constraint"),
        ({"name": "other", "hash": None}, 'null value in column "hash"'),
        ({"name": "other", "age": "-7654321"}, "violates check constraint"),
        ({"name": "other", "age": "s3cr3t"}, "invalid input syntax for type integer"),
        ({"name": "other", "age": 'a "s3cr3t" b'}, "invalid input syntax for type integer"),
        ({"name": "other", "age": "7654321" * 9}, "out of range for type integer"),
        ({"name": "other", "of": '{"s3cr3t": s3cr3t}'}, "invalid input syntax for type json"),
        ({"name": "other", "of": '"\\u0000 s3cr3t"'}, "unsupported Unicode escape sequence"),
        ({"name": "s3cr3t\0"}, "cannot contain NUL"),
    ],
)
def test_no_value_is_in_the_text_of_an_error(database_url: str, values: dict[str, object], says: str) -> None:
    engine = engine_for(database_url)
    row = text(
        "INSERT INTO person VALUES (:name, :hash, CAST(CAST(:age AS text) AS int), CAST(CAST(:of AS text) AS jsonb))"
    )
    try:
        with engine.connect() as connection:
            connection.execute(text(TABLE))
            connection.execute(row, GOOD)
            with pytest.raises(DBAPIError) as raised:
                connection.execute(row, {**GOOD, **values})
    finally:
        engine.dispose()
    for shown in (str(raised.value), repr(raised.value), "".join(traceback.format_exception(raised.value))):
        assert says in shown
        for value in ("s3cr3t", "7654321", b"s3cr3t".hex()):
            assert value not in shown
