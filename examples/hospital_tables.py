"""Make the tables of the examples: `python hospital_tables.py FOLDER`.

Five hospitals with a table each (numbers, categories, gaps, a text target, an id), one table of new patients, and
one table of visits in which patients have several rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"north": 1400, "south": 900, "east": 600, "west": 400, "coast": 250}


def patients(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Patients of one hospital; whether they are readmitted depends on age, pressure, smoking and ward."""
    age, pressure = rng.normal(62, 14, rows).clip(18, 100), rng.normal(135, 18, rows)
    smoker, ward = rng.choice(["no", "yes"], rows, p=[0.7, 0.3]), rng.choice(["heart", "lung", "other"], rows)
    score = (age - 62) / 8 + (pressure - 135) / 12 + 1.5 * (smoker == "yes") + (ward == "heart") - 1.2
    table = pd.DataFrame(
        {
            "patient_id": [f"P{number:06}" for number in rng.permutation(rows)],
            "age": age.round(),
            "pressure": pressure.round(),
            "smoker": smoker,
            "ward": ward,
            "admitted": pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "readmitted": np.where(score + rng.logistic(size=rows) > 0, "yes", "no"),
        }
    )
    table.loc[rng.random(rows) < 0.08, "pressure"] = np.nan
    table.loc[rng.random(rows) < 0.05, "smoker"] = None
    return table


def visits(persons: int, rng: np.random.Generator) -> pd.DataFrame:
    """Several visits of each patient, at hospitals of very different sizes; the cost is a whole number."""
    who = np.repeat(np.arange(persons), rng.geometric(0.25, persons).clip(1, 20))
    stay, severity = rng.poisson(4, len(who)) + 1, rng.normal(0, 1, persons)[who]
    hospital = rng.choice(list(HOSPITALS), persons, p=[0.4, 0.25, 0.2, 0.1, 0.05])[who]
    cost = 800 + 650 * stay + 900 * severity + rng.normal(0, 400, len(who))
    return pd.DataFrame(
        {
            "patient": [f"P{number:05}" for number in who],
            "hospital": hospital,
            "stay": stay,
            "severity": severity.round(2),
            "cost": cost.clip(0).round().astype(int),
        }
    ).sample(frac=1, random_state=0)


def main(folder: Path) -> None:
    """Write all tables."""
    rng = np.random.default_rng(7)
    for name, rows in HOSPITALS.items():
        patients(rows, rng).to_csv(folder / f"{name}.csv", index=False)
    patients(5, rng).drop(columns="readmitted").to_csv(folder / "new.csv", index=False)
    visits(1500, rng).to_csv(folder / "visits.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
