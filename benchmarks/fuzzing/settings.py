"""Every reader of settings and of records, with hostile files for it."""

from __future__ import annotations

import io
import random
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from small_consortium import COINS, FEATURES, FED_SPA, RECORDS, SHUFFLED, SITES, SVRG, Small, recipe

from fuzzing.hostile import (
    NUMBERS,
    STRINGS,
    Target,
    bent_bytes,
    bent_text,
    bent_tree,
    changed_leaf,
    strange_setting,
)
from tacit.algorithms.registry import ALGORITHMS
from tacit.compress import parse_compressor
from tacit.data.images import read_idx
from tacit.data.partition import parse_partition
from tacit.deploy.consortium import Consortium
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.mixing import PublicKeys
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.policy import Policy
from tacit.deploy.records import own_records
from tacit.deploy.site_records import at_site
from tacit.engine.recipe import Recipe, parse_setting
from tacit.models.registry import MODELS
from tacit.schedules import parse_schedule
from tacit.server.participation import parse_participation
from tacit.server.projection import parse_projection

FEDAVG: dict[str, Any] = {
    "algorithm": "dp-fedavg", "adversary": "server", "sampling": "full", "local_steps": 2, "local_step": 0.1,
    "momentum": 0.0, "step": 0.5,
}  # fmt: skip
CPSGD: dict[str, Any] = {"algorithm": "cpsgd", "sampling": "poisson", "batch": 0.5, "bits": 12, "step": 0.5}
ALL = (SVRG, SHUFFLED, COINS, FED_SPA, FEDAVG, CPSGD)
REPORT: dict[str, Any] = {"every": 2, "loss_bound": 4.0, "epsilon": 0.5}


def setting_targets(place: Path) -> list[Target]:
    """All of them; `place` is a directory that they may write into."""
    made = [Small(recipe(**settings), place / "unused") for settings in ALL]
    jobs = [tomllib.loads(one.job.text) for one in made]
    jobs += [
        {**jobs[0], "model": {"name": "network", "hidden": 4}},
        {**jobs[0], "consortium": {**jobs[0]["consortium"], "report": REPORT}},
        {**jobs[0], "cohort": "1-2", "client_epsilon": 8.0, "weights": [1.0, 2.0, 3.0]},
        {
            **jobs[0],
            "epsilon": {"berlin": 1.0, "lyon": 2.0, "porto": 3.0},
            "model": {"name": "logistic", "ridge": 0.1},
        },
    ]
    policies = [tomllib.loads(Policy.for_job(one.job, "berlin").to_toml()) for one in made]
    return [
        Target("recipe", _toml([tomllib.loads(one.recipe.to_toml()) for one in made]), Recipe.from_toml, 3),
        Target("job", _toml(jobs), _job, 3),
        Target("policy", _toml(policies), lambda text: Policy.from_toml(text).check(made[0].job, RECORDS), 3),
        Target("sound job", _nearly(jobs, 3), _job, 2),
        Target(
            "sound policy",
            _nearly(policies, 2),
            lambda text: Policy.from_toml(text).check(made[0].job, RECORDS),
            1,
        ),
        Target("admission", _nearly(jobs, 1), lambda text: _admission(text, made[0]), 0.3),
        _consortium(place, made[0]),
        *_records(place, made[0].job),
        _words(),
    ]


def _toml(trees: list[dict[str, Any]]) -> Callable[[random.Random], str]:
    """Files with bent trees, or bent lines."""

    def hostile(rng: random.Random) -> str:
        tree = rng.choice(trees)
        if rng.random() < 0.3:
            return bent_text(rng, tomli_w.dumps(tree))
        try:
            return tomli_w.dumps(bent_tree(rng, tree, strange_setting))
        except (RecursionError, TypeError, ValueError, AttributeError):
            return bent_text(rng, tomli_w.dumps(tree))

    return hostile


