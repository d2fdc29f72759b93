"""One real table, as it comes: tacit, tacit with sums, and scikit-learn without privacy (docs/results/tables.md).

    python benchmarks/tables.py visits.csv --target visits --client region --leave-out ldurat --seeds 3
    python benchmarks/tables.py visits.csv --schema schema.toml

The first drafts a schema without the columns of --leave-out, and takes the rest of the draft as public; the
second takes a schema as it is. All the rest is what a user types: `tacit run`, then `tacit.load_run`. scikit-
learn has the same rows to learn from and the same columns, with its usual preparation: medians in gaps,
standardised numbers, one-hot categories. Accuracy in percent, or R2 in points against the targets as they are,
on the same held-back rows; beside it, the area under the curve of two classes.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import tacit
from tacit.data.files import read_table
from tacit.data.schema import Column, Schema, draft_schema
from tacit.data.schema.cells import as_numbers, with_gaps
from tacit.data.schema.plain import Places, as_text
from tacit.data.schema.records import TableSource, federate
from tacit.data.schema.values import table_values, usable_rows

Rows = NDArray[np.int64]
ROW = "row of the table"
EXACT = 2.0**23
"""Row numbers divided by this are exact in single precision."""


def main() -> None:
    """Print one line for each way of learning from the table."""
    asked = _arguments()
    frame = read_table(asked.table)
    schema = Schema.read(asked.schema) if asked.schema else _drafted(frame, asked)
    if asked.schema and schema.client is None and asked.clients is None:
        raise SystemExit("the schema names no client column: deal the rows with --clients N")
    usable = usable_rows(frame, schema, str(asked.table))
    train, test = split(usable, schema, asked.clients)
    print(
        f"{len(usable):,} rows, {len(train):,} to learn from; predicts {schema.target.column} "
        f"({schema.target.task})"
    )
    print(f"scikit-learn       {_words([reference(usable, schema, train, test)])}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "schema.toml"
        path.write_text(schema.to_toml())
        for trust in asked.trust:
            command = ["run", "--data", str(asked.table), "--schema", str(path), "--public-schema", "--epsilon"]
            command += [str(asked.epsilon), "--seeds", str(asked.seeds), "--out", f"{place}/{trust}", "--quiet"]
            command += [] if trust == "none" else ["--trust", trust]
            command += [] if asked.clients is None else ["--clients", str(asked.clients)]
            command += shlex.split(asked.more)
            subprocess.run([sys.executable, "-m", "tacit", *command], check=True)
            found = [
                score(tacit.load_run(f"{place}/{trust}/seed-{seed}"), usable.iloc[test], schema)
                for seed in range(asked.seeds)
            ]
            print(f"tacit, trust {trust:5} {_words(found)}", flush=True)


def _drafted(frame: pd.DataFrame, asked: argparse.Namespace) -> Schema:
    said = {name: getattr(asked, name) for name in ("target", "client", "person", "task")}
    schema = draft_schema(frame, **said, leave_out=asked.leave_out).schema
    if schema.client is None and asked.clients is None:
        asked.clients = 5
    return schema


def split(frame: pd.DataFrame, schema: Schema, clients: int | None) -> tuple[Rows, Rows]:
    """The places of the rows that tacit learns from, and of those that it holds back."""
    made = frame.assign(**{ROW: np.arange(len(frame))})
    most = 1 if schema.person is None else int(frame.groupby(schema.person).size().max())
    numbers = (Column(ROW, "number", range=(-EXACT, EXACT)),)
    found = federate(
        [TableSource(made, "the table")],
        replace(schema, columns=numbers, left_out={}, ends=1.0, rows=most, looked_at=()),
        clients=clients,
    )
    assert found.test_features is not None, "some rows are held back"
    features = [part.double().numpy() for part in (found.features, found.test_features)]
    if schema.person is None:
        train, test = (np.rint(part[:, 0] * EXACT).astype(np.int64) for part in features)
    else:
        # A row of a person is its features, its target and its share, which is 0 where there is none.
        train, test = (np.rint(part[part[..., -1] > 0][:, 0] * EXACT).astype(np.int64) for part in features)
    return train, test


def reference(frame: pd.DataFrame, schema: Schema, train: Rows, test: Rows) -> list[float]:
    """What scikit-learn reaches without privacy."""
    values = pd.DataFrame(table_values(frame, schema, strict=False), columns=[c.name for c in schema.columns])
    words = [column for column in schema.columns if column.type == "category"]
    for column in words:
        raw = with_gaps(frame[column.name], column.gaps)
        values[column.name] = raw.map(as_text, na_action="ignore").astype(object).fillna("missing").to_numpy()
    numbers = [name for name in values.columns if name not in {column.name for column in words}]
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), [column.name for column in words]),
    )
    last: Any = LogisticRegression(max_iter=2000) if schema.target.classed else Ridge()
    model = make_pipeline(prepare, last)
    targets = _targets(frame, schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(values.iloc[train], targets[train])
        predicted = model.predict(values.iloc[test])
        likely = model.predict_proba(values.iloc[test]) if schema.target.classed else None
    return _scores(targets[test], predicted, likely, schema, getattr(model, "classes_", ()))


def score(run: Any, frame: pd.DataFrame, schema: Schema) -> list[float]:
    """What a finished run of tacit reaches on these rows."""
    likely = run.predict_proba(frame) if schema.target.classed else None
    return _scores(_targets(frame, schema), run.predict(frame), likely, schema, run.classes or ())


def _targets(frame: pd.DataFrame, schema: Schema) -> NDArray[Any]:
    column = frame[schema.target.column]
    if schema.target.classed:
        places = Places(schema.target.classes)
        return column.map(lambda value: schema.target.classes[places.get(value)]).to_numpy(dtype=str)
    return as_numbers(column, schema.target.unit).to_numpy(dtype=np.float64)


def _scores(
    targets: NDArray[Any], predicted: NDArray[Any], likely: NDArray[Any] | None, schema: Schema, names: Any
) -> list[float]:
    """R2; or the accuracy and, of two classes, the area under the curve. `likely` has a column for each name."""
    if likely is None:
        return [100 * r2_score(targets, predicted)]
    right = 100 * accuracy_score(targets, predicted.astype(str))
    if schema.target.task != "binary":
        return [right]
    second = schema.target.classes[1]
    return [right, 100 * roc_auc_score(targets == second, likely[:, list(names).index(second)])]


def _words(found: list[list[float]]) -> str:
    each = ", ".join(f"{one[0]:.1f}" for one in found)
    said = f"{mean(one[0] for one in found):.1f}" + (f" ({each})" if len(found) > 1 else "")
    return said + (f", area under the curve {mean(one[1] for one in found):.1f}" if len(found[0]) > 1 else "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, help="a CSV file")
    parser.add_argument("--schema", type=Path, help="the schema; by default a draft")
    for name in ("target", "client", "person", "task"):
        parser.add_argument(f"--{name}", help="as in tacit schema draft")
    parser.add_argument("--leave-out", nargs="*", default=[], help="as in tacit schema draft")
    parser.add_argument("--clients", type=int, help="deal the rows to so many clients; 5 if no column names them")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trust", nargs="*", default=["none", "sum"], help="none, sum")
    parser.add_argument("--more", default="", help="more options of tacit run, in quotes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
