"""Records of the log of commits."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taps.commit_log import Commit, Polled, PolledCommits, parse_commit, partition_of_group
from taps.plan import Mark


def key(group: str, topic: str, partition: int, version: int = 1) -> bytes:
    raw = struct.pack(">h", version)
    for text in (group, topic):
        raw += struct.pack(">h", len(text.encode())) + text.encode()
    return raw + struct.pack(">i", partition)


VALUES = {
    0: struct.pack(">hqh", 0, 42, 1) + b"m" + struct.pack(">q", 1_700),
    1: struct.pack(">hqh", 1, 42, 0) + struct.pack(">qq", 1_700, 9),
    3: struct.pack(">hqih", 3, 42, 7, 2) + b"mm" + struct.pack(">q", 1_700),
    4: struct.pack(">hqi", 4, 42, 7) + b"\x03mm" + struct.pack(">q", 1_700) + b"\x00",
}


@pytest.mark.parametrize("version", VALUES)
def test_a_commit_is_read_in_every_version(version: int) -> None:
    found = parse_commit(key("grüppe", "orders", 3), VALUES[version])
    assert found == Commit("grüppe", "orders", 3, 42, 1_700)


@given(st.binary(max_size=60) | st.none(), st.binary(max_size=60) | st.none())
def test_other_bytes_are_no_commit_and_no_error(raw_key: bytes | None, value: bytes | None) -> None:
    parse_commit(raw_key, value)


def test_a_deletion_and_a_group_s_metadata_are_no_commits() -> None:
    assert parse_commit(key("g", "t", 0), None) is None
    assert parse_commit(struct.pack(">hh", 2, 1) + b"g", VALUES[3]) is None


@pytest.mark.parametrize("group", ["enrich", "connect-warehouse-sink", "", "grüppe", "polygenelubricants"])
def test_the_partition_of_a_group_is_by_java_s_hash(group: str) -> None:
    java = 0
    for char in group:
        java = (31 * java + ord(char)) % (1 << 32)
    java -= (1 << 32) * (java >= 1 << 31)
    assert partition_of_group(group, 50) == (0 if java == -(1 << 31) else abs(java) % 50)


def test_a_look_that_is_older_than_the_answer_about_commits_does_not_show_what_they_are_of() -> None:
    class Groups:
        def newest(self, group: str, topic: str, after: float) -> Polled:
            return Polled(1_000, 5.0, 6.5, {0: Mark(120, 1_000)})

    commits = PolledCommits(Groups(), "g", "orders").read({}, 0)  # type: ignore[arg-type]
    assert (commits.topic_after, commits.marks, commits.is_polled) == (6.5, {0: [Mark(120, 1_000)]}, True)
