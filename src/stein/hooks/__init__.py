"""Hooks for :func:`stein.train.run`, called between two chunks of training.

A hook is a function of a :class:`~stein.train.Moment`; your own can be used beside these::

    with hooks.progress() as bar, hooks.tensorboard("tb") as board:
        train.run(algorithm, state, batches, 10_000, chunk=100, hooks=[
            hooks.diagnostics(algorithm, batches), board, bar, hooks.Checkpoints("checkpoints", every=1000),
        ])

They run on the host in the given order and never in the background: an error in one of them ends the training at
once.
"""

from stein.hooks.measures import diagnostics, evaluation, far_spread, members
from stein.hooks.records import Checkpoints, Log, early_stopping, has_stalled
from stein.hooks.trackers import Stopwatch, mlflow, progress, tag, tensorboard, wandb

__all__ = [
    "Checkpoints",
    "Log",
    "Stopwatch",
    "diagnostics",
    "early_stopping",
    "evaluation",
    "far_spread",
    "has_stalled",
    "members",
    "mlflow",
    "progress",
    "tag",
    "tensorboard",
    "wandb",
]
