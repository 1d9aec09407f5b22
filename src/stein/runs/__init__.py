"""Runs: train and evaluate an ensemble from a config file, in a directory that survives crashes."""