WORDS: dict[str, tuple[str, ...]] = {
    "algorithm": tuple(ALGORITHMS),
    "model": tuple(MODELS),
    "sampling": ("poisson", "full", "without-replacement", "with-replacement", "one-pass"),
    "compressor": (
        "identity",
        "natural",
        "qsgd:4",
        "rand-k:0.5",
        "rand-k:3",
        "rand-k:999999",
        "rand-k:0.5+natural",
        "top-k:0.5",
        "top-k:999999",
    ),
    "bound": ("clip-norm", "normalise", "clip-each-coordinate"),
    "projection": ("none", "ball:1e-300", "ball:1e300", "box:-1:1", "box:1:-1"),
    "noise": ("gaussian", "lattice"),
    "adjacency": ("replace-one", "add-remove"),
    "adversary": ("server", "sum", "shuffler"),
    "unit": ("record", "client"),
    "schedule": ("constant", "inverse-sqrt", "exponential:0.5"),
}


def _nearly(trees: list[dict[str, Any]], changes: int) -> Callable[[random.Random], str]:
    """Files that are sound but for values that nobody would choose."""

    def hostile(rng: random.Random) -> str:
        tree = rng.choice(trees)
        for _ in range(rng.randint(1, changes)):
            tree = changed_leaf(rng, tree, WORDS)
        return tomli_w.dumps(tree)

    return hostile


def _job(text: str) -> object:
    """All that a party computes of a job before it has seen a request."""
    job = Job.from_text(text)
    return job.algorithm, job.digest, job.insecure, job.start().shape, job.cohort(0), job.unit, job.adversary


def _admission(text: str, made: Small) -> object:
    job = Job.from_text(text)
    return admit(job, Policy.for_job(job, "berlin"), "berlin", made.records.client(0))


def _consortium(place: Path, made: Small) -> Target:
    folder = place / "consortium"
    folder.mkdir()
    (folder / "recipe.toml").write_text(made.recipe.to_toml())
    agreed: dict[str, Any] = {
        "name": "heart", "recipe": "recipe.toml", "silos": list(SITES), "feature_shape": [FEATURES], "classes": 2,
        "quorum": 2, "deadline_seconds": 120.0, "report": REPORT,
        "server": {"host": "fl.example.org", "port": 8002, "listen": "10.0.0.7"},
    }  # fmt: skip
    party: dict[str, Any] = {
        "party": "server", "quorum": 2, "deadline_seconds": 120.0, "host": "localhost", "listen": "",
        "name": "heart", "port": 8002, "admin_port": 8003,
    }  # fmt: skip
    keys = {"server": "00" * 32, "shuffler": "11" * 32, "silos": dict.fromkeys(SITES, "22" * 32)}
    (folder / "job.toml").write_text(made.job.text)
    folder.chmod(0o700)

    def hostile(rng: random.Random) -> tuple[str, str]:
        name, tree = rng.choice((("consortium", agreed), ("party", party), ("keys", keys)))
        return name, _toml([tree])(rng)

    def read(given: tuple[str, str]) -> object:
        name, text = given
        (folder / f"{name}.toml").write_text(text, encoding="utf-8", errors="replace")
        if name == "consortium":
            return Consortium.read(folder / "consortium.toml")
        if name == "party":
            return PartyFolder.open(folder)
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError):
            return None
        return PublicKeys.from_values(values)

    return Target("consortium", hostile, read, 1.5)


