"""Bytes that survive: files that are whole or absent, checkpoints, and how files from strangers are read."""
