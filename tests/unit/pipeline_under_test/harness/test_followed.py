"""A file that is read as it grows gives each line once, wherever a writer was when it was looked at."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from pipeline_under_test.harness.ledger import FollowedFile

PIECES = st.lists(st.text("a\r\n ü", max_size=6).map(str.encode) | st.binary(max_size=3), max_size=12)
"""What is appended between two looks: often less than a line, or less than a character."""


@given(PIECES)
def test_each_line_is_read_once_it_is_whole_wherever_appends_cut_it(pieces: list[bytes]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "lines"
        followed, written, read = FollowedFile(path), b"", list[bytes]()
        assert followed.new_lines() == []
        for piece in pieces:
            with path.open("ab") as file:
                file.write(piece)
            written += piece
            read += followed.new_lines()
            assert read == written.split(b"\n")[:-1]
        assert followed.new_lines() == []
        assert FollowedFile(path).new_lines() == read
