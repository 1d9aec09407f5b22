"""From a config and files to the parts of a run: which rows, which classes, which units."""

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from problems import rounding
from stein import evaluate, predict
from stein.runs import configs, dataset
from stein.runs.build import assemble, in_units, resolved

RANDOM = np.random.default_rng(0)


def houses(rows=120):
    random = np.random.default_rng(rows)
    x = random.normal(size=(rows, 3))
    return x, 5e4 + 1000 * (x[:, 0] + 0.1 * random.normal(size=rows))


def csv(path, x, y, names="abc"):
    lines = [",".join([*map(str, row), str(target)]) for row, target in zip(x.tolist(), y.tolist(), strict=True)]
    path.write_text("\n".join([",".join([*names[: x.shape[1]], "y"]), *lines]) + "\n")


def chosen(folder, text="", **data):
    lines = [f"{key} = {value!r}".replace("True", "true").replace("False", "false") for key, value in data.items()]
    (folder / "run.toml").write_text("[data]\n" + "\n".join(lines) + "\n" + text)
    return configs.load(folder / "run.toml")


def own(folder, text="", **data):
    return chosen(folder, text, file="own.csv", target="y", **data)


def load(*arguments, **data):
    return dataset.load(own(*arguments, **data))


# -- classes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names"), [([1, 2], "12"), ([10, 20], ["10", "20"]), (["no", "yes"], ["no", "yes"])]
)
def test_no_class_is_made_up(labels, names, tmp_path):
    """Catches an output for a class 0 that nobody has."""
    csv(tmp_path / "own.csv", RANDOM.normal(size=(40, 2)), np.array(labels * 20))
    parts = assemble(own(tmp_path))
    assert parts.data.classes == 2
    assert parts.data.train.labels == tuple(names)
    assert set(parts.data.train.y.tolist()) == set(parts.data.test.y.tolist()) == {0, 1}
    shape = jax.eval_shape(parts.model.apply, jax.eval_shape(parts.model.init, jax.random.key(0)), parts.batches.x)
    assert shape.shape == (36, 2)


def test_a_class_with_one_row_is_trained_on_and_named(tmp_path):
    """Catches a class that is only in the held-out part, whose NLL was negative."""
    y = np.array(["a"] * 20 + ["b"] * 20 + ["rare"])
    csv(tmp_path / "own.csv", RANDOM.normal(size=(41, 2)), y)
    for seed in range(5):
        loaded = load(tmp_path, seed=seed, test_fraction=0.3, validation_fraction=0.3)
        assert np.bincount(loaded.train.y, minlength=3)[2] == 1
        assert loaded.notes == ("class rare has one row, which stays in training",)
        assert {0, 1} == set(loaded.test.y.tolist()) == set(loaded.validation.y.tolist())


@pytest.mark.parametrize("where", ["test_file", "split_column"])
def test_a_class_that_no_training_row_has_is_refused(where, tmp_path):
    """Catches its NLL, which was below zero: the class had no probability of its own."""
    x, y = RANDOM.normal(size=(20, 1)), np.array(["a", "b"] * 10)
    if where == "test_file":
        csv(tmp_path / "own.csv", x, y)
        csv(tmp_path / "test.csv", x[:4], np.array(["a", "b", "c", "b"]))
        settings = own(tmp_path, test_file="test.csv")
    else:
        y[3] = "c"
        rows = [f"{x[i, 0]},{'test' if i < 5 else 'train'},{y[i]}" for i in range(20)]
        (tmp_path / "own.csv").write_text("\n".join(["a,part,y", *rows]))
        settings = own(tmp_path, split_column="part")
    with pytest.raises(ValueError, match="class 'c' is only in the test part; give some of its rows to training"):
        dataset.load(settings)


# -- parts --------------------------------------------------------------------------------------------------


def test_a_test_file_is_matched_by_name(tmp_path):
    """All rows of the first file are trained on. Catches columns in the order of the other file."""
    x, y = houses()
    csv(tmp_path / "own.csv", x, y)
    csv(tmp_path / "test.csv", x[:7, ::-1], y[:7], "cba")
    loaded = load(tmp_path, test_file="test.csv")
    assert (len(loaded.train.x), len(loaded.test.x)) == (120, 7)
    np.testing.assert_array_equal(loaded.test.x, loaded.train.x[:7])
    np.testing.assert_array_equal(loaded.test.y, loaded.train.y[:7])
    csv(tmp_path / "test.csv", x[:7], y[:7], "abd")
    with pytest.raises(ValueError, match=r"test\.csv: column 'd': is not an input of the run"):
        load(tmp_path, test_file="test.csv")


def test_a_split_column_says_which_rows_are_what(tmp_path):
    x, y = houses(30)
    for said, counts in ((["train", "Validation", "test"], [10, 10, 10]), (["0", "1", "0"], [20, 0, 10])):
        rows = [f"{x[i, 0]},{said[i % 3]},{y[i]}" for i in range(30)]
        (tmp_path / "own.csv").write_text("\n".join(["a,part,y", *rows]))
        loaded = load(tmp_path, split_column="part")
        assert list(loaded.facts["split"].values())[:3] == counts
        assert loaded.inputs == ("a",)
    (tmp_path / "own.csv").write_text("a,part,y\n1.5,train,1.5\n2.5,tset,2.5\n")
    with pytest.raises(ValueError, match="line 3, column 'part': 'tset': must be train, validation or test, or 0"):
        load(tmp_path, split_column="part")


