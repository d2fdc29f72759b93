"""Privacy: events, their cost, calibration of the noise to a target, and the promises made."""

from tacit.privacy.accountant.accounting import delta, epsilon
from tacit.privacy.accountant.calibrate import calibrate_noise
from tacit.privacy.accountant.rdp import rdp_epsilon
from tacit.privacy.promises.guarantee import ClientGroup, Guarantee, Target
from tacit.privacy.promises.terms import Adjacency, Adversary, Unit

__all__ = [
    "Adjacency",
    "Adversary",
    "ClientGroup",
    "Guarantee",
    "Target",
    "Unit",
    "calibrate_noise",
    "delta",
    "epsilon",
    "rdp_epsilon",
]
