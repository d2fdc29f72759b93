"""The public description of a table: what its columns mean, what is predicted, who holds which record.

schema.py   what a schema says; reading, writing and checking schema.toml
values.py   a table's columns as plain numbers, refusing what the schema does not describe
encode.py   these numbers as features of about size 1
draft.py    a first schema for a table, with a mark on everything that was taken from its records
records.py  a table with its schema as records: whose they are, which are held back
"""

from __future__ import annotations

from tacit.data.schema.draft import draft_schema
from tacit.data.schema.encode import feature_names, record_shape
from tacit.data.schema.schema import Column, Predicted, Schema

__all__ = ["Column", "Predicted", "Schema", "draft_schema", "feature_names", "record_shape"]
