"""Every table and figure of the papers as a runnable experiment, one file a paper."""
