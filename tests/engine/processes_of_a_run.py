"""Runs recipes in 1, 2 and 3 processes that compute together. `test_together.py` starts this in a process.

The processes are forked here instead of started by torchrun, so that PyTorch is imported once.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tacit.engine.execute import execute
from tacit.engine.identity import engine_digest
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.together import Together, joined
from tacit.errors import TacitError

DIGITS = Recipe(clients=31, rounds=4, epsilon=8.0, delta=1e-5, evaluate_every=2)
RECIPES = {
    "shifts": replace(DIGITS, algorithm="soteriafl-svrg", algorithm_settings={"compressor": "rand-k:0.1"}),
    "whole clients": replace(DIGITS, algorithm="dp-normfedavg", cohort=9, adjacency="add-remove"),
    "sums": replace(DIGITS, algorithm="noisy-mb-sgd", trust="sum", weights="records"),
}
LONGER = replace(
    DIGITS, algorithm="soteriafl-saga", rounds=8, checkpoint_every=3, algorithm_settings={"batch": 0.2}
)
SMALL = Recipe(algorithm="soteriafl-sgd", clients=4, rounds=1, algorithm_settings={"batch": 0.2})
REFUSED = {
    "lattice": replace(SMALL, noise="lattice"),
    "past points": replace(SMALL, algorithm="soteriafl-svrg", model="network"),
    "groups": replace(SMALL, client_groups=1),
}


def forked(size: int, work: Callable[[Together], None]) -> list[int]:
    """The exit codes of processes that do this together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(size):
        processes.append(os.fork())
        if processes[-1] == 0:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in names.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="test")
            code = 1
            try:
                with joined() as together:
                    work(together)
                code = 0
            except KeyboardInterrupt:
                code = 130
            except TacitError as error:
                print(f"process {rank}: {error}", flush=True)
                code = 2
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def run_all(out: Path) -> None:
    def all_of_them(together: Together) -> None:
        for name, recipe in RECIPES.items():
            execute(recipe, out / f"{name} {together.size}", together=together)
        if together.size == 1:
            execute(LONGER, out / "longer", together=together)

    def killed(together: Together) -> None:
        def after(round: int, _: object) -> None:
            if round == 5:
                raise KeyboardInterrupt

        execute(LONGER, out / "resumed", together=together, progress=after)

    def resumed(together: Together) -> None:
        execute(LONGER, out / "resumed", together=together, resume=True)
        # A finished run is left as it is.
        execute(LONGER, out / "resumed", together=together, resume=True)

    def refused(together: Together) -> None:
        for name, recipe in REFUSED.items():
            try:
                execute(recipe, out / f"refused {name}", together=together)
            except TacitError as error:
                if together.leads:
                    print(f"{name}: {error}", flush=True)
        execute(replace(SMALL, seed=together.rank), out / "different", together=together)

    for recipe in (*RECIPES.values(), LONGER, SMALL, *REFUSED.values()):
        # The processes inherit what planning has cached.
        make_plan(recipe)
    engine_digest()
    assert [forked(size, all_of_them) for size in (1, 2, 3)] == [[0], [0, 0], [0, 0, 0]]
    codes = forked(3, killed)
    assert (codes[0], set(codes[1:])) == (130, {2}), codes
    assert forked(2, resumed) == [0, 0]
    assert forked(2, refused) == [2, 2]
