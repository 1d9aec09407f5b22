"""The command line. Nothing heavy is imported until a command runs: `stein --help` answers at once."""

from stein.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
