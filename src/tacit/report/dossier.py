"""The page of a deployed run for a data protection officer: report.html of `tacit verify`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.privacy.promises.plain import plain_promise, strength
from tacit.privacy.promises.rounding import round_up, up_to
from tacit.report.budget_blocks import budget_blocks
from tacit.report.evaluation_blocks import evaluation_blocks
from tacit.report.page import (
    Block,
    Facts,
    Folded,
    Form,
    Marked,
    Paragraph,
    Section,
    SortableTable,
    Verdict,
    render_page,
)
from tacit.report.run_page import Repeat, correction_section, repeat_blocks
from tacit.report.table_blocks import SchemaTable, table_blocks
from tacit.report.terms import glossary
from tacit.report.words import counted_in, plain_meaning, protected_unit, stated_words, without_trust

FIELDS = (
    ("Purpose of the processing", "what the model is for, and what it must not be used for"),
    ("Controllers", "who decides on purpose and means; an agreement between joint controllers, if any"),
    ("Processors", "who runs the server, the network and, if there is one, the shuffler"),
    ("Legal basis", "of each party"),
    ("Persons concerned, and kinds of data", "including special categories, such as health data"),
    ("Records of one person", "how many one person may have at a silo, and at how many silos"),
    ("Recipients of the model", "everyone who gets it, also later"),
    ("Storage", "how long records, ledgers and model are kept, and where"),
    ("Impact assessment", "reference and date"),
    ("Why these epsilons are acceptable", "for these people and this purpose"),
    ("Decision, name, date and signature", ""),
)
_SENT = "rounds answered"

MADE_BY = "Made by tacit verify"
"""By these words a page of a certificate is distinguished from the page of a run, which has the same name."""


def dossier(
    verified: Mapping[str, Any], repeat: Repeat, *, own_job: bool, schema: SchemaTable | None = None
) -> str:
    """The page of a valid certificate, as HTML.

    Args:
        verified: what `tacit verify --json` prints.
        repeat: how to check it again.
        own_job: whether the reader gave a copy of the job, instead of trusting the one next to the certificate.
        schema: what the silos' tables hold, if the job has a schema.
    """
    body = verified["certificate"]
    silos = _silos(body)
    signed = {site: silo for site, silo in silos.items() if silo is not None}
    any_silo = next(iter(signed.values()), {})
    sections = [
        Section("The verdict", _verdict(verified, own_job=own_job)),
        Section("What was promised, and to whom", _promises(signed)),
        *([] if schema is None else [Section("What the model predicts, and from what", table_blocks(schema))]),
        *([correction_section(verified["correction"])] if verified.get("correction") else []),
        *_evaluation(verified),
        Section("Purpose and responsibility, to be filled in", [_FORM_NOTE, Form(FIELDS)]),
        Section("Parties and signatures", _parties(body, silos, verified)),
        Section("Budgets: spent and left", budget_blocks(signed)),
        *_learned(signed),
        Section("What was checked", _checks(verified)),
        Section("The guarantee in the terms of NIST SP 800-226", [Facts(_terms(any_silo, signed))]),
        Section("What was taken as public", [Paragraph(_public(signed))]),
        Section("What is not protected", [Paragraph(_not_protected(any_silo))]),
        Section("How to check this again", repeat_blocks(repeat, "The job, which everybody agreed to")),
    ]
    kind = "Run" if body["kind"] == "run" else f"Certificate of {body['site']}, run"
    return render_page(
        f"{kind} {str(body['run'])[:16]}: privacy dossier",
        f"What the silos of a federated run released, what it cost, and who signed for it. Job "
        f"{str(body['job'])[:16]}... {MADE_BY} from the certificate beside this page; the page itself is not "
        "signed.",
        sections,
    )


def refused(reason: str, repeat: Repeat) -> str:
    """The page of a certificate that is not valid."""
    return render_page(
        "This certificate is not valid",
        f"{MADE_BY}. Rely on nothing that the certificate says.",
        [
            Section("The verdict", [Verdict("bad", "Not valid", (reason,))]),
            Section("How to check this again", repeat_blocks(repeat, "The job")),
        ],
    )


_FORM_NOTE = Paragraph(
    ("No software knows these. Fill in the fields and save or print the page, or fill it in on paper.",)
)


def _evaluation(verified: Mapping[str, Any]) -> list[Section]:
    found = verified.get("evaluation")
    if not found:
        return []
    units = counted_in(silo for silo in _silos(verified["certificate"]).values() if silo)
    return [Section("How good the model is for new records", evaluation_blocks(found, units))]


def _silos(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    return dict(body["silos"]) if body["kind"] == "run" else {str(body["site"]): body}


def _verdict(verified: Mapping[str, Any], *, own_job: bool) -> list[Block]:
    blocks: list[Block] = []
    if verified["certificate"]["insecure_reproducible"]:
        blocks.append(Verdict("bad", "A trial", ("The noise came from a seed. It protected nobody.",)))
    if verified["identified"]:
        against = verified["keys_checked_against"]
        lines = [f"Signatures, numbers and sentences were checked; the keys were checked against {against}."]
        if str(against).startswith("job ") and not own_job:
            lines.append(
                "Whoever made the certificate chose that job. Compare its digest with that of the job your silo "
                "joined, which tacit silo prints, or give your own copy with --job."
            )
        blocks.append(Verdict("good", "Valid", tuple(lines)))
    else:
        words = (
            "The numbers add up, whoever signed them. Nobody vouches for the keys: anyone could have made this."
        )
        blocks.append(Verdict("fair", "Signers unknown", (words,)))
    if verified["held_against_others"]:
        blocks.append(Verdict("bad", "Evidence against other silos", tuple(verified["held_against_others"])))
    if verified["not_checked"]:
        blocks.append(Verdict("fair", "Not everything could be checked", tuple(verified["not_checked"])))
    return blocks


def _promises(signed: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    blocks: list[Block] = []
    alike: dict[tuple[Any, ...], list[str]] = {}
    for site, silo in signed.items():
        cost, unit = silo["epsilon"]["collaboration"], protected_unit(silo["unit"], silo["public"])
        alone = silo["run_if_others_help"].get("server", {}).get("epsilon")
        # As they are shown: the last digits of silos with the same promise may differ.
        shown = tuple(None if epsilon is None else round_up(epsilon) for epsilon in (cost, alone))
        key = (*shown, silo["delta"], unit, silo["adversary"], silo["adjacency"], silo["promise"])
        alike.setdefault((silo["insecure_reproducible"], *key), []).append(site)
    for (insecure, epsilon, alone, delta, unit, adversary, adjacency, promise), sites in alike.items():
        who = f"To the people whose records {', '.join(sites)} hold{'s' if len(sites) == 1 else ''}"
        if insecure or epsilon is None:
            blocks.append(Verdict("bad", f"{who}: nothing", (promise,)))
            continue
        tone, _ = strength(epsilon, delta)
        lines = (
            plain_promise(epsilon, delta, unit, adversary, adjacency),
            plain_meaning(epsilon, delta, unit, adversary, adjacency),
            *without_trust(adversary, alone, " of this run alone"),
        )
        blocks.append(Verdict(tone, f"{who}: epsilon {up_to(epsilon)}", lines))
        blocks.append(Folded("The same as it was signed", (promise,)))
    return blocks or [Verdict("fair", "No silo signed", ("No silo has stated what it released.",))]


def _parties(
    body: Mapping[str, Any], silos: Mapping[str, Mapping[str, Any] | None], verified: Mapping[str, Any]
) -> list[Block]:
    vouched = "named by the job" if verified["identified"] else "unknown to anybody here"
    rows: list[tuple[Any, ...]] = []
    if body["kind"] == "run":
        rows.append(("server", "signed the run", body["public_key"], vouched, None, None))
    for site, silo in silos.items():
        if silo is None:
            rows.append((site, "signed nothing", None, None, None, None))
            continue
        used = body["messages_used"].get(site) if body["kind"] == "run" else None
        rows.append((site, "signed what it released", silo["public_key"], vouched, silo["rounds_answered"], used))
    columns = ("party", "role", "public key (Ed25519)", "the key is", _SENT, "messages used")
    blocks: list[Block] = [SortableTable("parties", columns, tuple(rows))]
    problems = body.get("problems") or {}
    if problems:
        blocks.append(Folded("What went wrong on the way, as the server states it", tuple(_counted(problems))))
    return blocks


def _counted(problems: Mapping[str, Any]) -> list[str]:
    return [f"{what}: {times} times" for what, times in problems.items()]


def _learned(signed: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """The ranges that the silos learned before training, as they signed them."""
    learned = {site: silo["learned"] for site, silo in signed.items() if silo.get("learned")}
    if not learned:
        return []
    # The silos of a valid run all state the same ranges.
    found = next(iter(learned.values()))["ranges"]
    table = SortableTable(
        "learned ranges", ("column", "from", "to"), tuple((name, *pair) for name, pair in found.items())
    )
    sent = "; ".join(f"{site} {len(one['steps'])}" for site, one in learned.items())
    words = (
        "Before the first round, silos sent noisy counts of their records below thresholds. These ranges follow "
        "from the counts, and everybody who has the model knows them. Promises and budgets above include the "
        f"counts. How often each silo sent them: {sent}.",
    )
    return [Section("Ranges that were learned from the records", [table, Paragraph(words)])]


def _checks(verified: Mapping[str, Any]) -> list[Block]:
    lines = [("good", "Passed:", what) for what in verified["checked"]]
    lines += [("fair", "Not checked:", what) for what in verified["not_checked"]]
    lines += [("bad", "Against another silo:", what) for what in verified["held_against_others"]]
    stated = stated_words(verified["only_stated"])
    words = "Only stated: nobody else can check these"
    return [Marked(tuple(lines)), *([Verdict("fair", words, stated)] if stated else [])]


def _terms(silo: Mapping[str, Any], signed: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, Any], ...]:
    if not silo:
        return (("guarantee", "none: no silo signed one"),)
    noises = [float(one["noise_multiplier"]) for one in signed.values()]
    multiplier = " to ".join(dict.fromkeys(f"{end:.4g}" for end in (min(noises), max(noises))))
    return (
        *glossary(protected_unit(silo["unit"], silo["public"]), silo["adversary"], silo["adjacency"]),
        (
            "threat model",
            "Whoever runs the server may be curious, keep every message for ever, choose what to ask next, and "
            "know the records of everybody else. A silo answers only the job that it joined.",
        ),
        ("mechanism", f"{silo['noise']} noise, {multiplier} times the bound, added by every silo itself"),
        ("bound on one unit (sensitivity)", f"{silo['bound']}, {_plain(silo['clip_norm'])}"),
        ("sampling", str(silo["sampling"])),
        ("accounting", "; ".join(f"{name} {value}" for name, value in dict(silo["accountant"]).items())),
        (
            "randomness",
            "a seed: this was a trial"
            if silo["insecure_reproducible"]
            else "from each silo's operating system; sums are rounded to a lattice first, and that is charged",
        ),
        ("data collection exposure", "Records stay where they are. Who can read them there is up to each silo."),
    )


def _public(signed: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    named = dict.fromkeys(what for silo in signed.values() for what in silo["public"])
    return (
        *named,
        "the job: all settings, the schema (columns, ranges, categories) if any, the silos' names and keys",
        "who took part, and when",
    )


def _not_protected(silo: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [
        "Records against the silo that holds them, and against whoever breaks into it.",
        "What is true of a whole group: a model may show that smoking harms, also to people who took part.",
        "What follows from being in the data of a silo at all, if the silo's name says it (a cancer clinic).",
        "Anybody, if the noise was not drawn as stated: that rests on the silo's own software and operating "
        "system.",
        "The model against misuse, and decisions made with it.",
    ]
    if silo.get("unit") == "record":
        person = protected_unit("record", silo["public"]) == "person"
        lines[1:1] = [
            f"A person with {'rows at several silos' if person else 'several records'} as fully as the promise "
            "says for one: the epsilons of all of them add up.",
            "A silo as a whole: that it took part, how much it sent, and what most of its records have in "
            "common.",
        ]
    if silo.get("adversary") == "secure-sum":
        lines.append("Anybody to the full extent, if more silos than agreed help the server.")
    if silo.get("adversary") == "shuffler":
        lines.append(
            "Anybody to the full extent, if the shuffler helps the server; the certificate has that epsilon."
        )
    return tuple(lines)


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