def _records(place: Path, job: Job) -> list[Target]:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(12, FEATURES)).round(3)
    labels = (features[:, 0] > 0).astype(int)
    rows = [
        ",".join(map(str, (*row, label))) for row, label in zip(features.tolist(), labels.tolist(), strict=True)
    ]
    csv = "\n".join([",".join((*(f"x{n}" for n in range(FEATURES)), "y")), *rows]) + "\n"
    svmlight = "".join(
        f"{label} " + " ".join(f"{n + 1}:{value}" for n, value in enumerate(row)) + "\n"
        for row, label in zip(features.tolist(), labels.tolist(), strict=True)
    )
    archive = io.BytesIO()
    np.savez(archive, X=features, y=labels)

    def hostile_csv(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return bent_bytes(rng, csv.encode())
        lines = [line.split(",") for line in csv.splitlines()]
        for _ in range(rng.randint(1, 5)):
            line = rng.choice(lines)
            line[rng.randrange(len(line))] = str(rng.choice((*STRINGS, *NUMBERS)))
        return "\n".join(map(",".join, lines)).encode(errors="replace")

    def hostile_npz(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return bent_bytes(rng, archive.getvalue())
        strange: list[Any] = [
            features.astype(rng.choice(("f2", "f8", "i1", "c16", "U8", "b1", "O"))), features[:0],
            np.full((12, FEATURES), rng.choice((np.nan, np.inf, 1e308, -0.0))), np.zeros((12, 0)), np.zeros(()),
            np.zeros((12, FEATURES, 2)), np.zeros((11, FEATURES)), np.array([{"a": 1}] * 12, dtype=object),
            np.lib.stride_tricks.as_strided(np.zeros(1), (12, FEATURES), (0, 0)),
        ]  # fmt: skip
        out = io.BytesIO()
        arrays = {
            "X": rng.choice((features, *strange)),
            "y": rng.choice((labels, *strange, labels + 10**9, -labels)),
        }
        np.savez(out, **{name: arrays[name] for name in rng.choice((("X", "y"), ("X", "y"), ("X",)))})
        return out.getvalue()

    parquet = io.BytesIO()
    pd.DataFrame(features, columns=[f"x{n}" for n in range(FEATURES)]).assign(y=labels).to_parquet(parquet)
    idx = struct.pack(">HBB3I", 0, 8, 3, 2, 3, 4) + bytes(24)

    def read_images(content: bytes) -> object:
        path = place / "images.idx"
        path.write_bytes(content)
        return read_idx(path, (2, 3, 4))

    def reader(suffix: str) -> Callable[[bytes], object]:
        def read(content: bytes) -> object:
            path = place / f"own{suffix}"
            path.write_bytes(content)
            return at_site(job, "berlin", own_records(str(path), job, target="y"))

        return read

    return [
        Target("csv", hostile_csv, reader(".csv")),
        Target("npz", hostile_npz, reader(".npz")),
        Target("parquet", lambda rng: bent_bytes(rng, parquet.getvalue()), reader(".parquet"), 0.5),
        Target("images", lambda rng: bent_bytes(rng, idx), read_images, 0.5),
        Target("svmlight", lambda rng: bent_bytes(rng, svmlight.encode()), reader(".svmlight")),
    ]


def _words() -> Target:
    sound = ("rand-k:0.05+qsgd:16", "ball:5", "box:-1:1", "exponential:0.9", "inverse-sqrt", "2-5",
             "dirichlet:0.5", "labels:2", "step=0.3", "quantile:0.5", "natural", "iid",
             "data.unit_norm=true")  # fmt: skip
    readers: tuple[Callable[[str], object], ...] = (
        parse_compressor, parse_projection, parse_schedule, parse_participation, parse_partition, parse_setting,
    )  # fmt: skip

    def hostile(rng: random.Random) -> tuple[Callable[[str], object], str]:
        word = rng.choice(sound) if rng.random() < 0.7 else rng.choice(STRINGS)
        name, colon, _ = word.partition(":")
        if colon and rng.random() < 0.5:
            word = f"{name}:{rng.choice((*STRINGS, *NUMBERS))}"
        elif rng.random() < 0.5:
            word = bent_bytes(rng, word.encode()).decode("utf-8", errors="replace")
        return rng.choice(readers), word

    return Target("words", hostile, lambda given: given[0](given[1]), 1)
