"""Compressors by name: every spelling reads back, every mistake is explained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.compress import Chain, Compressor, Identity, Natural, Qsgd, RandK, parse_compressor
from tacit.errors import RequestError

quantisers = st.one_of(st.builds(Qsgd, st.integers(1, 32767)), st.just(Natural()))
rand_ks = st.one_of(
    st.builds(lambda f: RandK(fraction=f), st.floats(0, 1, exclude_min=True)),
    st.builds(lambda k: RandK(count=k), st.integers(1, 10**9)),
)


@given(st.one_of(quantisers, rand_ks, st.just(Identity()), st.builds(Chain, rand_ks, quantisers)))
def test_parse_inverts_spec(compressor: Compressor) -> None:
    assert parse_compressor(compressor.spec()) == compressor


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("identity", Identity()),
        ("rand-k:0.05", RandK(fraction=0.05)),
        ("rand-k:1e-3", RandK(fraction=0.001)),
        ("rand-k:1.0", RandK(fraction=1.0)),
        ("rand-k:1", RandK(count=1)),
        ("rand-k:128", RandK(count=128)),
        ("qsgd:16", Qsgd(16)),
        ("rand-k:0.05 + natural", Chain(RandK(fraction=0.05), Natural())),
    ],
)
def test_spellings(text: str, expected: Compressor) -> None:
    assert parse_compressor(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rnd-k:0.05", "did you mean 'rand-k'"),
        ("", "unknown compressor ''"),
        ("rand-k", "rand-k needs a fraction or a count"),
        ("rand-k:", "rand-k needs a fraction"),
        ("rand-k:many", "rand-k needs a fraction"),
        ("rand-k:0", "rand-k count"),
        ("rand-k:0.0", "rand-k fraction"),
        ("rand-k:1.5", "rand-k fraction"),
        ("rand-k:-0.5", "rand-k fraction"),
        ("rand-k:-3", "rand-k count"),
        ("rand-k:nan", "rand-k count"),
        ("rand-k:inf", "rand-k count"),
        ("rand-k:" + "9" * 400, "rand-k count"),
        ("qsgd", "qsgd needs a number of levels"),
        ("qsgd:0", "qsgd levels"),
        ("qsgd:2.5", "qsgd levels"),
        ("qsgd:40000", "at most 32767"),
        ("qsgd:" + "9" * 5000, "qsgd levels"),
        ("natural:3", "takes no value"),
        ("identity:", "takes no value"),
        ("qsgd:4+rand-k:3", "rand-k followed by"),
        ("rand-k:3+rand-k:2", "rand-k followed by"),
        ("rand-k:3+identity", "qsgd or natural"),
        ("rand-k:3+qsgd:4+natural", "at most two"),
    ],
)
def test_mistakes(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        parse_compressor(text)


def test_rand_k_needs_exactly_one_setting() -> None:
    for settings in ({}, {"fraction": 0.5, "count": 3}):
        with pytest.raises(RequestError, match="exactly one"):
            RandK(**settings)  # type: ignore[arg-type]


def test_numbers_of_other_types_spell_the_same() -> None:
    assert RandK(fraction=np.float64(0.5)).spec() == "rand-k:0.5"
    assert RandK(fraction=1).spec() == "rand-k:1.0"
    assert RandK(count=np.int64(4)).spec() == "rand-k:4"  # type: ignore[arg-type]
    assert Qsgd(np.int64(4)).spec() == "qsgd:4"  # type: ignore[arg-type]


def test_chains_that_make_no_sense() -> None:
    with pytest.raises(RequestError, match="start with rand-k, not natural"):
        Chain(Natural(), Qsgd(3))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="not identity"):
        Chain(RandK(count=3), Identity())
    with pytest.raises(RequestError, match="not rand-k:2"):
        Chain(RandK(count=3), RandK(count=2))  # type: ignore[arg-type]
