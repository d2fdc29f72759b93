"""Write one folder for each party of a consortium, with its keys, its job and what to do next."""

from __future__ import annotations

import contextlib
import shutil
import textwrap
from dataclasses import fields, replace
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.deploy.consortium import Consortium
from tacit.deploy.flare.kits import Network, write_kits
from tacit.deploy.identities import SIGNING_KEY, Identities
from tacit.deploy.job import Job
from tacit.deploy.mixing import PublicKeys
from tacit.deploy.party_folder import SEALING_KEY, SEALING_KEYS
from tacit.deploy.policy import Policy
from tacit.deploy.sealing import public_bytes, write_key
from tacit.deploy.shuffler import SHUFFLER
from tacit.engine.files import write_atomically
from tacit.errors import RequestError


def provision(consortium: Consortium, out: Path) -> dict[str, Path]:
    """Write a folder for each party and return them by name: silos, "server", "shuffler" if any.

    The keys are generated here. The job, which is the same for all, names the public signing keys of the server
    and of every silo. Guarantee: each folder is readable only by its owner and holds only that party's private
    keys; all folders are complete, or none is left.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(
            f"--out {out} is not an empty directory, and keys are never overwritten: choose another"
        )
    signing = {party: Ed25519PrivateKey.generate() for party in ("server", *consortium.job.sites)}
    silos = {site: signing[site] for site in consortium.job.sites}
    job = replace(consortium.job, identities=Identities.of(signing["server"], silos))
    clients = (*job.sites, SHUFFLER) if job.shuffled else job.sites
    folders = {party: out / party for party in ("server", *clients)}
    policies = {site: Policy.for_job(job, site, insecure_reproducible=job.insecure) for site in job.sites}
    existed, made = out.exists(), list[Path]()
    try:
        for folder in folders.values():
            folder.mkdir(mode=0o700, parents=True)
            made.append(folder)
        network = Network(consortium.name, consortium.host, consortium.port, consortium.admin_port, clients)
        write_kits(network, {client: folders[client] for client in clients}, folders["server"])
        for party, key in signing.items():
            write_key(folders[party] / SIGNING_KEY, key)
        if job.shuffled:
            _write_sealing_keys(folders)
        settings = {f.name: getattr(consortium, f.name) for f in fields(Consortium) if f.name != "job"}
        for party, folder in folders.items():
            write_atomically(folder / "job.toml", job.text.encode())
            write_atomically(folder / "party.toml", tomli_w.dumps({"party": party, **settings}).encode())
            write_atomically(folder / "README.md", _readme(party, replace(consortium, job=job)).encode())
            if party in policies:
                write_atomically(
                    folder / "policy.toml", (_POLICY_HEAD + policies[party].to_toml()).encode(), mode=0o600
                )
    except BaseException:
        # The keys of some parties are of no use, and whoever tries again needs an empty directory.
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise
    return folders


def _write_sealing_keys(folders: dict[str, Path]) -> None:
    """Give each party its own private key for sealed messages, and everybody's public keys."""
    own = {party: X25519PrivateKey.generate() for party in folders}
    public = {party: public_bytes(key) for party, key in own.items()}
    keys = PublicKeys(public.pop("server"), public.pop(SHUFFLER), public)
    for party, folder in folders.items():
        write_key(folder / SEALING_KEY, own[party])
        write_atomically(folder / SEALING_KEYS, tomli_w.dumps(keys.to_values()).encode())


_POLICY_HEAD = """\
# What this silo is willing to release. Only the silo decides. This draft was
# made from the job: read and edit it.
# epsilon and delta cover the whole collaboration: all runs that this folder's
# ledger will ever hold.
# A job that asks for less noise, a larger bound or anything not listed here is
# refused before it starts.

"""


def _bring(job: Job) -> str:
    """How a silo brings its records."""
    if job.schema is None:
        return "with your records as arrays X and y in a file:\n\n       tacit silo . --data records.npz"
    return f"""with your table, which must fit the schema in `job.toml` (its digest is {job.schema.digest}). \
Check it first; nothing is sent:

       tacit silo . --data records.csv --check
       tacit silo . --data records.csv"""


def _sees(job: Job) -> str:
    """What the server gets to see."""
    if job.summed:
        return f"It can open nothing but sums over at least {job.usual_quorum} silos"
    return "It sees messages without their senders" if job.shuffled else "It sees every message"


def _readme(party: str, consortium: Consortium) -> str:
    return "\n\n".join(map(_folded, _text(party, consortium).strip().split("\n\n"))) + "\n"


def _folded(block: str) -> str:
    """A paragraph in lines that fit a terminal; code, which is indented, stays as it is."""
    if block.startswith("    "):
        return block
    first = "   " * block.startswith("   ")
    then = first or "   " * block[0].isdigit()
    return textwrap.fill(
        " ".join(block.split()),
        80,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _text(party: str, consortium: Consortium) -> str:
    job = consortium.job
    address = f"{consortium.host}:{consortium.port}"
    if party == "server":
        return f"""
# {consortium.name}: the server

The server coordinates the silos {", ".join(job.sites)} over port {consortium.port} of {consortium.host}.
{_sees(job)}, and nobody has to trust it. Run it on that machine, after `pip install 'tacit[deploy]'`:

    tacit server .

Restarted after a crash, it continues where it stopped. This folder holds private keys: keep it to yourself.
"""
    if party == SHUFFLER:
        return f"""
# {consortium.name}: the shuffler

The shuffler mixes the messages of {", ".join(job.sites)}, so that the server cannot tell who sent which.
It cannot read them. Run it on a different machine from the server's, operated by different people, after
`pip install 'tacit[deploy]'`:

    tacit shuffler .

It connects to {address} and opens no port to the network. Anyone who has both this folder and what the server has
seen can tell who sent which message, even later. Never give this folder away, and delete it after the run.
"""
    return f"""
# {consortium.name}: the silo {party}

1. Read `job.toml`, which all parties agreed to, and `policy.toml`, which is yours to change. The job's digest is

       {job.digest}

   Compare it with the other silos, over a channel that the server does not control. It covers the keys that sign
   everybody's certificates. `tacit verify` says which job a certificate is checked against.

2. On your machine, after `pip install 'tacit[deploy]'`, {_bring(job)}

The silo connects to {address} and opens no port to the network. Records stay on your machine.
Everything that leaves has noise added and is first written to `state/ledger.sqlite`. To see what is spent of the
policy's budget and what is left, run `tacit silo . --status`. Never restore `state/` from a backup, and never run
a copy of this folder: the ledger would forget what has left. The folder holds private keys: keep it to yourself.
"""
