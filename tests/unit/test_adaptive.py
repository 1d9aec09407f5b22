"""Optuna's part of a search: what it proposes and is told, from runs whose numbers are made by hand."""

from pathlib import Path

import optuna
import pytest

from stein.runs import configs, search
from stein.runs.adaptive import Study
from stein.runs.folder import RunFolder
from stein.storage import documents
from stein.train import Moment

SPEC = """
[base.data]
name = "digits"
[base.train]
steps = 4000
[base.evaluation]
every = 100
[search]
kind = "tpe"
trials = 5
seed = {seed}
halving = true
[search.keys]
optimiser.learning_rate = {{low = 1e-4, high = 1e-2, log = true}}
model.hidden = [[4], [3, 3]]
method.particles = {{low = 2, high = 30}}
"""


def loaded(folder: Path, seed: int = 0) -> search.Plan:
    (folder / "spec.toml").write_text(SPEC.format(seed=seed))
    return search.load(folder / "spec.toml")


def begin(trial: search.Trial, folder: Path) -> RunFolder:
    run = RunFolder(trial.place(folder))
    run.path.mkdir(parents=True)
    run.config.write_text(configs.dump(trial.config))
    return run


def states(folder: Path, plan: search.Plan) -> list[tuple[str, float | None]]:
    return [(trial.state.name, trial.value) for trial in Study(folder, plan, 0).study.trials]


def test_a_trial_keeps_its_settings_and_others_have_their_own(tmp_path):
    """Catches settings that are drawn again after a kill, trials that all begin alike because each process has the
    same seed, and a seed that does nothing."""
    plan = loaded(tmp_path)
    first, again, second = (Study(tmp_path, plan, number).propose() for number in (0, 0, 1))
    assert first == again
    assert first.settings != second.settings
    (tmp_path / "other").mkdir()
    assert Study(tmp_path / "other", loaded(tmp_path, seed=1), 0).propose().settings != first.settings
    assert plan.trial(0, first.settings).config == first.config
    assert 1e-4 <= first.config.optimiser.learning_rate <= 1e-2


def test_what_ended_is_told_even_by_others_and_from_files_alone(tmp_path):
    """Catches finished trials that are forgotten when their process is killed, or with the journal, and trials whose
    members died that the sampler hears nothing of."""
    plan = loaded(tmp_path)
    proposed = [Study(tmp_path, plan, number).propose() for number in range(4)]
    whole, died, pruned, under_way = (begin(trial, tmp_path) for trial in proposed)
    documents.write_json(whole.numbers, {"test_nll": 0.5})
    documents.write_json(died.failure, {"reason": "particles 0, 1 are not finite"})
    documents.write_json(pruned.numbers, {"test_nll": 0.1})
    documents.write_json(pruned.pruned, {"step": 100})
    expected = [("COMPLETE", 0.5), ("PRUNED", None), ("PRUNED", None), ("RUNNING", None)]
    Study(tmp_path, plan, 4).propose()
    assert states(tmp_path, plan) == [*expected, ("RUNNING", None)]
    (tmp_path / "optuna.journal").unlink()
    study = Study(tmp_path, plan, 3)
    assert study.propose() == proposed[3]
    assert states(tmp_path, plan) == [*expected, ("WAITING", None)]
    assert [trial.params["method.particles"] for trial in study.study.trials[:4]] == [
        trial.settings["method.particles"] for trial in proposed
    ]
    search.check_folder(plan, tmp_path)
    under_way.config.write_text(configs.dump(plan.trial(3, proposed[3].settings).config).replace("4000", "3000"))
    with pytest.raises(ValueError, match=r"003/config.toml: is not trial 003 of this search"):
        search.check_folder(plan, tmp_path)


def test_halving_ends_what_is_behind_and_remembers_it(tmp_path):
    """Catches a sign that ends the best, a decision that a kill undoes, and a trial that is ended at its last step."""
    plan = loaded(tmp_path)

    def hook(number: int):
        study = Study(tmp_path, plan, number)
        trial = study.propose()
        if not trial.place(tmp_path).exists():
            begin(trial, tmp_path)
        return study.hook(trial)

    def moment(step: int, value: float | None) -> Moment:
        numbers = {} if value is None else {"test_nll": value}
        return Moment(step=step, last_step=4000, state=None, info=None, metrics=numbers)

    assert not hook(0)(moment(100, 0.5))
    behind = hook(1)
    assert not behind(moment(50, None))
    assert behind(moment(100, 0.9))
    assert documents.read_json(RunFolder(search.place(tmp_path, 1)).pruned) == {"step": 100}
    assert hook(1)(moment(110, None)), "decided before the kill"
    assert not hook(2)(moment(100, 0.4))
    assert not hook(3)(moment(4000, 9.0))
    assert not hook(0)(moment(100, 0.5)), "reported before the kill, and a warning if it were again"


def test_the_journal_is_optunas_own(tmp_path):
    """Catches a file that Optuna's other tools cannot read."""
    Study(tmp_path, loaded(tmp_path), 0).propose()
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.journal"))
    study = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    assert [trial.state.name for trial in study.trials] == ["RUNNING", *["WAITING"] * 4]
