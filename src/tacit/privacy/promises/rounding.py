"""How epsilons and deltas are rounded wherever people read them: promises up, what an audit found down.

A promise that is rounded to the nearest digit may read smaller than it is, and a lower bound larger.
"""

from __future__ import annotations

import decimal

_SLACK = 1e-12
"""Relative slack, so that the last bit of the double 0.3 does not make it 0.301."""

MOST_DIGITS = 6
"""Digits of numbers that somebody has chosen, such as a delta."""


def round_up(value: float, digits: int = 3) -> float:
    """The value rounded up to this many significant digits.

    >>> round_up(0.41231), round_up(2.0), round_up(1234.5)
    (0.413, 2.0, 1240.0)
    """
    return _rounded(value * (1 - _SLACK), digits, decimal.ROUND_CEILING)


def round_down(value: float, digits: int = 3) -> float:
    """The value rounded down to this many significant digits.

    >>> round_down(0.41281), round_down(2.0), round_down(1239.5)
    (0.412, 2.0, 1230.0)
    """
    return _rounded(value * (1 + _SLACK), digits, decimal.ROUND_FLOOR)


def up_to(value: float, digits: int = 3) -> str:
    """A promise as text: an epsilon, or with `MOST_DIGITS` a delta.

    >>> up_to(3.9991), up_to(1 / 3, MOST_DIGITS), up_to(1e-5, MOST_DIGITS)
    ('4', '0.333334', '1e-05')
    """
    return f"{round_up(value, digits):g}"


def at_least(value: float, digits: int = 3) -> str:
    """A lower bound as text: what an audit found, or what is left of a budget.

    >>> at_least(3.9991), at_least(0.0)
    ('3.99', '0')
    """
    return f"{round_down(value, digits):g}"


def _rounded(value: float, digits: int, rounding: str) -> float:
    return float(decimal.Context(prec=digits, rounding=rounding).create_decimal_from_float(value))
