"""Private side computations: what a pipeline must know about the records before it trains, released and paid for.

Standardising features and choosing a clip norm are looks at private data. Here each of them is a Gaussian
release of every client by itself, which composes with training in one accountant:

>>> import tacit
>>> from functools import partial
>>> from tacit.privacy.side import *
>>> federation = tacit.load("digits", clients=3)
>>> total = tacit.Target(epsilon=8, delta=1e-4)
>>> share = split_target(total, 0.2)

>>> features = private_mean_and_scale(federation, FeatureBox(0, 1), target=share, seed=0)
>>> prepared = standardise(federation, *features.value)
>>> model = tacit.build_model("softmax", prepared)
>>> clip = clip_norm_from_quantile(model, prepared, lower=0.1, upper=10, target=share, seed=0)

>>> algorithm = tacit.soteriafl_gd(
...     model, bound=tacit.ClipNorm(clip.value), compressor=tacit.parse_compressor("identity"), step=0.5)
>>> trainings = [partial(algorithm.work.event, size, rounds=20) for size in prepared.sizes.unique().tolist()]
>>> left = remaining_target(total, [features, clip], trainings)
>>> run = tacit.simulate(tacit.plan(algorithm, prepared, rounds=20, privacy=left))
>>> promise = pipeline_guarantee([features, clip], run.guarantee)
>>> promise.meets(total)
True
"""

from tacit.privacy.side.budget import pipeline_event, pipeline_guarantee, remaining_target, split_target
from tacit.privacy.side.clip_norm import clip_norm_from_quantile
from tacit.privacy.side.feature_bounds import FeatureBall, FeatureBox
from tacit.privacy.side.moments import MeanAndScale, private_mean_and_scale, standardise
from tacit.privacy.side.quantile import private_quantile
from tacit.privacy.side.release import SideRelease

__all__ = [
    "FeatureBall",
    "FeatureBox",
    "MeanAndScale",
    "SideRelease",
    "clip_norm_from_quantile",
    "pipeline_event",
    "pipeline_guarantee",
    "private_mean_and_scale",
    "private_quantile",
    "remaining_target",
    "split_target",
    "standardise",
]
