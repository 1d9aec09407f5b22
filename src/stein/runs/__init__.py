"""Runs: an ensemble from a config file to its numbers, in a directory that survives crashes."""
