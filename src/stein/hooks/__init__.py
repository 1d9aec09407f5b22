"""What happens between two chunks of training: the usual hooks for :func:`stein.train.run`.

A hook is a function of a :class:`~stein.train.Moment`; yours stands beside these::

    with hooks.progress() as bar, hooks.tensorboard("tb") as board:
        train.run(algorithm, state, batches, 10_000, chunk=100, hooks=[
            hooks.diagnostics(algorithm, batches), board, bar, hooks.Checkpoints("checkpoints", every=1000),
        ])

They run on the host in the order given and nothing runs in the background: an error in one of them ends the training
there and then.
"""

from stein.hooks.measures import diagnostics, evaluation, members
from stein.hooks.records import Checkpoints, Log, early_stopping, has_stalled
from stein.hooks.trackers import Stopwatch, mlflow, progress, tag, tensorboard, wandb

__all__ = [
    "Checkpoints",
    "Log",
    "Stopwatch",
    "diagnostics",
    "early_stopping",
    "evaluation",
    "has_stalled",
    "members",
    "mlflow",
    "progress",
    "tag",
    "tensorboard",
    "wandb",
]
