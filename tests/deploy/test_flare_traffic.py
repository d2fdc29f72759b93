"""Every byte that the FLARE processes of a silo send, caught before TLS: how many, and what is not among them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

from tacit.deploy.job import Job
from tacit.deploy.mixing import mixing_of
from tacit.engine.recipe import Recipe
from tacit.federation import Federation

pytestmark = pytest.mark.slow

WORDS = "patient Tamerlan Quirke tested positive"
VALUE = 0.4711471147114711
"""A feature of one record: its bytes would be noticed."""

CATCH = """
import importlib.util, os, sys

class Catch:
    def find_spec(self, name, path=None, target=None):
        if name != "nvflare.fuel.f3.drivers.grpc_driver":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            send = module.StreamConnection.send_frame

            def caught(connection, frame):
                with open(os.path.join(os.environ["TACIT_TEST_CATCH"], str(os.getpid())), "ab") as file:
                    file.write(len(frame).to_bytes(8, "little") + bytes(frame))
                return send(connection, frame)

            module.StreamConnection.send_frame = caught

        spec.loader.exec_module = exec_module
        return spec

if "TACIT_TEST_CATCH" in os.environ:
    sys.meta_path.insert(0, Catch())
"""


def _frames(place: Path) -> list[bytes]:
    frames = []
    for path in place.iterdir():
        content, start = path.read_bytes(), 0
        while start < len(content):
            length = int.from_bytes(content[start : start + 8], "little")
            frames.append(content[start + 8 : start + 8 + length])
            start += 8 + length
    return frames


def _caught(parties: Any, tmp_path: Path, **orders: dict[str, str]) -> dict[str, list[bytes]]:
    """Run to the end, and return what every party's FLARE processes sent."""
    (tmp_path / "sitecustomize.py").write_text(CATCH)
    parties.start("server")
    for party in parties.folders:
        if party == "server":
            continue
        (tmp_path / party).mkdir()
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        catch = {"PYTHONPATH": path, "TACIT_TEST_CATCH": str(tmp_path / party)}
        parties.start(party, **catch, **orders.get(party, {}))
    assert parties.running["server"].wait(240) == 0, parties.output("server")
    return {party: _frames(tmp_path / party) for party in parties.folders if party != "server"}


def _federation(sites: int = 2, records: int = 60) -> Federation:
    generator = torch.Generator().manual_seed(2)
    features = torch.rand(sites * records, 8, generator=generator) / 4
    features[0, 3] = features[records, 3] = VALUE
    owners = [row // records for row in range(sites * records)]
    return Federation.from_arrays(features, (features[:, 0] > 0.12).long(), owners, classes=2)


def _forms_of_the_secret() -> list[bytes]:
    single = struct.unpack("<f", struct.pack("<f", VALUE))[0]
    words = [WORDS, WORDS.split()[1], "ValueError", str(single)[:9], str(VALUE)[:9]]
    packed = [struct.pack(order + kind, VALUE) for order in "<>" for kind in "fd"]
    return [*(word.encode(code) for word in words for code in ("utf-8", "utf-16-le")), *packed]


def _check_weight(parties: Any, frames: list[bytes], messages: int) -> None:
    """A message weighs at most a kibibyte more on the wire."""
    job = Job.from_text((parties.folders["server"] / "job.toml").read_text())
    message_bytes = job.algorithm.uplink.compressor.message_bytes(9)
    mixing = mixing_of(job.algorithm)
    body = message_bytes if mixing is None else mixing.sent_bytes
    frames = [frame for frame in frames if b"TCT3" in frame and len(frame) < 3000 + body]
    assert len(frames) >= messages
    # FLARE's frame: 16 bytes, the length of its header in two of them; the header (routing, and a token with
    # an RSA signature, in every message of a silo whatever it holds); then what is sent.
    headers = [int.from_bytes(frame[4:6], "big") for frame in frames]
    sent = [len(frame) - 16 - header for frame, header in zip(frames, headers, strict=True)]
    print("around a message:", sorted({n - message_bytes for n in sent}), "headers:", sorted(set(headers)))
    assert max(sent) <= message_bytes + 1024
    assert max(headers) <= 1300


def test_a_secret_in_a_record_and_in_an_exception_is_in_no_byte_that_leaves(
    real_parties: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = Recipe(
        algorithm="noisy-mb-sgd",
        clients=2,
        model="logistic",
        rounds=4,
        noise="lattice",
        epsilon=2.0,
        delta=1e-3,
        algorithm_settings={"batch": 20.0, "step": 0.1},
    )
    parties = real_parties(recipe, quorum=1, federation=_federation())
    caught = _caught(parties, tmp_path, **{"silo-2": {"TACIT_TEST_RAISE": WORDS}})
    assert all(len(frames) > 20 for frames in caught.values()), "nothing was caught"
    assert any(line["problems"].get("silo-2") == "failed" for line in parties.rounds()), parties.rounds()
    assert WORDS in (parties.folders["silo-2"] / "state" / "errors.log").read_text()
    for secret in _forms_of_the_secret():
        for frames in caught.values():
            assert not any(secret in frame for frame in frames), secret
        for path in parties.folders["server"].rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes(), (path, secret)
    # That the net has no holes: the messages themselves are in it.
    _check_weight(parties, caught["silo-1"], 4)


def test_a_message_behind_a_shuffler_weighs_at_most_a_kibibyte_more_on_the_wire(
    real_parties: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = Recipe(
        algorithm="shuffled-mb-sgd",
        clients=2,
        model="logistic",
        rounds=4,
        noise="lattice",
        epsilon=2.0,
        delta=1e-3,
        algorithm_settings={"batch": 20.0, "step": 0.1, "sampling": "without-replacement"},
    )
    parties = real_parties(recipe, federation=_federation())
    caught = _caught(parties, tmp_path)
    for site in ("silo-1", "silo-2"):
        _check_weight(parties, caught[site], 4)
