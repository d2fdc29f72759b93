"""Sentences on a terminal of 80 columns."""

from __future__ import annotations

import pytest

from tacit.cli.say import say, say_of_a_party


def test_sentences_are_folded_and_paths_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/srv/" + "a-long-name/" * 8
    say("word " * 40 + path)
    say_of_a_party("silo-1: " + "word " * 40, err=True)
    told = capsys.readouterr()
    *sentences, last = told.out.splitlines()
    assert max(map(len, sentences)) <= 80
    assert last.split()[-1] == path
    first, *others = told.err.splitlines()
    assert first.startswith("silo-1: ")
    assert others
    assert all(line.startswith("  word") and len(line) <= 80 for line in others)
