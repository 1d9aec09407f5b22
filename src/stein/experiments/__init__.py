"""Runs with a name: from settings to numbers."""
