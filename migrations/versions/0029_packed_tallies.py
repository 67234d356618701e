"""tallies: sketches and ranges as their reports have them, a fifth of the bytes"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0029"
down_revision = "0028"

_VARINT = """
CREATE FUNCTION pg_temp.varint(value bigint) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    rest numeric := CASE WHEN value < 0 THEN -2 * value::numeric - 1 ELSE 2 * value::numeric END;
    packed bytea := '';
BEGIN
    WHILE rest >= 128 LOOP
        packed := packed || set_byte('\\x00', 0, 128 + mod(rest, 128)::int);
        rest := div(rest, 128);
    END LOOP;
    RETURN packed || set_byte('\\x00', 0, rest::int);
END $$
"""
_BINS = """
CREATE FUNCTION pg_temp.bins(sketch jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(
        string_agg(pg_temp.varint(key::text::bigint) || pg_temp.varint(count::text::bigint), '' ORDER BY place), '')
    FROM ROWS FROM (jsonb_array_elements(sketch->0), jsonb_array_elements(sketch->1))
        WITH ORDINALITY AS bin(key, count, place)
$$
"""
_RANGES = """
CREATE FUNCTION pg_temp.ranges(ranges jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(string_agg(pg_temp.varint((range->>0)::bigint) || pg_temp.varint((range->>1)::bigint)
        || pg_temp.varint((range->>2)::bigint), '' ORDER BY place), '')
    FROM jsonb_array_elements(ranges) WITH ORDINALITY AS found(range, place)
$$
"""


_NUMBERS = """
CREATE FUNCTION pg_temp.numbers(packed bytea) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found bigint[] := '{}';
    value numeric := 0;
    weight numeric := 1;
    byte int;
BEGIN
    FOR at IN 0 .. length(packed) - 1 LOOP
        byte := get_byte(packed, at);
        value := value + (byte & 127) * weight;
        weight := weight * 128;
        IF byte < 128 THEN
            found := found || (CASE WHEN mod(value, 2) = 0 THEN div(value, 2) ELSE -div(value, 2) - 1 END)::bigint;
            value := 0;
            weight := 1;
        END IF;
    END LOOP;
    RETURN found;
END $$
"""
_SKETCH_AS_JSON = """
CREATE FUNCTION pg_temp.sketch_as_json(bins bytea) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_array(
        coalesce(jsonb_agg(number ORDER BY place) FILTER (WHERE place % 2 = 1), '[]'),
        coalesce(jsonb_agg(number ORDER BY place) FILTER (WHERE place % 2 = 0), '[]'))
    FROM unnest(pg_temp.numbers(bins)) WITH ORDINALITY AS found(number, place)
$$
"""
_RANGES_AS_JSON = """
CREATE FUNCTION pg_temp.ranges_as_json(ranges bytea) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_agg(range ORDER BY first), '[]') FROM (
        SELECT min(place) AS first, jsonb_agg(number ORDER BY place) AS range
        FROM unnest(pg_temp.numbers(ranges)) WITH ORDINALITY AS found(number, place) GROUP BY (place - 1) / 3
    ) triples
$$
"""


def _change(column: str, by: str, comment: str, of: type[sa.types.TypeEngine[Any]], to: Any) -> None:
    op.alter_column(
        "tally",
        column,
        existing_type=of(),
        type_=to(),
        existing_nullable=False,
        comment=comment,
        postgresql_using=f"pg_temp.{by}({column})",
    )


def upgrade() -> None:
    lowest = sa.Column("lowest_bin", sa.Integer(), comment="key of the first bin; null: there are no lags")
    op.add_column("tally", lowest)
    op.execute("UPDATE tally SET lowest_bin = (sketch->0->>0)::int")
    for function in (_VARINT, _BINS, _RANGES):
        op.execute(function)
    _change("sketch", "bins", "key and count of each bin, as varints", postgresql.JSONB, sa.LargeBinary)
    _change("ranges", "ranges", "partition, first and last of each, as varints", postgresql.JSONB, sa.LargeBinary)
    for table in ("emitter", "progress"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 45)")


def downgrade() -> None:
    for function in (_NUMBERS, _SKETCH_AS_JSON, _RANGES_AS_JSON):
        op.execute(function)
    _change("sketch", "sketch_as_json", "[keys, counts]", sa.LargeBinary, postgresql.JSONB)
    _change("ranges", "ranges_as_json", "[[partition, first, last], ...]", sa.LargeBinary, postgresql.JSONB)
    op.drop_column("tally", "lowest_bin")
    for table in ("emitter", "progress"):
        op.execute(f"ALTER TABLE {table} RESET (fillfactor)")
