"""The named algorithms. Each is a short composition of parts, with one file per paper."""
