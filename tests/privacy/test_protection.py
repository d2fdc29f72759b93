"""The table of who is protected against whom."""

from __future__ import annotations

import json
import math

import pytest

from tacit.errors import RequestError
from tacit.privacy import Adjacency, Adversary, Guarantee, Unit, epsilon, events
from tacit.privacy.accountant import composition
from tacit.privacy.promises.protection import Protection, protection

RUN = events.repeated(events.poisson(0.1, 6.0), 20)


def table(guarantee: Guarantee, **settings: object) -> dict[tuple[str, str], Protection]:
    return {(row.adversary, row.protected): row for row in protection(guarantee, **settings)}  # type: ignore[arg-type]


def test_each_adversary_has_a_line_and_a_sentence() -> None:
    guarantee = Guarantee((RUN,) * 3, delta=1e-5)
    rows = table(guarantee, records=[40, 40, 40], groups=[2, 5])
    server = "the server and all other parties"
    assert list(rows) == [
        (server, "one record"),
        ("another client", "one record"),
        ("someone who sees only the final model", "one record"),
        (server, "whether a record is used"),
        (server, "2 records together"),
        (server, "5 records together"),
        (server, "all records of a client"),
        ("the client that holds the records", "one record"),
    ]
    same = [row.epsilon for row in list(rows.values())[:3]]
    assert same == [guarantee.epsilon] * 3
    assert rows[server, "one record"].sentence == guarantee.sentence()
    assert "post-processing" in rows["another client", "one record"].sentence
    assert "neither proved nor promised" in rows["someone who sees only the final model", "one record"].sentence
    removed = rows[server, "whether a record is used"]
    assert removed.epsilon == epsilon(RUN, 1e-5, Adjacency.ADD_REMOVE)
    assert removed.adjacency == "add-remove"
    costs = [rows[server, name].epsilon for name in ("one record", "2 records together", "5 records together")]
    assert costs == sorted(costs)
    assert "practically no protection" in rows[server, "all records of a client"].sentence
    assert rows["the client that holds the records", "one record"].epsilon == math.inf


def test_a_sentence_never_understates() -> None:
    guarantee = Guarantee((RUN,), delta=1e-5)
    for row in protection(guarantee, groups=[3])[1:-1]:
        said = float(row.sentence.partition("epsilon = ")[2].partition(" ")[0])
        assert row.epsilon <= said <= 1.02 * row.epsilon


def test_the_worst_client_counts_and_small_clients_have_small_groups() -> None:
    weak = events.repeated(events.poisson(0.1, 3.0), 20)
    rows = table(Guarantee((RUN, weak), delta=1e-5), records=[500, 2], groups=[2, 50])
    server = "the server and all other parties"
    assert (
        rows[server, "2 records together"].epsilon
        > table(Guarantee((RUN,), delta=1e-5), groups=[2])[server, "2 records together"].epsilon
    )
    # The weak client has two records in all, so a group of fifty is in the other one.
    alone = table(Guarantee((RUN,), delta=1e-5), groups=[50])[server, "50 records together"]
    assert rows[server, "50 records together"].epsilon == alone.epsilon


def test_add_remove_promises_are_told_for_replacing() -> None:
    guarantee = Guarantee((RUN,), delta=1e-5, adjacency=Adjacency.ADD_REMOVE)
    row = table(guarantee)["the server and all other parties", "the content of a record"]
    assert row.epsilon == epsilon(RUN, 1e-5)
    assert row.adjacency == "replace-one"


def test_a_promise_about_sums_says_that_it_falls_with_the_sums() -> None:
    guarantee = Guarantee((RUN,), delta=1e-5, unit=Unit.CLIENT, adversary=Adversary.SUM)
    rows = table(guarantee)
    assert rows["the server and all other parties", "one client"].epsilon == math.inf
    assert "Nothing is promised" in rows["the server and all other parties", "one client"].sentence
    assert rows["someone who sees only sums over clients", "one client"].epsilon == guarantee.epsilon
    assert not any("records" in protected for _, protected in rows)


def test_a_promise_about_the_model_is_about_the_model_alone() -> None:
    rows = table(Guarantee((RUN,), delta=1e-5, adversary=Adversary.MODEL), groups=[])
    assert ("another client", "one record") not in rows
    assert rows["someone who sees only the final model", "one record"].epsilon > 0


def test_without_protection_every_line_says_so() -> None:
    rows = protection(Guarantee((events.non_private(),), delta=1e-5), records=[10])
    assert all(row.epsilon == math.inf for row in rows)
    assert all(row.to_dict()["epsilon"] is None for row in rows)
    assert json.loads(json.dumps([row.to_dict() for row in rows]))[0]["delta"] == 1e-5


def test_what_the_accountant_cannot_answer_is_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    guarantee = Guarantee((events.repeated(events.poisson(0.11, 6.0), 20),), delta=1e-5)
    whole = epsilon(guarantee.events[0], 1e-5, Adjacency.ADD_REMOVE)
    monkeypatch.setattr(composition, "_MOST_POINTS", 500)
    rows = table(guarantee, groups=[7])
    assert rows["the server and all other parties", "7 records together"].epsilon == math.inf
    assert rows["the server and all other parties", "whether a record is used"].epsilon == whole


def test_wrong_requests() -> None:
    guarantee = Guarantee((RUN,) * 2, delta=1e-5)
    with pytest.raises(RequestError, match="one number for each of 2 clients"):
        protection(guarantee, records=[3])
    with pytest.raises(RequestError, match="groups must be"):
        protection(guarantee, groups=[1])
