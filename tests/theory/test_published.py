"""The papers' labels and the true epsilons: the numbers of the privacy notes, within two percent."""

from __future__ import annotations

import json

import pytest

from tacit.errors import RequestError
from tacit.privacy import epsilon, events
from tacit.theory.published import (
    PAPERS,
    Row,
    attained_with_replacement,
    calculate,
    fed_spa,
    isrl_dp,
    norm_fedavg,
    paper,
    soteriafl,
    true_epsilons,
)
from tacit.theory.published.schemes import (
    POISSON_ADD_REMOVE,
    POISSON_REPLACE_ONE,
    WITH_REPLACEMENT,
    WITH_REPLACEMENT_ATTAINED,
    WITHOUT_REPLACEMENT,
)

SOTERIAFL = [
    ("a9a", 1, 42.6, 42.6, 200, 202),
    ("a9a", 5, 25, 26, 144, 169),
    ("a9a", 10, 27, 30, 172, 206),
    ("MNIST network", 1, 0.24, 0.51, 0.85, 0.865),
    ("MNIST network", 2, 0.65, 1.2, 3.6, 4.07),
    ("MNIST network", 4, 2.2, 3.2, 18.6, 22.2),
    ("MNIST network", 8, 9.8, 12, 92, 104),
    ("MNIST network", 16, 44, 53, 383, 413),
]


@pytest.fixture(scope="module")
def soteriafl_rows() -> tuple[Row, ...]:
    return soteriafl.table()


@pytest.mark.parametrize(("setting", "label", "removed", "replaced", "without", "with_"), SOTERIAFL)
def test_soteriafl(
    setting: str,
    label: float,
    removed: float,
    replaced: float,
    without: float,
    with_: float,
    soteriafl_rows: tuple[Row, ...],
) -> None:
    (row,) = [r for r in soteriafl_rows if (r.setting, r.label, r.remark) == (setting, label, "")]
    assert row.true == pytest.approx(
        {
            POISSON_ADD_REMOVE: removed,
            POISSON_REPLACE_ONE: replaced,
            WITHOUT_REPLACEMENT: without,
            WITH_REPLACEMENT: with_,
        },
        rel=0.02,
    )
    assert row.factors[soteriafl.CONDITION] > 14


def test_soteriafl_full_batches_need_less(soteriafl_rows: tuple[Row, ...]) -> None:
    shares = {
        r.label: 1 / r.factors[soteriafl.NOISE] for r in soteriafl_rows if r.setting == "a9a" and not r.remark
    }
    assert shares == pytest.approx({1: 0.57, 5: 0.76, 10: 0.89}, abs=0.01)


def test_soteriafl_svrg_is_charged_for_both_parts_at_once(soteriafl_rows: tuple[Row, ...]) -> None:
    (row,) = [r for r in soteriafl_rows if r.remark == "soteriafl-svrg"]
    assert row.true == pytest.approx({POISSON_ADD_REMOVE: 0.21, POISSON_REPLACE_ONE: 0.30}, rel=0.02)
    with pytest.raises(RequestError, match="must draw batches"):
        soteriafl.row("", epsilon=1.0, delta=1e-3, records=10, batch=2, rounds=2, algorithm="soteriafl-gd")


def _experiment(name: str, label: float) -> Row:
    (one,) = [e for e in isrl_dp.EXPERIMENTS if e.name == name]
    return isrl_dp.row(
        name, epsilon=label, delta=one.records**-2.0, records=one.records, batch=one.batch, rounds=one.rounds
    )


def test_isrl_dp_on_mnist() -> None:
    row = _experiment("MNIST", 6.0)
    assert row.true[WITH_REPLACEMENT_ATTAINED] == pytest.approx(8.1, rel=0.02)
    assert row.true[WITH_REPLACEMENT] == pytest.approx(8.5, rel=0.02)
    assert row.true[POISSON_ADD_REMOVE] < 6
    assert _experiment("MNIST", 3.0).true[WITH_REPLACEMENT_ATTAINED] < 3


@pytest.mark.parametrize(("name", "label"), [("MNIST", 6.0), ("insurance", 3.0), ("obesity", 9.0)])
def test_isrl_dp_labels_that_are_false(name: str, label: float) -> None:
    row = _experiment(name, label)
    assert row.true[WITH_REPLACEMENT_ATTAINED] > label > row.true[POISSON_ADD_REMOVE]


def test_isrl_dp_with_the_printed_batch_is_false_earlier() -> None:
    printed = isrl_dp.row("", epsilon=1.5, delta=1238**-2.0, records=1238, batch=128, rounds=35)
    assert printed.true[WITH_REPLACEMENT_ATTAINED] > 1.5
    assert _experiment("MNIST", 1.5).true[WITH_REPLACEMENT_ATTAINED] < 1.5


def test_isrl_dp_local_sgd() -> None:
    settings = {"delta": 1238**-2.0, "records": 1238, "local_steps": 443, "rounds": 35}
    row = isrl_dp.local_row("", epsilon=6.0, **settings)  # type: ignore[arg-type]
    assert row.true[WITH_REPLACEMENT_ATTAINED] == _experiment("MNIST", 6.0).true[WITH_REPLACEMENT_ATTAINED] > 6
    assert row.true[WITH_REPLACEMENT] > row.true[WITH_REPLACEMENT_ATTAINED]
    assert row.rounds == 443 * 35