def test_choices_have_a_part_of_their_own(tmp_path):
    """Early stopping and the best checkpoint ask for a tenth of the training rows. Catches the test rows used twice."""
    csv(tmp_path / "own.csv", *houses())
    sizes = {
        "": (108, None),
        "[train]\nearly_stop = 2": (97, 11),
        "[checkpoints]\nbest = true": (97, 11),
    }
    for text, (train, validation) in sizes.items():
        loaded = load(tmp_path, text)
        assert (len(loaded.train.x), loaded.validation and len(loaded.validation.x)) == (train, validation)
        assert len(loaded.test.x) == 12
    rows = np.concatenate([loaded.train.x, loaded.validation.x, loaded.test.x])
    assert len(np.unique(rows, axis=0)) == 120


def test_toys_get_a_validation_part_too_and_nothing_else(tmp_path):
    """Catches new defaults for tables reach the built-in sets."""
    plain = chosen(tmp_path, name="regression-1d")
    parts = assemble(plain)
    assert (len(parts.data.train.x), len(parts.data.test.x)) == (81, 9)
    assert parts.data.standardiser is parts.data.units is parts.data.validation is None
    meant = resolved(plain, "gaussian", len(parts.data.train.x))
    assert (meant.likelihood.sigma, meant.train.batch_size, meant.optimiser.schedule) == (1.0, 0, "constant")
    assert meant.prior.scale == 1.0
    assert parts.likelihood.name == "gaussian"
    best = chosen(tmp_path, "[checkpoints]\nbest = true", name="regression-1d")
    assert len(dataset.load(best).validation.x) == 8


def test_uci_tables_by_name(monkeypatch, tmp_path):
    """The chosen split's rows, regression although the grades are whole numbers. Catches split 0 for every split."""
    from stein import data, datasets

    made = {}

    def load_uci(name, split, folder):
        x, y = houses(30)
        made[split] = data.Arrays(x[:20], np.round(y[:20] % 5) + 3.0), data.Arrays(x[20:], np.round(y[20:] % 5) + 3.0)
        return made[split]

    monkeypatch.setattr(datasets, "load_uci", load_uci)
    loaded = dataset.load(chosen(tmp_path, name="uci-yacht", split=7))
    assert list(made) == [7]
    assert (loaded.kind, len(loaded.train.x), len(loaded.test.x)) == ("gaussian", 20, 10)
    assert dataset.describe(loaded) == "regression on 'uci-yacht': 20 + 10 rows, 3 inputs"
    with pytest.raises(configs.ConfigError, match=r"data\.split: is for UCI tables"):
        chosen(tmp_path, name="regression-1d", split=7)


# -- what is said -------------------------------------------------------------------------------------------


def test_the_first_line_says_what_is_learned_from_what(tmp_path):
    csv(tmp_path / "own.csv", *houses())
    assert dataset.describe(load(tmp_path)) == "regression on 'y': 108 + 12 rows, 3 inputs"
    assert dataset.describe(load(tmp_path, test_fraction=0, validation_fraction=0.5)) == (
        "regression on 'y': 60 + 60 rows (training, validation), 3 inputs"
    )
    csv(tmp_path / "own.csv", RANDOM.normal(size=(50, 1)), np.array(["red", "blue"] * 25))
    assert (
        dataset.describe(load(tmp_path)) == "classification on 'y': 2 classes (blue 25, red 25), 45 + 5 rows, 1 input"
    )


def test_a_value_that_hides_all_others_is_named(tmp_path):
    """Catches a fit on numbers that have all become one, without a word. Long tails are no mistake."""
    x, y = houses()
    x[:, 1] = np.exp(2 * x[:, 1])
    csv(tmp_path / "own.csv", x, y)
    assert not load(tmp_path).notes
    x[40, 1], y[7] = 1e30, -1e12
    csv(tmp_path / "own.csv", x, y)
    first, second = load(tmp_path).notes
    assert first.startswith(f"{tmp_path}/own.csv: line 42, column 'b': 1e+30 is far from all others, half of which are")
    assert second.startswith(f"{tmp_path}/own.csv: line 9, column 'y': -1e+12 is far from all others")


# -- defaults and units -------------------------------------------------------------------------------------


def test_what_auto_means_for_a_table(tmp_path):
    """Standardised inputs and targets, learned noise, batches of 256, a falling rate."""
    csv(tmp_path / "own.csv", *houses(400))
    settings = own(tmp_path)
    parts = assemble(settings)
    assert parts.likelihood.name == "gaussian, learned sigma"
    assert parts.batches.size == 256
    meant = resolved(settings, "gaussian", len(parts.data.train.x))
    assert (meant.optimiser.schedule, meant.prior.scale) == ("cosine", 0.2)
    x, y, _ = parts.data.train
    for values in (x, y):
        slack = rounding(len(values), values.dtype)
        np.testing.assert_allclose([values.mean(axis=0).max(), values.std(axis=0).max()], [0, 1], rtol=0, atol=slack)
    assert assemble(own(tmp_path, standardise=False, standardise_targets=False)).data.train.y.mean() > 4e4
    assert msgspec.to_builtins(settings)["train"]["batch_size"] == "auto"


