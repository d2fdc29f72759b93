"""Answers on disk: found again for the very same question, never trusted further than that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.privacy.accountant import cache as answers
from tacit.privacy.accountant import calibrate
from tacit.privacy.accountant.accounting import epsilon
from tacit.privacy.events import gaussian, poisson, repeated


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(answers.ENVIRONMENT, str(tmp_path))
    calibrate.forget()
    return tmp_path


def _event(z: float) -> object:
    return repeated(poisson(0.1, z), 50)


def _ask(target: float = 2.0) -> float:
    calibrate.forget()
    return calibrate.calibrate_noise(_event, epsilon=target, delta=1e-5)  # type: ignore[arg-type]


def _files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def test_the_second_time_nothing_is_computed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = _ask()
    assert [path.suffix for path in _files(place)] == [".json"]
    monkeypatch.setattr(calibrate, "_least_noise", lambda *_: pytest.fail("was computed again"))
    assert _ask() == noise
    assert epsilon(_event(noise), 1e-5) <= 2.0  # type: ignore[arg-type]


def test_another_question_has_another_answer(place: Path) -> None:
    first = _ask()
    assert _ask(4.0) < first
    calibrate.forget()
    assert calibrate.calibrate_noise(lambda z: repeated(gaussian(z), 50), epsilon=2.0, delta=1e-5) > first
    assert len(_files(place)) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: "",
        lambda kept: "{",
        lambda kept: "[]",
        lambda kept: json.dumps({**kept, "question": "another"}),
        lambda kept: json.dumps({**kept, "answer": {"noise": 0.1, "epsilon": 9.0}}),
        lambda kept: json.dumps({**kept, "answer": {"noise": 0.1}}),
        lambda kept: json.dumps({**kept, "answer": {"noise": -1.0, "epsilon": 1.0}}),
        lambda kept: json.dumps({**kept, "answer": {"noise": float("nan"), "epsilon": 1.0}}),
        lambda kept: json.dumps({**kept, "answer": "much"}),
        lambda kept: "\udcff".encode("utf-8", "surrogateescape"),
    ],
)
def test_what_is_damaged_is_computed_again(damage: object, place: Path) -> None:
    noise = _ask()
    (file,) = _files(place)
    wrong = damage(json.loads(file.read_text()))  # type: ignore[operator]
    file.write_bytes(wrong if isinstance(wrong, bytes) else wrong.encode())
    assert _ask() == noise
    assert json.loads(file.read_text())["answer"]["noise"] == noise


def test_other_code_does_not_see_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers.keep("q", {"x": 1.0})
    assert answers.look_up("q") == {"x": 1.0}
    monkeypatch.setattr(answers, "_code", lambda: "of another version")
    assert answers.look_up("q") is None


def test_without_a_place_nothing_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(answers.ENVIRONMENT, "")
    _ask()
    assert _files(place) == []
    (place / "file").write_text("not a directory")
    monkeypatch.setenv(answers.ENVIRONMENT, str(place / "file"))
    assert _ask() > 0