def test_isrl_dp_theorem_is_safe_and_wasteful() -> None:
    for label, excess in ((0.125, 36.5), (3.0, 25.9)):
        row = isrl_dp.theorem_row("", epsilon=label, delta=107**-2.0, records=107, rounds=35)
        assert max(row.true.values()) < label
        assert row.factors[isrl_dp.NOISE] == pytest.approx(excess, rel=0.02)


def test_fed_spa_needs_less_noise_than_its_theorem() -> None:
    printed, corrected = (r for r in fed_spa.table() if r.setting == "MNIST")
    assert printed.factors[fed_spa.NOISE] == pytest.approx(2.2, abs=0.06)
    assert corrected.noise_multiplier == pytest.approx(printed.noise_multiplier * 2**0.5)
    for row in (printed, corrected):
        assert row.factors[fed_spa.WANTED] > row.factors[fed_spa.ALLOWED]
        assert max(row.true.values()) < row.label


def test_fed_spa_theorem_solves_its_own_formula() -> None:
    settings = {"epsilon": 1.0, "delta": 1e-3}
    noise = fed_spa.theorem_1_noise_multiplier(**settings, records=600, batch=10, steps=1500)
    alpha = fed_spa.best_alpha(**settings)

    def formula(order: float) -> float:
        return 7 * (10 / 600) ** 2 * 1500 * order / noise**2 + 6.907755 / (order - 1)

    assert formula(alpha) == pytest.approx(1.0, rel=1e-6)
    assert min(formula(alpha * 0.9), formula(alpha * 1.1)) > 1
    allowed = fed_spa.largest_alpha(3.0, 0.001)
    assert allowed == pytest.approx(1 + 3.0 * fed_spa.math.log(1 / (0.001 * allowed * 5.5)), rel=1e-6)


def test_norm_fedavg_without_secrecy() -> None:
    rows = [r for r in norm_fedavg.table() if r.setting != "synthetic"]
    for row in rows:
        assert row.true[norm_fedavg.SECRET] == pytest.approx(row.label, rel=0.005)
    known = [r.true[norm_fedavg.KNOWN] for r in rows if r.label == 2]
    assert min(known) == pytest.approx(5.0, rel=0.02)
    assert max(known) == pytest.approx(5.2, rel=0.02)
    single = [r.true[norm_fedavg.MESSAGE] for r in rows]
    assert min(single) == pytest.approx(37, rel=0.02)
    assert max(single) == pytest.approx(630, rel=0.02)


def test_what_is_attained_is_below_what_is_proved() -> None:
    for noise in (1.0, 3.0, 10.0):
        mechanism = {"records": 100, "batch": 20, "rounds": 10, "noise_multiplier": noise, "delta": 1e-4}
        attained = attained_with_replacement(**mechanism)  # type: ignore[arg-type]
        assert 0 < attained <= true_epsilons(**mechanism)[WITH_REPLACEMENT]  # type: ignore[arg-type]


def test_what_is_attained_with_one_draw_is_attained_without_replacement() -> None:
    attained = attained_with_replacement(records=50, batch=1, rounds=5, noise_multiplier=1.0, delta=1e-4)
    coin = events.repeated(events.poisson(1 / 50, 0.5), 5)
    assert attained == pytest.approx(epsilon(coin, 1e-4, "add-remove"), rel=0.006)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PAPERS)
def test_calculators_take_any_numbers(name: str) -> None:
    row = calculate(name, epsilon=2.0, delta=1e-4, records=100, batch=20, rounds=10)
    assert row.label == 2.0
    assert row.noise_multiplier > 0
    assert all(value > 0 for value in row.true.values())
    assert json.loads(json.dumps(row.to_dict()))["records"] == 100
    assert "(" in paper(name).title


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"delta": 0.0}, "delta must be"),
        ({"records": 0}, "records must be"),
        ({"batch": 0}, "must be"),
        ({"batch": 101}, "must be"),
        ({"rounds": -1}, "rounds must be|steps must be"),
    ],
)
@pytest.mark.parametrize("name", PAPERS)
def test_calculators_refuse_wrong_numbers(name: str, change: dict[str, float], message: str) -> None:
    numbers = {"epsilon": 2.0, "delta": 1e-4, "records": 100, "batch": 20, "rounds": 10, **change}
    with pytest.raises(RequestError, match=message):
        calculate(name, **numbers)  # type: ignore[arg-type]


def test_papers_and_steps_are_checked() -> None:
    with pytest.raises(RequestError, match="did you mean 'soteriafl'"):
        paper("soteria-fl")
    with pytest.raises(RequestError, match="local_steps is for fed-spa"):
        calculate("isrl-dp", epsilon=1.0, delta=1e-3, records=10, batch=2, rounds=3, local_steps=2)
    steps = calculate("fed-spa", epsilon=1.0, delta=1e-3, records=100, batch=2, rounds=3, local_steps=5)
    assert steps.rounds == 15


@pytest.mark.slow
def test_the_whole_table_of_isrl_dp() -> None:
    rows = isrl_dp.table()
    assert len(rows) == 6 * 3 + 5 + 6 + 5
    for row in rows:
        if row.remark != "noise of Theorem D.1":
            assert row.true[WITH_REPLACEMENT_ATTAINED] <= row.true[WITH_REPLACEMENT]
    false = {(r.setting, r.label) for r in rows if not r.remark and r.true[WITH_REPLACEMENT_ATTAINED] > r.label}
    assert false == {
        ("MNIST", 6.0), ("MNIST", 12.0), ("MNIST", 18.0), ("insurance", 2.0), ("insurance", 3.0),
        ("obesity", 6.0), ("obesity", 9.0),
    }  # fmt: skip
