"""Every reader of bytes that may come from anyone, with hostile bytes for it."""

from __future__ import annotations

import hashlib
import io
import json
import random
import socket
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from small_consortium import COINS, RUN, SHUFFLED, SITES, SVRG, Small, recipe

from fuzzing.hostile import NUMBERS, Target, bent_bytes, bent_text, bent_tree, strange_value
from fuzzing.sums import sum_targets
from tacit.compress import parse_compressor
from tacit.compress.compressor import Compressor
from tacit.compress.grid import WholeSteps
from tacit.deploy.frames import (
    REQUEST_HEADER_LIMIT,
    Reply,
    Request,
    pack,
    point_from_bytes,
    point_to_bytes,
    unpack,
)
from tacit.deploy.heads import Head
from tacit.deploy.ledger_account import FORMAT, chain_hash, read_export
from tacit.deploy.mixing import context_of, mixing_of, point_digest
from tacit.deploy.readers import reader_for
from tacit.deploy.reading import answer_to
from tacit.deploy.rounds import RoundLog
from tacit.deploy.run_state import RunState
from tacit.deploy.sealing import seal, unseal
from tacit.deploy.seam import Code
from tacit.deploy.shuffler import SHUFFLER
from tacit.deploy.signatures import public_key_hex, sign
from tacit.deploy.silo_checks import Trusted
from tacit.deploy.silo_memory import Fingerprint, Memory
from tacit.deploy.status import Board, SiloStatus, serving
from tacit.deploy.verification import verify
from tacit.deploy.witness import Witness
from tacit.engine import checkpoint as checkpoints
from tacit.engine.trained import Trained
from tacit.errors import MessageError
from tacit.shuffle.coin_bits import CoinBits

LIMIT = 2**20
DIM = 7


def message_targets(place: Path) -> list[Target]:
    """All of them; `place` is a directory that they may write into."""
    plain = Small(recipe(**SVRG), place / "plain")
    mixed = [
        Small(recipe(**settings), place / name) for name, settings in (("shuffled", SHUFFLED), ("coins", COINS))
    ]
    finished = plain.server().run()
    targets = [
        *_frames(plain),
        *_packets(),
        *_covers(mixed),
        _silo(Small(recipe(**SVRG), place / "asked")),
        *sum_targets(place),
        *_signed(plain, finished.certificate),
        *_kept(plain, place),
        _status(),
        _socket(),
    ]
    if find_spec("nvflare") is not None:
        targets.append(_apps())
    return targets


def _either(rng: random.Random, sound: bytes, shaped: Callable[[], bytes]) -> bytes:
    """Bytes that are bent as they are, or bent inside and made whole again."""
    return bent_bytes(rng, sound) if rng.random() < 0.3 else shaped()


def _frames(plain: Small) -> list[Target]:
    point = point_to_bytes(torch.linspace(-1, 1, DIM))
    request = Request("round", RUN, 3, plain.job.digest, {"berlin": 2, "lyon": 1}, point)
    head = Head.sign(
        plain.signing["berlin"], "berlin", job=plain.job.digest, run=RUN, round=3, lines=4, hash="0" * 64
    )
    reply = Reply(Code.OK, "berlin", RUN, 3, 2, 6, 3.5, False, bytes(40), 0.7, head.on_answer())
    request = replace(request, heads={"berlin": head})

    def hostile_request(rng: random.Random) -> bytes:
        def shaped() -> bytes:
            header, body = unpack(request.encode(), header_limit=REQUEST_HEADER_LIMIT, body_limit=LIMIT)
            return pack(_json(bent_tree(rng, json.loads(header))), rng.choice((body, bent_bytes(rng, body))))

        return _either(rng, request.encode(), shaped)

    def hostile_reply(rng: random.Random) -> bytes:
        sound = replace(reply, code=rng.choice(list(Code)), site=rng.choice(SITES)).encode()

        def shaped() -> bytes:
            header, body = unpack(sound, header_limit=LIMIT, body_limit=LIMIT)
            return pack(bent_bytes(rng, header), rng.choice((body, bent_bytes(rng, body))))

        return _either(rng, sound, shaped)

    def read_answer(frame: bytes) -> object:
        reader = reader_for(plain.job, plain.server().backend, None, Path(), 1.0, 1)
        answer = answer_to(frame, "berlin", request, reader.sent_bytes)
        return answer if isinstance(answer, Code) else reader.read(answer.body)

    return [
        Target("request", hostile_request, lambda frame: Request.decode(frame, body_limit=LIMIT), 3),
        Target("reply", hostile_reply, lambda frame: Reply.decode(frame, body_limit=LIMIT), 3),
        Target("answer", hostile_reply, read_answer, 0.3),
        Target("point", lambda rng: _floats(rng, point), lambda body: point_from_bytes(body, DIM), 2),
    ]


