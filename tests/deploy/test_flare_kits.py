"""Provisioning, and what a site lets FLARE's server do to it."""

from __future__ import annotations

import io
import json
import logging
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

from nvflare.private.defs import SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tacit.deploy.consortium import Consortium, deployed
from tacit.deploy.flare import parties
from tacit.deploy.flare.job import CLIENT_CONFIG, EXECUTOR, write_job
from tacit.deploy.flare.kits import settle_server
from tacit.deploy.flare.parties import run_shuffler, run_silo
from tacit.deploy.flare.processes import server_command, site_command
from tacit.deploy.flare.site import OBEYED_COMMANDS, OnlyOurJob, harden_job, harden_site, refusal_of_app
from tacit.deploy.job import Job
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.policy import Policy
from tacit.deploy.provision import provision
from tacit.deploy.sealing import public_bytes
from tacit.deploy.signatures import public_key_hex
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation

RECIPE = Recipe(
    algorithm="soteriafl-sgd",
    model="softmax",
    data="records.csv",
    rounds=3,
    delta=1e-3,
    algorithm_settings={"batch": 0.5, "sampling": "poisson", "compressor": "rand-k:0.5", "step": 0.1},
)

SHUFFLED = replace(
    RECIPE,
    epsilon=2.0,
    algorithm="shuffled-mb-sgd",
    algorithm_settings={"batch": 5.0, "sampling": "without-replacement", "step": 0.1},
)


def _consortium(**settings: Any) -> Consortium:
    job = Job(deployed(RECIPE), ("berlin", "lyon"), (4,), 3)
    return Consortium(**{"name": "heart", "job": job, "host": "fl.example.org", **settings})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return provision(_consortium(quorum=1), tmp_path_factory.mktemp("kits") / "out")


def test_every_party_has_its_own_keys_and_nobody_elses(folders: dict[str, Path]) -> None:
    keys = {path: path.read_bytes() for folder in folders.values() for path in folder.rglob("*.key")}
    assert sorted(str(path.relative_to(folders["server"].parent)) for path in keys) == [
        "berlin/engine/startup/client.key",
        "berlin/signing.key",
        "lyon/engine/startup/client.key",
        "lyon/signing.key",
        "server/admin/startup/client.key",
        "server/engine/startup/server.key",
        "server/signing.key",
    ]
    assert len(set(keys.values())) == len(keys)
    everything = [path for path in folders["server"].parent.rglob("*") if path.is_file()]
    for key, content in keys.items():
        assert [path for path in everything if content in path.read_bytes()] == [key]


