"""What two live copies of a silo's folder share, and what not: docs/deploy.md says what that gives away."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.deploy.lying_server import LyingServer

from tacit.deploy.frames import Reply
from tacit.deploy.seam import Code


def _copy(made: Any, site: str) -> Any:
    """A silo that was started from a copy of this one's folder."""
    aside = replace(made, directory=made.directory / "elsewhere")
    shutil.copytree(made.directory / site, aside.directory / site)
    return aside.silo(site)


def _message(made: Any, silo: Any, request: bytes) -> torch.Tensor:
    reply = Reply.decode(silo.step(request), body_limit=2**20)
    assert reply.code is Code.OK
    algorithm = made.job.algorithm
    rows: torch.Tensor = algorithm.uplink.compressor.decode([reply.body], algorithm.length).dense()[0]
    return rows.double()


def test_copies_draw_the_same_records_and_noise_of_their_own(consortium: Callable[..., Any]) -> None:
    """At the same point, their messages differ by two noises, and by nothing else."""
    made = consortium(dim=400, algorithm="noisy-mb-sgd", compressor="leave out")
    silo = made.silo("site-0")
    silo.step(made.request(0))
    other = _copy(made, "site-0")
    difference = _message(made, silo, made.request(1)) - _message(made, other, made.request(1))
    # A chi-square is so far from its degrees of freedom once in a thousand million times.
    squares, numbers = (difference / silo.terms.noise_std).square().sum() / 2, len(difference)
    assert abs(float(squares) - numbers) < 7 * (2 * numbers) ** 0.5


def test_a_copy_that_agrees_to_another_list_opens_no_second_sum(consortium: Callable[..., Any]) -> None:
    """It counts as one of the colluding silos."""
    made = consortium(
        trust="sum", sites=5, quorum=4, colluding=1, algorithm="noisy-mb-sgd", compressor="leave out", rounds=2
    )
    server = LyingServer(made, 2)
    assert all(reply.code is Code.OK for reply in server.masked(0).values())
    copy = _copy(made, "site-1")
    assert server.opens(range(4))
    server.silos[1] = copy
    assert not server.opens([1, 2, 3, 4])
    assert not server.opens(range(5))