def _floats(rng: random.Random, sound: bytes) -> bytes:
    """Floats of which some are not numbers, not finite or huge."""
    values = list(struct.unpack(f"<{len(sound) // 4}f", sound))
    strange = [n for n in NUMBERS if not isinstance(n, bool) and not 1e38 < abs(n) < float("inf")]
    values[rng.randrange(len(values))] = float(rng.choice(strange))
    return _either(rng, sound, lambda: struct.pack(f"<{len(values)}f", *values))


def _packets() -> list[Target]:
    compressors: list[tuple[Compressor, int]] = [
        (parse_compressor(spec), dim)
        for spec in ("identity", "natural", "qsgd:16", "qsgd:1", "rand-k:0.3", "rand-k:1", "rand-k:0.5+natural",
                     "rand-k:2+qsgd:4", "top-k:0.3", "top-k:2")
        for dim in (DIM, 64)
    ]  # fmt: skip
    compressors += [(WholeSteps(12), DIM), (WholeSteps(2), 64), (CoinBits(4, 6, 1.0), DIM)]
    return [_packet(compressor, dim) for compressor, dim in compressors]


def _packet(compressor: Compressor, dim: int) -> Target:
    generator = np.random.default_rng(1)
    if isinstance(compressor, CoinBits):
        rows = compressor.values(generator.integers(0, compressor.bits + 1, size=(1, dim)))
    else:
        rows = torch.from_numpy(generator.integers(-1, 2, size=(1, dim)).astype(np.float32))
    (sound,) = compressor.compress(rows, [generator]).encode()
    format: Any = compressor.format(dim)  # type: ignore[attr-defined]  # all but the protocol have it

    def hostile(rng: random.Random) -> bytes:
        def resealed() -> bytes:
            body = (bent_bytes(rng, sound[-format.body_bytes :]) + bytes(format.body_bytes))[: format.body_bytes]
            return bytes(format.seal(np.frombuffer(body, dtype=np.uint8)[None])[0])

        return _either(rng, sound, resealed)

    def read(message: bytes) -> object:
        packets = compressor.decode([message], dim)
        packets.add_to(torch.zeros(1, dim), 0.5)
        if len(packets.encode()[0]) != len(message) or packets.dense().shape != (1, dim):
            raise AssertionError("what was read is not what was sent")
        return packets.sum()

    return Target(f"packet {compressor.spec()} of {dim}", hostile, read, 0.8)


