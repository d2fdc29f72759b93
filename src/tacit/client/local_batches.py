"""The batches of a round's local steps, drawn all at once where that gives the same records with less work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.client.sampling import FixedSize, Full, Sampling
from tacit.federation import Batch
from tacit.noise import philox
from tacit.noise.randomness import Purpose


def local_batches(sampling: Sampling, cohort: Cohort, steps: int) -> Iterator[Batch]:
    """The batch of each of a round's local steps: the same as `sampling.draw` gives step by step."""
    if type(sampling) is Full:
        yield from repeat(cohort.everything(), steps)
    elif type(sampling) is FixedSize and _drawn_together(sampling, cohort.sizes):
        rows, counts = _rows_of_round(sampling, cohort, steps)
        for one_step in rows:
            yield cohort.federation.take(one_step, counts)
    else:
        for step in range(steps):
            yield sampling.draw(replace(cohort, step=step, steps=steps)).batch


def _drawn_together(sampling: FixedSize, sizes: Tensor) -> bool:
    """Whether `_rows_of_round` can draw the batches of clients of these sizes."""
    return sampling.replacement and bool((sampling.batch_sizes(sizes) <= philox.FIRST).all())


def _rows_of_round(sampling: FixedSize, cohort: Cohort, steps: int) -> tuple[Tensor, Tensor]:
    """The records of all steps of a round, (steps, records), and the number of each client in a step."""
    counts = sampling.batch_sizes(cohort.sizes).long()
    most = int(counts.max())
    picks = cohort.integers_of_round(Purpose.SAMPLE, cohort.sizes.tolist(), steps, most)
    # A batch is not larger than its client: a small client uses the start of the same numbers.
    unused = (torch.arange(most) >= counts[:, None]).numpy()
    picks[:, unused] = np.iinfo(np.int32).max
    picks.sort(axis=2)
    flat = picks + cohort.federation.offsets[cohort.clients].numpy()[:, None]
    return torch.from_numpy(flat[:, ~unused]), counts
