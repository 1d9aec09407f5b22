"""The command line. Heavy imports wait until a command runs, so that `stein --help` is fast."""

from stein.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
