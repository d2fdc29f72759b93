"""T1 in Flower's simulation, whose clients compute in Ray processes.

A round's time is CPU time, summed over this process and all its children. Between two rounds, while Flower's
processes wait, tacit takes its turn, so that a ratio is measured under the same load.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.bench.measure import Turn
from tacit.federation import Federation

MessageOf = Callable[[Tensor, Tensor, float], Tensor]
"""Maps a client's records, targets and noise deviation to its message."""


def flower_turns(
    federation: Federation,
    cohort: int,
    message_of: MessageOf,
    noise_std: float,
    tacit: Callable[[], object],
    repeats: int,
) -> list[Turn]:
    """Alternates rounds of tacit and of Flower, after a warm-up round."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    each = int(federation.sizes[0])
    dim = len(message_of(federation.features[:each], federation.targets[:each], 0.0))
    turns: list[Turn] = []

    class Timed(FedAvg):  # type: ignore[misc]  # an optional package, which mypy does not see
        def configure_train(self, *args: Any) -> Any:
            turns.append({"tacit": _rounds_of_tacit(tacit)})
            self.began = _processor_seconds(), time.perf_counter()
            return super().configure_train(*args)

        def aggregate_train(self, *args: Any) -> Any:
            result = super().aggregate_train(*args)
            turns[-1]["Flower"] = _processor_seconds() - self.began[0], time.perf_counter() - self.began[1]
            return result

    with tempfile.TemporaryDirectory() as directory:
        for name in ("features", "targets"):
            np.save(Path(directory, f"{name}.npy"), getattr(federation, name).numpy())

        def train(message: Message, context: Context) -> Message:
            torch.set_num_threads(1)
            start = each * int(context.node_config["partition-id"])
            own = [torch.from_numpy(np.array(part[start : start + each])) for part in _records(directory)]
            arrays = ArrayRecord([message_of(own[0], own[1], noise_std).numpy()])
            content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": each})}
            return Message(content=RecordDict(content), reply_to=message)

        def main(grid: Grid, context: Context) -> None:
            share = cohort / federation.clients
            strategy = Timed(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=federation.clients)
            zero = ArrayRecord([np.zeros(dim, dtype=np.float32)])
            strategy.start(grid=grid, initial_arrays=zero, num_rounds=repeats + 1)

        clients, server = ClientApp(), ServerApp()
        clients.train()(train)
        server.main()(main)
        _run(server, clients, federation.clients)
    return turns[1:]


def _rounds_of_tacit(tacit: Callable[[], object], rounds: int = 5) -> tuple[float, float]:
    """CPU seconds of this thread alone, because other threads of this process belong to Flower."""
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(rounds):
        tacit()
    return (time.thread_time() - cpu) / rounds, (time.perf_counter() - wall) / rounds


def _run(server: Any, clients: Any, nodes: int) -> None:
    from flwr.simulation import run_simulation

    for name in ("flwr", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    one_each = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app=server, client_app=clients, num_supernodes=nodes, backend_config=one_each)


@lru_cache(maxsize=1)
def _records(directory: str) -> tuple[Any, Any]:
    features, targets = (
        np.load(Path(directory, f"{name}.npy"), mmap_mode="r") for name in ("features", "targets")
    )
    return features, targets


def _processor_seconds() -> float:
    """CPU seconds of this process and all its children, living or dead."""
    import psutil

    spent = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return spent
