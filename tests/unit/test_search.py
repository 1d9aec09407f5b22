"""What a search tries, and what it refuses before it has started anything."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stein.runs import configs, search
from stein.runs.configs import ConfigError

BASE = """
[base.data]
name = "digits"
classes = [0, 1]
[base.train]
steps = 200
"""
GRID = """
[search]
metric = "test_accuracy"
[search.keys]
optimiser.learning_rate = [1e-3, 1e-2]
"annealing.name" = ["none", "linear", "cyclical"]
"""
RANDOM = """
[search]
kind = "random"
trials = {trials}
seed = {seed}
[search.keys]
optimiser.learning_rate = {{low = 1e-4, high = 1e-2, log = true}}
method.temperature = {{low = 0.0005, high = 1}}
method.particles = {{low = 2, high = 4}}
train.batch_size = {{low = 1, high = 128, log = true}}
annealing.name = ["none", "linear"]
"""
TPE = """
[search]
kind = "tpe"
trials = 4
[search.keys]
optimiser.learning_rate = {low = 1e-4, high = 1e-2, log = true}
annealing.name = ["none", "linear"]
"""


def load(folder: Path, text: str) -> search.Plan:
    (folder / "spec.toml").write_text(text)
    return search.load(folder / "spec.toml")


def test_a_grid_has_every_combination_once(tmp_path):
    """Keys with dots as TOML reads them, quoted or not. Catches settings that do not reach the config."""
    plan = load(tmp_path, BASE + GRID)
    chosen = [(trial.config.optimiser.learning_rate, trial.config.annealing.name) for trial in plan.trials]
    assert chosen == [(rate, name) for rate in (1e-3, 1e-2) for name in ("none", "linear", "cyclical")]
    assert [tuple(trial.settings.values()) for trial in plan.trials] == chosen
    assert [trial.name for trial in plan.trials] == ["000", "001", "002", "003", "004", "005"]
    assert all(trial.config.train.steps == 200 for trial in plan.trials)
    assert (plan.search.metric, plan.search.sign) == ("test_accuracy", -1)


def test_random_trials_are_drawn_as_asked(tmp_path):
    """Catches a range that is left, a linear draw where log is asked, ends that are never drawn, and values of two
    trials or two keys that come from the same number."""
    plan = load(tmp_path, BASE + RANDOM.format(trials=300, seed=0))
    rates, temperatures, particles, sizes, names = (
        [trial.settings[key] for trial in plan.trials] for key in plan.trials[0].settings
    )
    assert min(rates) >= 1e-4
    assert max(rates) <= 1e-2
    assert np.median(np.log10(rates)) == pytest.approx(-3, abs=0.2)  # 4 standard errors of a uniform median
    assert np.mean(temperatures) == pytest.approx(0.5, abs=0.07)  # 4 standard errors of a uniform mean
    assert set(particles) == {2, 3, 4}
    assert all(type(number) is int for number in particles + sizes)
    assert np.median(sizes) == pytest.approx(11, abs=4)  # half of log 128; a linear draw has 64
    assert min(sizes) == 1
    assert 100 < max(sizes) <= 128
    assert 110 < names.count("linear") < 190
    assert len(set(rates)) > 290
    assert abs(np.corrcoef(np.log(rates), temperatures)[0, 1]) < 0.25


def test_a_longer_search_begins_with_the_shorter_one(tmp_path):
    """Catches trials on disk that the same seed does not draw again, and a seed that does nothing."""
    short, again, longer, other = (
        load(tmp_path, BASE + RANDOM.format(trials=trials, seed=seed)).trials
        for trials, seed in ((3, 0), (3, 0), (5, 0), (3, 1))
    )
    assert short == again == longer[:3]
    assert short != other


def test_test_images_stay_unseen(tmp_path):
    """Catches a search on test images: by default, by the spec, by a key, and by early stopping of the best config."""
    assert all(trial.config.data.validate for trial in load(tmp_path, BASE + GRID).trials)
    for broken, words in (
        (BASE.replace("[base.train]", "validate = false\n[base.train]"), "base.data.validate: got false; must be true"),
        (BASE + "early_stop = 3\n", "train.early_stop: must be 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            load(tmp_path, broken + GRID)
    with pytest.raises(ConfigError, match=r"data.validate: all trials must have the same data"):
        load(tmp_path, BASE + GRID + "data.validate = [true, false]")
    toy = load(tmp_path, BASE.replace('"digits"\nclasses = [0, 1]', '"classification-2d"') + GRID)
    assert not toy.unseen


def test_a_config_of_its_own(tmp_path):
    """The best config of one search is the base of the next; its paths start at its own folder. Catches the test images
    read because that config is made for them."""
    (tmp_path / "inner").mkdir()
    configs_ = {"images": 'name = "digits"\nvalidate = false', "file": 'file = "own.npz"'}
    for name, data in configs_.items():
        (tmp_path / "inner" / f"{name}.toml").write_text(f"[data]\n{data}\n[train]\nsteps = 300\n")
    plan = load(tmp_path, '[base]\nconfig = "inner/images.toml"' + GRID)
    assert plan.unseen
    assert plan.trials[0].config.train.steps == 300
    plan = load(tmp_path, '[base]\nconfig = "inner/file.toml"' + GRID)
    assert plan.trials[0].config.data.file == str(tmp_path / "inner" / "own.npz")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GRID, "base: is missing; must be sections of a run's config"),
        (BASE, "search: is missing; must be a table"),
        (BASE + "[search]", "search.keys: is missing"),
        (BASE + GRID + "[more]", "'more': unknown section; must be base or search"),
        (BASE + "config = 1" + GRID, "train.config: unknown key"),
        ("[base]\nconfig = 'a.toml'" + BASE + GRID, "base.config: must be the path of a run's config, and nothing"),
        ("[base]\nconfig = 'a.toml'" + GRID, "a.toml: no such file"),
        (BASE + GRID.replace("metric", "metrics"), "search.metrics: unknown key; .* did you mean 'metric'"),
        (BASE + GRID.replace("test_accuracy", "accuracy"), "search.metric: got 'accuracy'; must be one of test_nll"),
        (BASE + GRID.replace("metric", "trials = 3\nmetric"), "search.trials: is for random and tpe"),
        (BASE + GRID.replace("metric", "halving = true\nmetric"), "search.halving: is for kind = \"tpe\""),
        (BASE + TPE + "train.steps = [200, 1]", r"annealing.steps: is 0; must be from 2 to train.steps = 1"),
        (BASE + "[base.evaluation]\nevery = 0\n" + TPE.replace("= 4", "= 4\nhalving = true"), "evaluation.every: is 0"),
        (BASE + RANDOM.format(trials=0, seed=0), "search.trials: got 0; must be a whole number from 1 to 1_000"),
        (BASE + GRID + "steps = [1, 2]", "search.keys: 'steps': must be section.key"),
        (BASE + GRID + "train.stepps = [1, 2]", r"train.stepps \(from search.keys\): unknown key; .*'steps'"),
        (BASE + GRID + "trian.steps = [1, 2]", "trian: unknown section"),
        (BASE + GRID + "train.steps = 5", "search.keys: train.steps: got 5; must be a list of different values$"),
        (BASE + GRID + "train.steps = []", r"train.steps: got \[\]; must be a list"),
        (BASE + GRID + "train.steps = [5, 6, 5]", "train.steps: got .5, 6, 5.; must be a list of different values"),
        (BASE + GRID + "train.steps = {low = 5, high = 6}", "train.steps: got .*; must be a list"),
        (BASE + GRID + "train.steps = [200, 'many']", r"train.steps \(from search.keys\): got 'many'; must be a whole"),
        (BASE + GRID + "train.steps = [200, 1]", r"annealing.steps: is 0; must be from 2 to train.steps = 1"),
        (BASE + GRID + f"train.seed = {list(range(167))}", "search.keys: makes 1002 trials; must be at most 1000"),
        (BASE.replace("classes", "test_fraction = 0\nclasses") + GRID, "data.test_fraction: is 0; must be above 0"),
        *(
            (BASE + RANDOM.format(trials=3, seed=0) + f"prior.scale = {wrong}", "prior.scale: got .*; must be a list")
            for wrong in (
                "{low = 1}", "{low = 2, high = 1}", "{low = 1, high = 1}", "{low = 0, high = 1, log = true}",
                "{low = 1, high = inf}", "{low = true, high = 2}", "{low = 1, high = 2, logg = true}",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line_with_its_key(text, words, tmp_path):
    """Catches a bad trial that is found only when its turn comes."""
    with pytest.raises(ConfigError, match=words) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_trials_of_another_search_are_not_taken_over(tmp_path):
    """Catches numbers of old settings under the name of new ones."""
    plan = load(tmp_path, BASE + GRID)
    place = plan.trials[1].place(tmp_path / "out")
    place.mkdir(parents=True)
    (place / "config.toml").write_text(configs.dump(plan.trials[1].config))
    search.check_folder(plan, tmp_path / "out")
    changed = load(tmp_path, BASE + GRID.replace('"linear"', '"hyperbolic"'))
    with pytest.raises(ValueError, match=r"001/config.toml: is not trial 001 of this search; use another --out"):
        search.check_folder(changed, tmp_path / "out")


def test_the_example_is_the_papers_grid():
    plan = search.load(Path(__file__).parents[2] / "examples" / "sweep-digits.toml")
    assert len(plan.trials) == 20
    assert {trial.config.optimiser.learning_rate for trial in plan.trials} == {1e-4, 5e-4, 1e-3, 2.5e-3, 5e-3}
    assert {trial.config.annealing.name for trial in plan.trials} == {"none", "linear", "hyperbolic", "cyclical"}
    assert {trial.config.method.name for trial in plan.trials} == {"h-svgd-l"}


def test_a_search_is_checked_without_jax(tmp_path):
    """Catches a complaint that comes after seconds of imports."""
    (tmp_path / "spec.toml").write_text(BASE + GRID)
    script = "import sys; from pathlib import Path; from stein.runs import search; search.load(Path(sys.argv[1]))"
    script += "; sys.exit(bool({'jax', 'equinox', 'optax'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "spec.toml")], check=True)
