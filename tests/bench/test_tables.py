"""`benchmarks/tables.py` compares with scikit-learn on the rows that tacit learns from and is measured on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from benchmarks import tables

from tacit.data.schema import draft_schema
from tacit.data.schema.records import TableSource, federate


@pytest.mark.parametrize("person", [None, "who"])
def test_both_have_the_same_rows(person: str | None) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300), "who": np.arange(300) // 3 % 60, "site": np.arange(300) % 2})
    frame["y"] = frame["x"] + rng.normal(0, 0.1, 300)
    schema = draft_schema(frame, target="y", client="site", person=person).schema
    train, test = tables.split(frame, schema, None)
    assert sorted([*train, *test]) == list(range(300))
    found = federate([TableSource(frame, "t")], schema)
    if person is None:
        assert found.test_targets is not None
        assert found.records == len(train)
        held = schema.target.centre + schema.target.half * found.test_targets.numpy()
        np.testing.assert_allclose(held, frame["y"].iloc[test], rtol=1e-5)
    else:
        names = [
            set(zip(frame["site"].iloc[rows], frame["who"].iloc[rows], strict=True)) for rows in (train, test)
        ]
        assert not names[0] & names[1]
        assert found.records == len(names[0])
    assert tables.reference(frame, schema, train, test)[0] > 90
