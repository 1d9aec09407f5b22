"""A search whose trials learn from earlier ones: Optuna's TPE, with successive halving.

Trial n of the search is trial n of an Optuna study in ``optuna.journal``, a file that many processes append to. The
runs in ``trials/`` are what counts: the study is brought up to date from them, even if its file was deleted.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from stein.runs.folder import RunFolder
from stein.runs.search import Plan, Range, Trial, place
from stein.storage import documents
from stein.train import Hook, Moment


class Study:
    """The search as one of its trials sees it.

    Args:
        number: of the trial. Its settings depend on the seed, on this number and on the trials known when it begins.
    """

    def __init__(self, folder: Path, plan: Plan, number: int):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.plan, self.number = folder, plan, number
        seed = int(np.random.SeedSequence([plan.search.seed, number]).generate_state(1)[0])
        backend = JournalFileBackend(str(folder / "optuna.journal"))
        self.study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="sweep",
            sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),  # trials under way count as bad
            direction="minimize" if plan.search.sign > 0 else "maximize",
            load_if_exists=True,
        )
        # Several processes may do this at once: there are then a few more trials than anybody takes.
        while len(self.study.get_trials(deepcopy=False)) < plan.length:
            self.study.enqueue_trial({})

    def propose(self) -> Trial:
        """The trial as it was begun by any process, or with new settings."""
        for number in range(self.plan.length):
            if number != self.number and RunFolder(place(self.folder, number)).has_ended:
                self._tell(number)  # its process may have been killed before it could
        return self.plan.trial(self.number, self._settings(self.number))

    def tell(self) -> None:
        """Let later trials know how this one ended."""
        self._tell(self.number)

    def hook(self, trial: Trial) -> Hook:
        """Ends the trial if it is behind: of all that came as far, the best quarter goes on to four times as far."""
        run, reported = RunFolder(place(self.folder, self.number)), self._known(self.number).intermediate_values
        self.study.pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=trial.config.evaluation.every)
        progress = self._drawn(self.number)

        def hook(moment: Moment) -> bool:
            value = moment.metrics.get(self.plan.metric)
            if value is not None and moment.step < moment.last_step and not run.pruned.exists():
                if moment.step not in reported:  # before a kill
                    progress.report(value, moment.step)
                if progress.should_prune():
                    documents.write_json(run.pruned, {"step": moment.step})
            return run.pruned.exists()

        return hook

    def _tell(self, number: int) -> None:
        if self._known(number).state.is_finished():
            return
        self._settings(number)
        run = RunFolder(place(self.folder, number))
        value = documents.read_json(run.numbers).get(self.plan.metric)
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):  # another process was faster
            if value is None or run.pruned.exists():
                # Also a trial whose members died: the sampler ignores failed trials, and would try the like again.
                self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
            else:
                self.study.tell(number, value, skip_if_finished=True)

    def _settings(self, number: int) -> dict[str, Any]:
        """The settings of a trial: those of its run, or drawn, once and for all processes."""
        trial = self._drawn(number)
        return {key: _suggested(trial, key, values) for key, values in self.plan.choices.items()}

    def _drawn(self, number: int) -> optuna.Trial:
        """A trial that has begun; its settings can be asked for."""
        known, begun = self._known(number), self.plan.begun(number, self.folder)
        storage, identity = self.study._storage, known._trial_id
        if known.state == TrialState.WAITING:
            if begun:  # the journal was deleted
                fixed = {key: _label(value) for key, value in begun.settings.items()}
                storage.set_trial_system_attr(identity, "fixed_params", fixed)
            storage.set_trial_state_values(identity, TrialState.RUNNING)
        return optuna.Trial(self.study, identity)

    def _known(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]


def _suggested(trial: optuna.Trial, key: str, values: list[Any] | Range) -> Any:
    if isinstance(values, list):
        labels = [_label(value) for value in values]
        return values[labels.index(trial.suggest_categorical(key, labels))]
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(key, values.low, values.high, log=values.log)
    return trial.suggest_float(key, values.low, values.high, log=values.log)


def _label(value: Any) -> Any:
    """A value as Optuna can store it: lists, such as the layers of a model, as text."""
    return json.dumps(value) if isinstance(value, (list, tuple, dict)) else value
