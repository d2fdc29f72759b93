"""Privacy: what happened, what it costs, how much noise a target needs, and what is promised."""

from tacit.privacy.accounting import delta, epsilon
from tacit.privacy.calibrate import calibrate_noise
from tacit.privacy.guarantee import ClientGroup, Guarantee, Target
from tacit.privacy.rdp import rdp_epsilon
from tacit.privacy.terms import Adjacency, Adversary, Unit

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
