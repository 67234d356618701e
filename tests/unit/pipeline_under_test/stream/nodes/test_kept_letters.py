"""Dead letters on disk: none is lost, whoever dies, and none is somebody's twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.nodes.dlq_spool import MAX_BYTES, KeptLetters, LetterFile, event_of, line_of

NODE = "event-norm"
LETTER = Event("ä\n1", 1_700_000_000_000, b"\0\xff\n", "again", NODE, 2, 'unreadable: "\ud7ff"')

KEEP_AND_WAIT = """
import sys
from pathlib import Path
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.nodes.dlq_spool import KeptLetters
kept = KeptLetters(Path(sys.argv[1]), "event-norm")
kept.keep([Event("of another", 0, b"")])
print("kept", flush=True)
sys.stdin.read()
"""


def ids(file: LetterFile) -> list[str]:
    return [event_of(line).id for line in file.lines]


def left(kept: KeptLetters) -> list[list[str]]:
    """What there is to send, file by file; all of it stays."""
    found = []
    for file in kept.unsent():
        found.append(ids(file))
        file.settle(file.lines)
    return found


def letters(*names: str) -> list[Event]:
    return [Event(name, 0, b"") for name in names]


def test_a_letter_comes_back_as_it_was() -> None:
    assert event_of(line_of(LETTER)) == LETTER
    assert line_of(LETTER).count(b"\n") == 1


@pytest.mark.parametrize(
    "line", [b"{not json\n", b"[]\n", b"{}\n", b'{"body": 7}\n', b'{"body": "", "colour": "red"}\n']
)
def test_a_damaged_line_is_no_letter(line: bytes) -> None:
    with pytest.raises(ValueError):
        event_of(line)


def test_what_was_kept_is_there_for_the_next_process_in_order_until_it_is_settled(tmp_path: Path) -> None:
    kept = KeptLetters(tmp_path, NODE)
    kept.keep(letters("a", "b"))
    kept.keep(letters("c"))
    kept.let_go()
    (file,) = KeptLetters(tmp_path, NODE).unsent()
    assert ids(file) == ["a", "b", "c"]
    file.settle(file.lines[1:2])
    (file,) = KeptLetters(tmp_path, NODE).unsent()
    assert ids(file) == ["b"]
    file.settle([])
    assert left(kept) == []
    assert list(kept.directory.iterdir()) == []


def test_letters_of_another_node_are_not_its_own(tmp_path: Path) -> None:
    other = KeptLetters(tmp_path, f"{NODE}-shadow")
    other.keep(letters("a"))
    other.let_go()
    assert left(KeptLetters(tmp_path, NODE)) == []


def test_a_process_begins_another_file_for_what_comes_while_it_sends(tmp_path: Path) -> None:
    kept = KeptLetters(tmp_path, NODE)
    kept.keep(letters("a"))
    (file,) = kept.unsent()
    kept.keep(letters("b"))
    file.settle([])
    assert left(kept) == [["b"]]


def test_a_file_that_is_being_sent_is_nobody_elses(tmp_path: Path) -> None:
    kept, other = KeptLetters(tmp_path, NODE), KeptLetters(tmp_path, NODE)
    kept.keep(letters("a"))
    (file,) = kept.unsent()
    assert left(other) == []
    file.settle(file.lines)
    assert left(other) == [["a"]]


def test_what_another_process_keeps_is_its_own_until_it_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KEEP_AND_WAIT, str(tmp_path)]
    mine = KeptLetters(tmp_path, NODE)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"kept\n"
        assert left(mine) == []
        os.kill(other.pid, signal.SIGKILL)
        other.wait(10)
    assert left(mine) == [["of another"]]


def test_a_torn_last_line_was_never_kept_and_goes_with_its_file(tmp_path: Path) -> None:
    kept = KeptLetters(tmp_path, NODE)
    kept.keep(letters("a"))
    kept.let_go()
    (path,) = kept.directory.iterdir()
    with path.open("ab") as file:
        file.write(line_of(LETTER)[:-1])
    (found,) = kept.unsent()
    assert ids(found) == ["a"]
    found.settle([])
    assert not path.exists()


def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    kept = KeptLetters(tmp_path, NODE)
    for name in ("a", "b"):
        kept.keep([Event(name, 0, b"x" * MAX_BYTES)])
    assert left(kept) == [["a"], ["b"]]


def test_a_disk_that_takes_nothing_is_an_error_and_what_comes_after_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptLetters(tmp_path, NODE)
    kept.keep(letters("a"))

    def full(_descriptor: int) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            kept.keep(letters("b"))
    kept.keep(letters("c"))
    assert left(kept)[-1] == ["c"]