@pytest.mark.parametrize("sigma", ['"learned"', "250.0"])
def test_numbers_during_training_are_in_the_targets_units(sigma, tmp_path):
    """NLL with its log-scale term and RMSE against NumPy in the units of the file. Catches numbers of standardised
    targets, and a sigma that is not in the units of the targets."""
    x, y = houses()
    csv(tmp_path / "own.csv", x, y)
    settings = own(tmp_path, f'[likelihood]\nsigma = {sigma}\n[train]\nprecision = "float64"\n[model]\nhidden = [5]')
    parts = assemble(settings)
    particles = jax.vmap(parts.model.init)(jax.random.split(jax.random.key(0), 3))
    test, units = parts.data.test, parts.data.units
    raw = parts.data.raw_targets(test.y)
    found = evaluate.held_out(parts.model, parts.likelihood, test.x, raw, in_units(parts.data))(particles)

    outputs = np.asarray(predict.outputs(parts.model, particles, jnp.asarray(test.x)))
    means = outputs[:, :, 0] * units.scale + units.mean
    sigmas = 250.0 if sigma == "250.0" else np.exp(outputs[:, :, 1]) * units.scale
    targets = test.y * units.scale + units.mean
    assert set(np.round(targets, 4)) <= set(np.round(y, 4))
    log_density = -0.5 * ((targets - means) / sigmas) ** 2 - np.log(sigmas) - 0.5 * np.log(2 * np.pi)
    assert found["test_nll"] == pytest.approx(-np.mean(np.log(np.mean(np.exp(log_density), axis=0))), rel=1e-9)
    assert found["test_nll_members"] == pytest.approx(-log_density.mean(), rel=1e-9)
    assert found["test_rmse"] == pytest.approx(np.sqrt(np.mean((means.mean(axis=0) - targets) ** 2)), rel=1e-9)


def test_several_targets_keep_their_units(tmp_path):
    """Of sizes 1 and 1000, with one sigma for both: they are divided by the same number."""
    x = RANDOM.normal(size=(50, 2))
    np.savez(tmp_path / "own.npz", x=x, y=np.stack([x[:, 0], 1000 * x[:, 1]], axis=1))
    learned = dataset.load(chosen(tmp_path, file="own.npz")).units.scale
    assert learned[1] / learned[0] > 500
    common = dataset.load(chosen(tmp_path, "[likelihood]\nsigma = 2.0", file="own.npz")).units.scale
    assert common[0] == common[1]


def test_the_baseline_is_the_mean_or_the_most_frequent_class(tmp_path):
    x, y = houses()
    csv(tmp_path / "own.csv", x, y)
    loaded = load(tmp_path)
    train, test = (part.y * loaded.units.scale + loaded.units.mean for part in (loaded.train, loaded.test))
    expected = np.sqrt(np.mean((test - train.mean()) ** 2))
    raw = loaded.raw_targets(loaded.test.y)
    assert dataset.baseline(loaded.constant, raw) == {"baseline_rmse": pytest.approx(expected, rel=1e-5)}
    csv(tmp_path / "own.csv", RANDOM.normal(size=(50, 1)), np.array(["a", "b", "b", "b", "b"] * 10))
    loaded = load(tmp_path)
    assert dataset.baseline(loaded.constant, loaded.test.y) == {"baseline_accuracy": 0.8}


# -- data that changed --------------------------------------------------------------------------------------


def test_what_was_recorded_is_used_again(tmp_path):
    """Classes and scales of training, whatever the data are now. Catches new means under an old network."""
    x, y = houses()
    csv(tmp_path / "own.csv", x, y)
    settings = own(tmp_path)
    before = dataset.load(settings).facts
    csv(tmp_path / "own.csv", x + 7, 1000 * y)
    said = []
    now = dataset.load(settings, before, said.append)
    assert said == [f"{tmp_path}/own.csv: input values changed in 'a', 'b', 'c' and target values changed"]
    assert now.facts["standardiser"] == before["standardiser"]
    assert now.facts["units"] == before["units"]
    csv(tmp_path / "own.csv", x, y)
    said.clear()
    dataset.load(settings, before, said.append)
    assert not said


def test_another_split_of_the_same_rows_is_noticed(tmp_path):
    """As from another version of the random generator. Catches training rows that are tested on, silently."""
    csv(tmp_path / "own.csv", *houses())
    settings, told = own(tmp_path), []
    before = dataset.load(settings).facts
    dataset.load(settings, before, told.append)
    assert told == []
    before["split"]["digest"] = "another"
    dataset.load(settings, before, told.append)
    assert told == ["the rows are split into other training and test rows"]