def _covers(mixed: list[Small]) -> list[Target]:
    targets = []
    for made in mixed:
        job, mixing = made.job, mixing_of(made.job.algorithm)
        assert mixing is not None
        body = point_to_bytes(job.start())
        context, key = context_of(job.digest, RUN, 0, point_digest(body)), made.sealing["server"]
        asked = Request("round", RUN, 0, job.digest, {}, body).encode()
        sent = [Reply.decode(made.silo(site).step(asked), body_limit=LIMIT).body for site in SITES]
        shuffler = made.shuffler()
        covered = point_digest(body) + b"".join(one[: mixing.covered_bytes] for one in sent)
        mix = Request("mix", RUN, 0, job.digest, body=covered)
        opened = Reply.decode(shuffler.step(mix.encode()), body_limit=LIMIT).body

        def hostile_mix(rng: random.Random, mix: Request = mix) -> bytes:
            shaped = replace(mix, body=bent_bytes(rng, mix.body), round=rng.choice((0, 1, 5, 6, 2**30)))
            return _either(rng, mix.encode(), shaped.encode)

        def hostile_opened(rng: random.Random, opened: bytes = opened, made: Small = made,
                           context: bytes = context) -> bytes:  # fmt: skip
            size = len(opened)
            if made.job.algorithm.uplink.compressor.spec() != "identity" or rng.random() < 0.5:
                return (bent_bytes(rng, opened) + bytes(size))[:size]
            inner = seal(rng.randbytes(size // len(SITES) - 48), made.keys.server, context)
            return (inner + opened)[:size]

        def total(content: bytes, mixing: Any = mixing, sent: list[bytes] = sent, key: Any = key,
                  context: bytes = context) -> object:  # fmt: skip
            return mixing.total(sent, content, key, context)

        name = made.directory.name
        targets += [
            Target(f"mix {name}", hostile_mix, lambda frame, party=shuffler: _reply(party.step(frame)), 0.3),
            Target(f"mixed {name}", hostile_opened, total, 0.3),
        ]
    key = mixed[0].sealing[SHUFFLER]
    sound = seal(bytes(50), mixed[0].keys.shuffler, b"context", sender=mixed[0].sealing["berlin"])
    sender = mixed[0].keys.silos["berlin"]
    targets.append(
        Target(
            "sealed", lambda rng: bent_bytes(rng, sound), lambda s: unseal(s, key, b"context", sender=sender), 0.5
        )
    )
    return targets


def _reply(frame: bytes) -> object:
    """What a party answers must be an answer, whatever it was asked."""
    try:
        return Reply.decode(frame, body_limit=LIMIT)
    except MessageError as error:
        raise AssertionError(f"a party answered with no answer: {error}") from error


def _silo(plain: Small) -> Target:
    silo, body = plain.silo("berlin"), point_to_bytes(plain.job.start())

    def hostile(rng: random.Random) -> bytes:
        sound = Request("round", RUN, 3, plain.job.digest, {"berlin": 2}, body)

        def shaped() -> bytes:
            changes: dict[str, Any] = {
                "kind": rng.choice(("round", "mix", "sum", "correct", "evaluate", "certify", "heads")),
                "run": rng.choice((RUN, rng.randbytes(16).hex())),
                "round": rng.choice((0, 1, 5, 6, 2**31 - 1)),
                "job": rng.choice((plain.job.digest, "0" * 64)),
                "accepted": {rng.choice(SITES): rng.choice((0, 3, 2**31 - 1))},
                "body": rng.choice((body, bent_bytes(rng, body), rng.randbytes(len(body)))),
            }
            names = rng.sample(list(changes), rng.randint(1, 3))
            return replace(sound, **{name: changes[name] for name in names}).encode()

        return _either(rng, sound.encode(), shaped)

    return Target("silo", hostile, lambda frame: _reply(silo.step(frame)), 0.1)


def _signed(plain: Small, certificate: bytes) -> list[Target]:
    run = json.loads(certificate)
    ledger = plain.silo("berlin").ledger.export()
    lines = [json.loads(line) for line in ledger.splitlines()]
    text = plain.job.text.encode()
    beside = {"ledger.jsonl": ledger, "job.toml": text}
    witnessed = plain.directory / "berlin" / "witnessed.json"
    kept = json.loads(witnessed.read_text())
    keys = {site: public_key_hex(plain.signing[site]) for site in SITES}

    def unsigned(body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name not in ("signature", "public_key", "format")}

    def hostile(rng: random.Random) -> bytes:
        # A party that lies signs with the key that it has; anybody else with one of their own.
        whose = rng.choice(("server", "berlin"))
        sound = run if whose == "server" else run["silos"]["berlin"]
        key = plain.signing[whose] if rng.random() < 0.8 else Ed25519PrivateKey.generate()

        def resigned() -> bytes:
            body = unsigned(sound)
            try:
                if "events" in body and rng.random() < 0.03:
                    made = rng.choice((_nested, _many))
                    return sign({**body, "events": {"run": made(rng), "collaboration": _chosen(rng, body)}}, key)
                return sign(bent_tree(rng, body), key)
            except (ValueError, TypeError, RecursionError, AttributeError):
                # Nothing that JSON can say.
                return bent_bytes(rng, certificate)

        return _either(rng, certificate, resigned)

    def check(content: bytes) -> object:
        return verify(content, beside, Trusted(job=text))

    def check_alone(content: bytes) -> object:
        return verify(content, {}, Trusted(unknown_keys=True))

    def hostile_book(rng: random.Random) -> bytes:
        return _either(rng, _json(kept), lambda: _json(bent_tree(rng, kept)))

    def read_book(content: bytes) -> object:
        place = plain.directory / "book.json"
        place.write_bytes(content)
        witness = Witness(place, "berlin", keys)
        witness.check_own(lambda line: None)
        return witness.newest()

    def hostile_ledger(rng: random.Random) -> bytes:
        def rechained() -> bytes:
            before, out = hashlib.sha256(FORMAT.encode()).hexdigest(), []
            for line in lines:
                body = json.loads(line["body"])
                text = _json(bent_tree(rng, body)).decode() if rng.random() < 0.3 else line["body"]
                before = chain_hash(before, text)
                out.append(json.dumps({"body": text, "hash": before}))
            return "\n".join(out).encode()

        return _either(rng, ledger, rechained)

    return [
        Target("certificate", hostile, check, 0.1),
        Target("certificate alone", hostile, check_alone, 0.1),
        Target("witnessed heads", hostile_book, read_book, 0.2),
        Target("ledger", hostile_ledger, lambda content: _account(read_export(content)), 0.3),
    ]


def _nested(rng: random.Random) -> dict[str, Any]:
    """An event inside many others."""
    event: dict[str, Any] = {"kind": "gaussian", "noise_multiplier": 5.0}
    for _ in range(rng.choice((2, 60, 400))):
        many = {"kind": "repeated", "rounds": 1, "event": event}
        event = rng.choice((many, {"kind": "composed", "events": [event]}))
    return event


def _many(rng: random.Random) -> dict[str, Any]:
    """Many different releases."""
    rates = [rng.random() for _ in range(rng.choice((2, 20, 300)))]
    releases = [{"kind": "poisson", "sampling_rate": rate, "noise_multiplier": 90.0} for rate in rates]
    return {"kind": "composed", "events": [{"kind": "repeated", "rounds": 5, "event": one} for one in releases]}


def _chosen(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Many runs under the policy."""
    runs = [rng.choice((_nested, _many))(rng) for _ in range(rng.choice((1, 3, 200)))]
    alike = [body["events"]["run"]] * rng.choice((1, 100, 20_000))
    return {"kind": "chosen-runs", "runs": rng.choice((runs, alike)), "epsilon": body["policy"]["epsilon"]}


def _account(account: Any) -> object:
    return account.event(1.0), account.adversaries, account.units


def _kept(plain: Small, place: Path) -> list[Target]:
    row = torch.zeros(1, DIM)
    records = Fingerprint.of(plain.records)
    memory = Memory({"snapshot": row}, {"shift": row}, {"shift": row + 1}, bytes(30), 2**100, records, 0.5)
    directory, log, model = place / "checkpoints", RoundLog(place / "rounds.jsonl"), place / "model.safetensors"
    saved = next((plain.directory / "server" / "checkpoints").glob("round-*.safetensors")).read_bytes()
    directory.mkdir()
    rounds = (plain.directory / "server" / "rounds.jsonl").read_text()
    fingerprint = plain.server()._fingerprint
    parameters = (plain.directory / "server" / "model.safetensors").read_bytes()

    def hostile_checkpoint(rng: random.Random) -> bytes:
        return _either(rng, saved, lambda: _with_digest(_bent_safetensors(rng, saved[:-32])))

    def read_checkpoint(content: bytes) -> object:
        (directory / "round-00000006.safetensors").write_bytes(content)
        found = checkpoints.latest(directory, fingerprint)
        return found and RunState.from_checkpoint(found)

    def read_model(content: bytes) -> object:
        model.write_bytes(content)
        return Trained.load(plain.job.algorithm.work.model, model)

    def read_rounds(text: str) -> object:
        log.path.write_text(text, encoding="utf-8", errors="replace")
        return log.paid()

    def safetensors(sound: bytes) -> Callable[[random.Random], bytes]:
        return lambda rng: _either(rng, sound, lambda: _bent_safetensors(rng, sound))

    return [
        Target("memory", safetensors(memory.to_bytes()), Memory.from_bytes, 0.5),
        Target("checkpoint", hostile_checkpoint, read_checkpoint, 0.2),
        Target("model", safetensors(parameters), read_model, 0.2),
        Target("rounds", lambda rng: _bent_lines(rng, rounds), read_rounds, 0.2),
    ]


def _bent_lines(rng: random.Random, text: str) -> str:
    lines = [json.loads(line) for line in text.splitlines()]
    if rng.random() < 0.3:
        return bent_text(rng, text)
    return "\n".join(_json(bent_tree(rng, line)).decode() for line in lines)


def _bent_safetensors(rng: random.Random, content: bytes) -> bytes:
    """A file with a bent header and the right lengths around it."""
    (length,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    if rng.random() < 0.5 and isinstance(header.get("__metadata__", {}).get("facts"), str):
        facts = bent_tree(rng, json.loads(header["__metadata__"]["facts"]))
        header["__metadata__"]["facts"] = _json(facts).decode()
    else:
        header = bent_tree(rng, header)
    text = _json(header)
    return struct.pack("<Q", len(text)) + text + rng.choice((data, bent_bytes(rng, data)))


def _with_digest(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def _status() -> Target:
    board = Board("a run", 5, {site: SiloStatus() for site in SITES})
    # Runs until the process ends; its own errors would be printed by the server's thread, and are counted here.
    server = serving(board)
    address = server.__enter__()
    port = int(address.rstrip("/").rpartition(":")[2])
    sound = f"GET /status.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()

    def read(request: bytes, _keep: Any = server) -> object:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                heard = b""
                while chunk := connection.recv(65536):
                    heard += chunk
            except OSError:
                # It has heard enough and hung up.
                return None
        asked = b"".join(request.lower().split())
        if b"silos" in heard and b"host:127.0.0.1" not in asked and b"localhost" not in asked:
            raise AssertionError("a page was given to somebody who asked for another host")
        return heard

    return Target("status", lambda rng: bent_bytes(rng, sound), read, 0.05)


def _socket() -> Target:
    from tacit.deploy.flare.relay import receive_frame

    sound = struct.pack(">Q", 20) + bytes(20)

    def read(content: bytes) -> object:
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            left.send(content[:100_000])
            left.shutdown(socket.SHUT_WR)
            try:
                return receive_frame(right)
            except EOFError:
                return None

    return Target("relay", lambda rng: bent_bytes(rng, sound), read, 0.3)


def _apps() -> Target:
    from tacit.deploy.flare.job import CLIENT_CONFIG
    from tacit.deploy.flare.site import refusal_of_app

    def archive(config: bytes, name: str = "config/config_fed_client.json") -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(name, config)
        return out.getvalue()

    sound = archive(json.dumps(CLIENT_CONFIG).encode())

    def hostile(rng: random.Random) -> bytes:
        def shaped() -> bytes:
            config = _json(bent_tree(rng, CLIENT_CONFIG)) if rng.random() < 0.9 else bytes(10**7)
            return archive(config, rng.choice(("config/config_fed_client.json", "../x", "config/x.py")))

        return _either(rng, sound, shaped)

    return Target("app", hostile, refusal_of_app, 0.2)


def _json(value: Any) -> bytes:
    """As JSON, with what JSON should not say: not a number, lists that are too deep."""
    try:
        return json.dumps(value).encode()
    except (RecursionError, TypeError, ValueError):
        return json.dumps(strange_value(random.Random(0))).encode() + b"[" * 20_000
