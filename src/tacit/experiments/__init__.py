"""Every table and figure of the papers as a runnable experiment, with one file per paper."""
