"""The public names of tacit, each with its home: the list that editors, type checkers and `tacit` itself read."""

# Rooms, for what has no name of its own here.
from tacit import algorithms as algorithms
from tacit import client as client
from tacit import compress as compress
from tacit import data as data
from tacit import models as models
from tacit import noise as noise
from tacit import privacy as privacy
from tacit import report as report
from tacit import schedules as schedules
from tacit import server as server
from tacit import shuffle as shuffle
from tacit import sklearn as sklearn
from tacit import theory as theory
from tacit._version import __version__ as __version__

# What is run: a plan, its run, and what is compared.
from tacit.engine.plan import Plan as Plan
from tacit.engine.plan import make_plan as make_plan
from tacit.engine.plan import plan as plan
from tacit.engine.private import PrivateTraining as PrivateTraining
from tacit.engine.private import make_private as make_private
from tacit.engine.simulate import simulate as simulate
from tacit.engine.run import Run as Run
from tacit.engine.history import History as History
from tacit.engine.trained import Trained as Trained
from tacit.engine.loaded import LoadedRun as LoadedRun
from tacit.engine.loaded import load_run as load_run
from tacit.engine.recipe import Recipe as Recipe
from tacit.engine.compare import Outcome as Outcome
from tacit.engine.compare import compare as compare
from tacit.engine.audit import audit as audit
from tacit.engine.watch import Watcher as Watcher
from tacit.engine.logs import CsvLog as CsvLog
from tacit.engine.logs import TensorBoardLog as TensorBoardLog
from tacit.engine.logs import MlflowLog as MlflowLog
from tacit.report.curves import plot_run as plot_run
from tacit.report.labels import plot_labels as plot_labels

# Records.
from tacit.federation import Batch as Batch
from tacit.federation import Federation as Federation
from tacit.data import from_files as from_files
from tacit.data import load as load
from tacit.data.schema import Schema as Schema
from tacit.data.schema import draft_schema as draft_schema

# Promises.
from tacit.privacy import Adjacency as Adjacency
from tacit.privacy import Adversary as Adversary
from tacit.privacy import Guarantee as Guarantee
from tacit.privacy import Target as Target
from tacit.privacy import Unit as Unit
from tacit.side import SideRelease as SideRelease

# Algorithms, one file a paper.
from tacit.algorithms.algorithm import Algorithm as Algorithm
from tacit.algorithms.registry import ALGORITHMS as ALGORITHMS
from tacit.algorithms.registry import AlgorithmEntry as AlgorithmEntry
from tacit.algorithms.settings import About as About
from tacit.algorithms.registry import build_algorithm as build_algorithm
from tacit.algorithms.soteriafl import cdp_sgd as cdp_sgd
from tacit.algorithms.soteriafl import ldp_sgd as ldp_sgd
from tacit.algorithms.soteriafl import ldp_svrg as ldp_svrg
from tacit.algorithms.soteriafl import soteriafl_gd as soteriafl_gd
from tacit.algorithms.soteriafl import soteriafl_saga as soteriafl_saga
from tacit.algorithms.soteriafl import soteriafl_sgd as soteriafl_sgd
from tacit.algorithms.soteriafl import soteriafl_svrg as soteriafl_svrg
from tacit.algorithms.isrl_dp import accelerated as accelerated
from tacit.algorithms.isrl_dp import accelerated_mb_sgd as accelerated_mb_sgd
from tacit.algorithms.isrl_dp import local_sgd as local_sgd
from tacit.algorithms.isrl_dp import mb_sgd as mb_sgd
from tacit.algorithms.isrl_dp import noisy_local_sgd as noisy_local_sgd
from tacit.algorithms.isrl_dp import noisy_mb_sgd as noisy_mb_sgd
from tacit.algorithms.shuffled import shuffled_accelerated as shuffled_accelerated
from tacit.algorithms.shuffled import shuffled_mb_sgd as shuffled_mb_sgd
from tacit.algorithms.fedavg import dp_fedavg as dp_fedavg
from tacit.algorithms.fedavg import dp_normfedavg as dp_normfedavg
from tacit.algorithms.fedavg import fedavg as fedavg
from tacit.algorithms.fed_spa import cpsgd as cpsgd
from tacit.algorithms.fed_spa import dp_fed as dp_fed
from tacit.algorithms.fed_spa import fed_spa as fed_spa
from tacit.algorithms.scaffold import dp_scaffold as dp_scaffold
from tacit.algorithms.error_feedback import ef21_sgdm as ef21_sgdm

