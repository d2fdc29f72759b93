"""How much memory a run takes: chunks keep to the limit, and the summary says what it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.warm import Warm

from tacit.algorithms.soteriafl import soteriafl_sgd
from tacit.bench.cross_device import private_simulation
from tacit.bench.records import made_up_records
from tacit.client.bounds import ClipNorm
from tacit.client.sampling import Poisson
from tacit.compress import RandK
from tacit.engine import checkpoint, simulation
from tacit.engine.checkpoint import Checkpoint
from tacit.engine.history import HistoryRow
from tacit.engine.mapped_memory import mapped_zeros
from tacit.engine.peak_memory import memory_mb, peak_memory_mb
from tacit.engine.plan import plan
from tacit.engine.run import Run
from tacit.engine.simulate import simulate
from tacit.models import softmax_regression
from tacit.privacy import Adjacency, Target


def _measure() -> None:
    """Print how much a run took under a small limit and under a large one, and what it said."""
    federation = made_up_records(3000, 20, overlap=True)
    simulation = private_simulation(federation, 2500)
    planned = plan(simulation.algorithm, federation, rounds=1, privacy=Target(2.0, 1e-5, Adjacency.ADD_REMOVE))
    simulate(planned, evaluate_every=9, memory_limit_bytes=2**22)
    before, found = memory_mb(), []
    assert before is not None
    for limit_mb in (24, 1024):
        taken = simulate(planned, evaluate_every=9, memory_limit_bytes=limit_mb * 2**20)
        found += [taken.peak_memory_mb - before, taken.summary()["peak_memory_mb"]]
    print(json.dumps(found))


@pytest.mark.skipif(memory_mb() is None, reason="the system does not say how much memory a process has")
def test_a_run_keeps_to_its_memory_limit(tmp_path: Path) -> None:
    """Of 2,500 clients at once, the records alone would take 150 MiB."""
    output = tmp_path / "output.txt"
    assert Warm(_measure, output=output).wait() == 0, output.read_text()
    little, peak, much, _ = json.loads(output.read_text())
    # Beside the chunks, the allocator keeps some of what it was given back: 10 to 60 MiB were seen in all.
    assert little < 24 + 60 < much
    assert peak > little
    assert peak_memory_mb() is not None


class KilledError(Exception):
    pass


def _shifted(out: Path | None = None, *, kill_after: int | None = None) -> Run:
    def progress(round: int, row: HistoryRow | None) -> None:
        if round == kill_after:
            raise KilledError

    algorithm = soteriafl_sgd(
        softmax_regression(features=30, classes=10),
        bound=ClipNorm(1.0),
        sampling=Poisson(0.3),
        compressor=RandK(fraction=0.2),
        step=0.1,
    )
    target = Target(4.0, 1e-5, Adjacency.ADD_REMOVE)
    federation = made_up_records(8, 20, features=30)
    return simulate(
        plan(algorithm, federation, rounds=6, privacy=target),
        memory_limit_bytes=1,
        out=out,
        checkpoint_every=1,
        progress=progress,
    )


def test_shifts_in_a_file_are_shifts_in_memory_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[tuple[int, ...]] = []

    def noted(shape: tuple[int, ...], directory: Path | None) -> torch.Tensor:
        mapped.append(shape)
        return mapped_zeros(shape, directory)

    monkeypatch.setattr(simulation, "mapped_zeros", noted)
    with pytest.raises(KilledError):
        _shifted(tmp_path / "run", kill_after=3)
    resumed = _shifted(tmp_path / "run")
    assert mapped.count((8, 310)) == 2
    assert not list((tmp_path / "run").glob(".memory*"))
    in_file = _shifted()
    monkeypatch.setattr(simulation, "mapped_zeros", lambda shape, directory: torch.zeros(shape))
    in_memory = _shifted()
    assert torch.equal(in_file.parameters, in_memory.parameters)
    assert torch.equal(resumed.parameters, in_memory.parameters)


def test_a_mapped_tensor_is_zero_and_can_be_written_to(tmp_path: Path) -> None:
    rows = mapped_zeros((3, 5), tmp_path / "new")
    assert rows.shape == (3, 5)
    assert rows.dtype == torch.float32
    assert not bool(rows.any())
    rows[1] += 2
    assert rows.sum() == 10
    assert not list((tmp_path / "new").iterdir())
    assert mapped_zeros(()).shape == ()


def test_checkpoints_keep_every_kind_of_tensor(tmp_path: Path) -> None:
    rows = torch.randn(3, 4)
    tensors = {
        "rows": rows, "again": rows, "turned": rows.T, "one": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 7), "places": torch.arange(5), "coins": torch.tensor([True, False, True]),
        "small": torch.arange(3, dtype=torch.int32), "bytes": torch.arange(3, dtype=torch.uint8),
    }  # fmt: skip
    checkpoint.save(tmp_path, Checkpoint(2, "mine", tensors, {"loss": 0.5}))
    read = checkpoint.latest(tmp_path, "mine")
    assert read is not None
    assert read.round == 2
    assert read.facts == {"loss": 0.5}
    assert read.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)