def test_folders_and_keys_are_for_their_owner_only(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.rglob("*.key"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    made = provision(_consortium(), tmp_path / "out")
    made["lyon"].chmod(0o755)
    with pytest.raises(RequestError, match="chmod 700"):
        PartyFolder.open(made["lyon"])


def test_a_site_ships_no_code_streams_no_log_and_allows_one_class(folders: dict[str, Path]) -> None:
    local = folders["lyon"] / "engine" / "local"
    resources = json.loads((local / "resources.json").read_text())
    assert resources["allow_log_streaming"] is False
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == [EXECUTOR]
    assert "log_streamer" not in json.dumps(resources)
    permissions = json.loads((local / "authorization.json").read_text())["permissions"]
    assert list(permissions) == ["project_admin"]
    for right in ("byoc", "shell_commands", "operate", "download_job"):
        assert permissions["project_admin"][right] == "none"


def test_the_servers_storage_and_admin_interface_stay_at_home(folders: dict[str, Path]) -> None:
    engine = folders["server"] / "engine"
    settle_server(engine)
    resources = (engine / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in resources
    assert str(engine.resolve() / "storage" / "jobs") in resources
    server = json.loads((engine / "startup" / "fed_server.json").read_text())["servers"][0]
    assert server["admin_host"] == "127.0.0.1"
    assert server["connection_security"] == "mtls"
    admin = json.loads((folders["server"] / "admin" / "startup" / "fed_admin.json").read_text())["admin"]
    assert (admin["host"], admin["port"]) == ("localhost", server["admin_port"])


def test_what_a_party_finds_in_its_folder(folders: dict[str, Path]) -> None:
    party = PartyFolder.open(folders["lyon"])
    assert (party.party, party.quorum, party.job.sites) == ("lyon", 1, ("berlin", "lyon"))
    assert Policy.from_toml(party.policy_text()) == Policy.for_job(party.job, "lyon")
    assert "tacit silo ." in (folders["lyon"] / "README.md").read_text()
    assert "tacit server ." in (folders["server"] / "README.md").read_text()
    assert not (folders["server"] / "policy.toml").exists()
    read = [path for folder in folders.values() for path in folder.glob("[Rp]*.*") if path.name != "party.toml"]
    assert "the keys that sign everybody's" in " ".join(
        (folders["lyon"] / "README.md").read_text().split("\n   ")
    )
    assert max(len(line) for path in read for line in path.read_text().splitlines()) <= 80


def test_the_job_names_everybodys_signing_key_and_all_have_the_same_job(folders: dict[str, Path]) -> None:
    opened = {party: PartyFolder.open(folder) for party, folder in folders.items()}
    (digest,) = {party.job.digest for party in opened.values()}
    known = opened["lyon"].job.identities
    assert known is not None
    own = {name: public_key_hex(party.signing_key()) for name, party in opened.items()}
    assert own == {"server": known.server, **known.silos}
    assert digest in (folders["lyon"] / "README.md").read_text()


def test_a_shuffler_has_a_folder_and_keys_of_its_own(tmp_path: Path) -> None:
    job = Job(deployed(SHUFFLED), ("berlin", "lyon"), (4,), 3, min_records=50)
    folders = provision(_consortium(job=job), tmp_path / "out")
    assert list(folders) == ["server", "berlin", "lyon", "shuffler"]
    keys = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.key")}
    assert len(set(keys.values())) == len(keys) == 12
    assert (folders["shuffler"] / "engine" / "startup" / "client.crt").exists()
    assert not (folders["shuffler"] / "policy.toml").exists()
    assert "tacit shuffler ." in (folders["shuffler"] / "README.md").read_text()
    found = {party: PartyFolder.open(folder).sealing() for party, folder in folders.items()}
    public = found["server"][1]  # type: ignore[index]  # a shuffled job has keys
    assert all(keys is not None and keys[1] == public for keys in found.values())
    own = {party: public_bytes(keys[0]) for party, keys in found.items() if keys is not None}
    assert own == {"server": public.server, "shuffler": public.shuffler, **public.silos}
    assert PartyFolder.open(folders["lyon"]).clients == ("berlin", "lyon", "shuffler")
    with pytest.raises(RequestError, match="tacit silo"):
        run_shuffler(PartyFolder.open(folders["lyon"]), print)
    with pytest.raises(RequestError, match="tacit shuffler"):
        run_silo(PartyFolder.open(folders["shuffler"]), Federation.from_clients([([[0.0]], [0])]), print)
    (folders["shuffler"] / "sealing.toml").unlink()
    with pytest.raises(RequestError, match="cannot read the public keys"):
        PartyFolder.open(folders["shuffler"]).sealing()


@pytest.mark.parametrize("file", ["party.toml", "job.toml", "policy.toml"])
def test_a_file_that_is_no_text_is_named(folders: dict[str, Path], tmp_path: Path, file: str) -> None:
    shutil.copytree(folders["lyon"], tmp_path / "lyon")
    (tmp_path / "lyon" / file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match=f"{file}: it is not UTF-8 text"):
        PartyFolder.open(tmp_path / "lyon")


def test_the_server_listens_on_an_address_of_its_machine(tmp_path: Path) -> None:
    party = PartyFolder.open(provision(_consortium(host="localhost"), tmp_path / "out")["server"])
    assert party.address() == "127.0.0.1"
    assert replace(party, host="fl.example.org", listen="127.0.0.2").address() == "127.0.0.2"
    with pytest.raises(RequestError, match="listen in"):
        replace(party, listen="192.0.2.1").address()


def test_whoever_causes_errors_does_not_fill_the_disk_with_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parties, "MOST_LOG_BYTES", 2000)
    with parties._logging_to(tmp_path / "log.jsonl"):
        for run in range(100):
            logging.getLogger("tacit.deploy.silo").error("budget-spent to run %032x: nothing is left", run)
    logs = sorted(tmp_path.iterdir())
    assert [path.name for path in logs] == ["log.jsonl", "log.jsonl.1"]
    assert sum(path.stat().st_size for path in logs) <= 4000
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {0o600}
    assert f"{99:032x}" in logs[0].read_text()


def test_keys_are_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(RequestError, match="never overwritten"):
        provision(_consortium(), tmp_path)


def test_all_folders_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gets full: whoever tries again finds an empty place, and no keys lie about."""
    out, written = tmp_path / "out", []

    def full(path: Path, *arguments: Any, **settings: Any) -> None:
        written.append(path)
        raise OSError(28, "no space left on device")

    (tmp_path / "there").mkdir()
    for place in (out, tmp_path / "there"):
        with monkeypatch.context() as patch:
            patch.setattr("tacit.deploy.provision.write_atomically", full)
            with pytest.raises(OSError, match="no space left"):
                provision(_consortium(host=f"{'a' * 60}.org"), place)
    assert len(written) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert not list((tmp_path / "there").iterdir())
    assert list(provision(_consortium(host=f"{'a' * 60}.org"), out)) == ["server", "berlin", "lyon"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"silos": [["a"]]}, "sites: "),
        ({"silos": ["a", "b", 3]}, "sites: 3"),
        ({"silos": []}, "at least one name"),
        ({"feature_shape": ["x"]}, "shape of one record"),
        ({"feature_shape": [10**9]}, "fit into one message"),
        ({"classes": "x"}, "classes"),
        ({"classes": 10**30}, "fit into one message"),
        ({"min_records": {"berlin": 10}}, "one number for each"),
        ({"min_records": {}}, "min_records names nobody"),
        ({"min_records": {"berlin": 10**30, "lyon": 1}}, "more than can be checked"),
        ({"report": {"every": 4, "loss_bound": 4.0, "epsilon": 0.5}}, "more than the 3 messages"),
        ({"report": {"every": 1, "loss_bound": 4.0, "epsilon": 9.0}}, "less than the promised epsilon"),
    ],
)
@pytest.mark.parametrize("weights", ["equal", "noise-aware"])
def test_files_that_contradict_themselves_are_refused(
    tmp_path: Path, weights: str, change: dict[str, Any], reason: str
) -> None:
    """Before anything is made of them, also where weights follow from stand-ins of the least size."""
    recipe = replace(RECIPE, epsilon=1.0, weights=weights)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    values: dict[str, Any] = {"name": "heart", "recipe": "recipe.toml", "silos": ["berlin", "lyon"]}
    values |= {"feature_shape": [4], "classes": 3, "min_records": {"berlin": 50, "lyon": 90}, **change}
    (tmp_path / "consortium.toml").write_text(tomli_w.dumps(values))
    with pytest.raises(RequestError, match=reason):
        Consortium.read(tmp_path / "consortium.toml")


def test_a_consortium_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.to_toml())
    (tmp_path / "consortium.toml").write_text(
        'name = "heart"\nrecipe = "recipe.toml"\nsilos = ["berlin", "lyon"]\nfeature_shape = [4]\nclasses = 3\n'
        'quorum = 1\n[server]\nhost = "fl.example.org"\nport = 9000\n'
    )
    read = Consortium.read(tmp_path / "consortium.toml")
    assert (read.name, read.host, read.port, read.quorum) == ("heart", "fl.example.org", 9000, 1)
    assert read.job.recipe.noise == "lattice", "a simulation's seeded noise must not be deployed"
    assert not read.job.insecure


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"host": "10.0.0.7"}, "host name"),
        ({"name": "../heart"}, "name"),
        ({"quorum": 3}, "quorum"),
        ({"port": 8003}, "must differ"),
        ({"port": 70000}, "65535"),
        ({"listen": "eth0"}, "IPv4 address"),
        ({"listen": "10.0.0.700"}, "IPv4 address"),
        ({"host": f"{'a' * 60}.org.x"}, "at most 64 letters"),
        ({"job": Job(deployed(SHUFFLED), ("a", "b"), (4,), 3, 50), "quorum": 1}, "all of its silos"),
        ({"job": Job(deployed(RECIPE), ("shuffler", "lyon"), (4,), 3)}, "silos"),
        ({"job": Job(deployed(RECIPE), ("server", "lyon"), (4,), 3)}, "silos"),
        ({"job": Job(deployed(RECIPE), ("a.b", "lyon"), (4,), 3)}, "silos"),
    ],
)
def test_consortia_that_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        _consortium(**settings)


def test_commands_name_tacits_own_entries_and_ask_for_tls(tmp_path: Path) -> None:
    for command in (server_command(tmp_path, "10.0.0.7"), site_command(tmp_path, "lyon")):
        assert command[2].startswith("tacit.deploy.flare.")
        assert "secure_train=true" in command


def _app(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_site_takes_tacits_job_and_no_other(tmp_path: Path) -> None:
    folder = write_job(tmp_path, min_sites=1) / "app"
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.json")}
    assert refusal_of_app(_app(files)) is None
    config = "config/config_fed_client.json"
    other = {**CLIENT_CONFIG, "components": [{"id": "x", "path": "subprocess.Popen", "args": {"args": "id"}}]}
    for changed in (
        {**files, config: json.dumps(other)},
        {**files, "custom/code.py": "import os"},
        {**files, "config/application.conf": "{}"},
        {**files, "../startup/fed_client.json": "{}"},
        {name: content for name, content in files.items() if name != config},
    ):
        assert refusal_of_app(_app(changed)) is not None
    for junk in (b"", b"PK", None, _app(files)[:-30], _app({**files, "meta.json": " " * 2**17})):
        assert refusal_of_app(junk) is not None


def test_a_site_obeys_what_a_run_needs_and_nothing_else() -> None:
    kept = harden_site(ClientRequestProcessors.request_processors)
    topics = [topic for processor in kept for topic in processor.get_topics()]
    assert sorted(topics) == sorted(
        [
            TrainingTopic.DEPLOY,
            TrainingTopic.START_JOB,
            TrainingTopic.ABORT,
            TrainingTopic.CHECK_STATUS,
            TrainingTopic.CHECK_RESOURCE,
            TrainingTopic.CANCEL_RESOURCE,
            TrainingTopic.NOTIFY_JOB_STATUS,
        ]
    )
    assert SysCommandTopic.SHELL not in topics
    assert [type(p) for p in kept if TrainingTopic.DEPLOY in p.get_topics()] == [OnlyOurJob]
    commands = {command.get_command_name() for command in harden_job(AdminCommands.commands)}
    assert commands == OBEYED_COMMANDS
