"""The named algorithms: one short composition each, one file a paper."""
