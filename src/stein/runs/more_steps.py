"""Continue a run to a new total number of steps. Imports no jax.

The new total goes into config.toml. Checkpoints carry the fingerprint of the config that they were made with, so
env.json keeps the earlier totals.
"""

import shutil
from collections.abc import Callable

import msgspec

from stein.runs import configs
from stein.runs.folder import RunFolder
from stein.storage import documents, durable

EARLIER = "train.steps before"  # in env.json


def check(folder: RunFolder, steps: int) -> configs.Config:
    """The run's config with a new total. An invalid total is rejected before anything is changed."""
    done = folder.steps_done
    config, before = configs.load_run(folder.config, steps), configs.load_run(folder.config)
    if steps <= done:
        raise ValueError(f"{folder}: --steps = {steps}: is the new total and must be above the {done} steps done")
    if folder.is_finished and done < before.train.steps:
        raise ValueError(
            f"{folder}: --steps = {steps}: train.early_stop = {before.train.early_stop} ended the run at step {done}, "
            "and would again; start another run with train.early_stop = 0"
        )
    if folder.newest_step < done:
        raise ValueError(f"{folder}: the checkpoint of step {done} is gone: there is nothing to go on from")
    return config


def allow(folder: RunFolder, config: configs.Config, warn: Callable[[str], None]) -> None:
    """Make ``config`` from :func:`check` the config of the run, finished or not. The caller holds the run's lock.

    After a crash in between, `stein resume` continues to the old total or the new one: the mark of the finished run is
    removed first, then its evaluation, and the new total is written last.
    """
    before, steps = configs.load_run(folder.config), config.train.steps
    for file in (folder.numbers, folder.summary, folder.evaluation, folder.curves):
        file.unlink(missing_ok=True)
        durable.sync(folder.path)
        durable.passing(f"{file.name}.removed")
    shutil.rmtree(folder.figures, ignore_errors=True)
    environment = documents.read_json(folder.environment)
    totals = dict.fromkeys([*environment.get(EARLIER, []), before.train.steps])
    documents.write_json(folder.environment, environment | {EARLIER: list(totals)})
    durable.replace(folder.config, configs.dump(config).encode())
    if config.rate_falls:
        warn(
            f"optimiser.schedule = {config.optimiser.schedule!r} now falls to step {steps}: "
            f"the learning rate jumps, and the run is not one of {steps} steps from the start"
        )
    if config.annealing.name != "none" and config.annealing_steps != before.annealing_steps:
        warn(
            f"annealing lasts a fifth of train.steps, now {config.annealing_steps} steps instead of "
            f"{before.annealing_steps}"
        )


def fingerprints(folder: RunFolder, config: configs.Config) -> set[str]:
    """Fingerprints of the run's config with each total that it has had."""
    earlier = documents.read_json(folder.environment).get(EARLIER, [])
    totals = [config.train.steps, *(total for total in earlier if isinstance(total, int))]
    trains = [msgspec.structs.replace(config.train, steps=total) for total in totals]
    return {configs.fingerprint(msgspec.structs.replace(config, train=train)) for train in trains}
