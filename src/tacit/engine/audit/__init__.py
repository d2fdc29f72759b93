"""Auditing: how well can an adversary really tell which record a client held?"""

from tacit.engine.audit.final_model import audit_final_model
from tacit.engine.audit.one_run import audit_one_run
from tacit.engine.audit.recipe import audit_recipe
from tacit.engine.audit.repeated_runs import audit

__all__ = ["audit", "audit_final_model", "audit_one_run", "audit_recipe"]