# Models.
from tacit.models.model import Model as Model
from tacit.models.gradients import Gradients as Gradients
from tacit.models import LinearModel as LinearModel
from tacit.models import ModuleModel as ModuleModel
from tacit.models import NonconvexPenalty as NonconvexPenalty
from tacit.models import Quadratic as Quadratic
from tacit.models import Ridge as Ridge
from tacit.models import SigmoidNetwork as SigmoidNetwork
from tacit.models.registry import build_model as build_model
from tacit.models.fixes import fix as fix

# What a client does: sampling, bound, estimator, noise, work.
from tacit.client.cohort import Cohort as Cohort
from tacit.client.sampling import Full as Full
from tacit.client.sampling import OnePass as OnePass
from tacit.client.sampling import Poisson as Poisson
from tacit.client.sampling import Sampling as Sampling
from tacit.client.sampling import WithReplacement as WithReplacement
from tacit.client.sampling import WithoutReplacement as WithoutReplacement
from tacit.client.bounds import Bound as Bound
from tacit.client.bounds import ClipEachCoordinate as ClipEachCoordinate
from tacit.client.bounds import ClipNorm as ClipNorm
from tacit.client.bounds import Normalise as Normalise
from tacit.client.bounds import Unbounded as Unbounded
from tacit.client.estimators import Estimator as Estimator
from tacit.client.estimators import Minibatch as Minibatch
from tacit.client.estimators import Saga as Saga
from tacit.client.estimators import Svrg as Svrg
from tacit.noise.additive import LatticeGaussian as LatticeGaussian
from tacit.noise.additive import Noise as Noise
from tacit.noise.additive import SeededGaussian as SeededGaussian
from tacit.noise.binomial import Binomial as Binomial
from tacit.client.private_gradient import PrivateGradient as PrivateGradient
from tacit.client.work import Work as Work
from tacit.client.local_steps import NoisyLocalSteps as NoisyLocalSteps
from tacit.client.controlled_steps import ControlledSteps as ControlledSteps
from tacit.client.bounded_update import BoundedUpdate as BoundedUpdate
from tacit.client.quantile_update import QuantileUpdate as QuantileUpdate
from tacit.client.coin_gradient import CoinGradient as CoinGradient
from tacit.client.binomial_gradient import BinomialGradient as BinomialGradient

# How a message is made.
from tacit.compress import Chain as Chain
from tacit.compress import Compressor as Compressor
from tacit.compress import ControlVariates as ControlVariates
from tacit.compress import Direct as Direct
from tacit.compress import ErrorFeedback as ErrorFeedback
from tacit.compress import Identity as Identity
from tacit.compress import Natural as Natural
from tacit.compress import Packets as Packets
from tacit.compress import Qsgd as Qsgd
from tacit.compress import RandK as RandK
from tacit.compress import Shifted as Shifted
from tacit.compress import TopK as TopK
from tacit.compress import Uplink as Uplink
from tacit.compress import parse_compressor as parse_compressor
from tacit.compress.grid import WholeSteps as WholeSteps
from tacit.compress.support import MessageSupport as MessageSupport

# What the server does.
from tacit.server.update import Averaged as Averaged
from tacit.server.update import Descent as Descent
from tacit.server.self_tuned import SelfTuned as SelfTuned
from tacit.server.update import Kept as Kept
from tacit.server.quantile_clip import QuantileClip as QuantileClip
from tacit.server.update import Output as Output
from tacit.server.update import ServerUpdate as ServerUpdate
from tacit.server.accelerated import Accelerated as Accelerated
from tacit.server.accelerated import Stage as Stage
from tacit.server.adaptive import Adaptive as Adaptive
from tacit.server.projection import Ball as Ball
from tacit.server.projection import Box as Box
from tacit.server.projection import Everywhere as Everywhere
from tacit.server.projection import Projection as Projection
from tacit.server.participation import Everyone as Everyone
from tacit.server.participation import FixedNumber as FixedNumber
from tacit.server.participation import Participation as Participation
from tacit.server.participation import PoissonClients as PoissonClients
from tacit.server.participation import RandomNumber as RandomNumber
from tacit.schedules import Constant as Constant
from tacit.schedules import Exponential as Exponential
from tacit.schedules import InverseSqrt as InverseSqrt
from tacit.schedules import Schedule as Schedule
from tacit.state import State as State

# Whom a promise relies on.
from tacit.algorithms.trust import Aggregator as Aggregator
from tacit.algorithms.trust import Nobody as Nobody
from tacit.algorithms.trust import Trust as Trust
from tacit.algorithms.shuffler import Shuffler as Shuffler
from tacit.algorithms.secure_sum import SecureSum as SecureSum

# Errors.
from tacit.errors import DataError as DataError
from tacit.errors import DivergedError as DivergedError
from tacit.errors import MessageError as MessageError
from tacit.errors import RequestError as RequestError
from tacit.errors import TacitError as TacitError
