"""The commands, each a function whose signature is its options and whose docstring is its help.

Nothing heavy is imported until a command runs: `stein --help` answers at once.
"""

from collections.abc import Callable

from stein.commands.machine import data, doctor, methods
from stein.commands.runs import config, evaluate, resume, status, train
from stein.commands.studies import demo, reproduce, sweep

COMMANDS: dict[str, Callable[..., None]] = {
    "methods": methods,
    "doctor": doctor,
    "demo": demo,
    "reproduce": reproduce,
    "config": config,
    "data": data,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "sweep": sweep,
    "status": status,
}
