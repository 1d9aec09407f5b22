"""The config says one thing in five places: the checks, the dump, the template, the help and the registries."""

import inspect
import io
import subprocess
import sys
import tomllib

import jax
import msgspec
import optax
import pytest
from rich.console import Console

from stein import data, functional_priors, kernels, likelihoods, methods, models, priors, rules, schedules
from stein.datasets import sources
from stein.runs import configs, keys, schema, template
from stein.runs.configs import Config, Data

DEFAULTS = Config(data=Data(name="regression-1d"))
DOTTED = [f"{section}.{key}" for section, keys in keys.KEYS.items() for key in keys]

# One value other than the default for every key, all of which go together.
CHANGED = """
[data]
file = "täble.csv"
target = "price of \\"it\\""
test_file = "test.csv"
test_fraction = 0.25
validation_fraction = 0.2
standardise = true
unskew = true
standardise_targets = false
reading = "as-before"
seed = 4294967295
[method]
name = "fw-svgd"
stochastic = true
particles = 7
repulsion = "exact"
repulsion_energy = 0.9
repulsion_directions = 4
repulsion_probe = true
kernel = "imq"
bandwidth = 2
noise = "elementwise-shared"
noise_place = "adam-inside"
temperature = 0.1
start = "model"
functional_prior = "ssge"
prior_draws = 50
prior_points = 10
compares = "hidden-3"
measurement = "independent"
measurement_subset = 5
extra_points = 3
extra_source = "pool.csv"
[model]
name = "resnet32"
hidden = []
activation = "tanh"
blocks = 2
filters = 8
stride = 2
bfloat16 = true
[likelihood]
name = "gaussian"
sigma = "learned"
[prior]
name = "laplace"
scale = 3e-7
[train]
steps = 500
batch_size = 64
crop = 4
flip = true
seed = 1
log_every = 50
precision = "float64"
on_nan = "stop"
min_alive = 1
early_stop = 3
[optimiser]
name = "lion"
learning_rate = 0.1
schedule = "cosine"
final_fraction = 0.5
warmup_steps = 10
clip = 1
weight_decay = 0.01
[annealing]
name = "cyclical"
steps = 100
power = 2
cycles = 4
[evaluation]
every = 100
summary = true
coverage = 0.8
[checkpoints]
every = 150
keep = 2
best = true
[tracking]
diagnostics = false
far_spread = true
tensorboard = false
wandb = "a project"
mlflow = "file:///tmp/mlruns"
"""


def flat(settings):
    return {f"{section}.{key}": value for section, keys in settings.items() for key, value in keys.items()}


def load(folder, text, *overrides, **options):
    (folder / "run.toml").write_text(text)
    return configs.load(folder / "run.toml", overrides, **options)


def test_every_key_can_be_changed_and_survives_the_dump():
    changed = configs.parse(CHANGED)
    values, defaults = (flat(tomllib.loads(configs.dump(c))) for c in (changed, DEFAULTS))
    same = [name for name in DOTTED if values[name] == defaults[name]]
    # These would contradict data.file or data.test_file, and others; test_method_keys.py, test_features.py and
    # test_stream_runs.py change them.
    images = ["data.folder", "data.classes", "data.most_test", "data.validate"]
    frozen = ["method.freeze_bandwidth_after", "method.freeze_preconditioner_after"]
    chains = [f"method.{key}" for key in ("draws", "thin", "burn_in", "tuning_steps", "energy_variance")]
    others = [*frozen, *chains, "method.friction", "method.exploration", "method.gp_scale", "method.gp_length"]
    others += ["method.principal_axes"]
    others += [f"likelihood.{key}" for key in ("modulation", "degrees", "rate", "center_logits")] + ["optimiser.cycles"]
    roles = [f"data.{key}" for key in ("split_column", "time_column", "group_column", "id_columns", "text_columns")]
    streams = [f"data.{key}" for key in ("stream", "head_rows", "test_rows", "shuffle_rows")]
    assert same == ["data.inputs", "data.targets", *roles, "data.impute", *streams, "data.split", *images, *others]
    assert configs.parse(configs.dump(changed)) == changed
    assert flat(tomllib.loads(CHANGED)).items() <= values.items()


def test_the_dump_holds_every_key_and_numbers_have_one_form():
    assert list(flat(tomllib.loads(configs.dump(DEFAULTS)))) == DOTTED
    whole, decimal = (configs.parse(f'data.name = "regression-1d"\nprior.scale = {scale}') for scale in ("2", "2.0"))
    assert configs.dump(whole) == configs.dump(decimal)
    assert configs.fingerprint(whole) == configs.fingerprint(decimal) != configs.fingerprint(DEFAULTS)


def test_the_template_parses_to_the_defaults_and_explains_every_key():
    text = template.template()
    assert configs.parse(text) == DEFAULTS
    assert max(map(len, text.splitlines())) <= 120
    assert text.startswith("# ")
    assert text.index("[data]") < text.index("[method]") < text.index("[train]")
    settings = [line for line in text.splitlines() if " = " in line.split("#")[0]]
    assert [line.split(" = ")[0] for line in settings] == [name.split(".")[1] for name in DOTTED]
    assert all("  # " in line for line in settings)


def test_help_shows_every_key_with_its_default_and_its_values():
    console = Console(width=200, file=io.StringIO(), highlight=False)
    console.print(template.describe())
    rows = {line.split()[0]: line for line in console.file.getvalue().splitlines() if line.strip()}
    for name, default in flat(msgspec.to_builtins(DEFAULTS)).items():
        assert name in rows
        if name != "data.name" and not isinstance(default, tuple):
            assert str(default).lower() in rows[name].lower()
    assert "one of normal, laplace, fan-in" in rows["prior.name"]
    assert "median or a number above 0" in rows["method.bandwidth"]


@pytest.mark.parametrize("section", configs.SECTIONS)
def test_everything_is_documented(section):
    assert configs.SECTIONS[section].__doc__
    assert all(key.meaning and key.allowed for key in keys.KEYS[section].values())


def test_nothing_heavy_is_imported():
    script = "import sys; from stein.runs import template; template.template(); template.describe()"
    script += "; sys.exit(bool({'jax', 'numpy', 'equinox', 'optax'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", script], check=True)


# -- the command line's changes -----------------------------------------------------------------------------


def test_overrides_are_toml_or_bare_strings(tmp_path):
    text = 'data.name = "regression-1d"'
    overrides = ("train.steps=500", "model.hidden=[8, 9]", "prior.name=laplace", 'tracking.wandb="a b"')
    changed = load(tmp_path, text, *overrides, " train.seed = 3", "optimiser.clip=1", "tracking.mlflow=http://h?a=b")
    assert changed.train.steps == 500
    assert changed.model.hidden == (8, 9)
    assert changed.prior.name == "laplace"
    assert changed.tracking.wandb == "a b"
    assert changed.train.seed == 3
    assert changed.optimiser.clip == 1.0
    assert changed.tracking.mlflow == "http://h?a=b"


def test_overrides_win_over_the_file_and_the_last_one_over_the_others(tmp_path):
    text = '[data]\nname = "regression-1d"\n[train]\nsteps = "nonsense"\n[method]\nname = "de"'
    changed = load(tmp_path, text, "train.steps=1000", "train.steps=2000", method="w-svgd", stochastic=True)
    assert (changed.train.steps, changed.method.name, changed.method.stochastic) == (2000, "w-svgd", True)
    assert not load(tmp_path, text, "train.steps=1000", stochastic=False).method.stochastic


def test_a_line_break_in_an_override_sets_no_second_key(tmp_path):
    with pytest.raises(configs.ConfigError, match=r"data.name \(from --set\)"):
        load(tmp_path, "", "data.name='regression-1d'\nother = 1")


# -- paths --------------------------------------------------------------------------------------------------


def test_paths_start_at_the_configs_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "run.toml").write_text('data.inputs = "../x.npy"\ndata.targets = "/y.npy"')
    loaded = configs.load(configs.Path("here/run.toml"))
    assert loaded.data.inputs == str(tmp_path.resolve() / "x.npy")
    assert loaded.data.targets == "/y.npy"
    assert configs.parse(configs.dump(loaded)) == loaded


def test_a_byte_order_mark_is_no_error(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf" + template.template().encode())
    assert configs.load(tmp_path / "run.toml") == DEFAULTS


def test_annealing_lasts_a_fifth_of_the_run_unless_told():
    assert DEFAULTS.annealing_steps == 2000
    assert configs.parse(CHANGED).annealing_steps == 100


# -- the registries -----------------------------------------------------------------------------------------


def options(name):
    section, key = name.split(".")
    return keys.KEYS[section][key].options


def test_methods_are_those_of_the_registry():
    """What `methods` says of a rule without jax is what the rule's function takes, and what it makes."""
    assert options("method.name") == methods.names()
    for name, method in methods.METHODS.items():
        takes, rule = inspect.signature(rules.builder(name)).parameters, rules.make(name)
        assert [key for key in takes if key.startswith("kernel")] == list(method.kernels), name
        assert ("repulsion" in takes) == (method.repulsion is not None), name
        assert ("noise" in takes) == (method.stochastic == "optional"), name
        assert rule.noisy == (method.stochastic == "always"), name
        assert rule.functional == method.functional, name
        if method.compares:
            assert rule.space == method.compares, name
        else:
            assert (method.functional, method.repulsion) == (False, None), name


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("model.name", models),
        ("model.activation", jax.nn),
        ("prior.name", priors),
        ("method.kernel", kernels),
        ("method.functional_prior", functional_priors),
    ],
)
def test_names_are_functions(name, module):
    assert options(name)
    for option in options(name):
        assert option in ("given", "auto") or callable(getattr(module, option.replace("-", "_")))


def test_data_sets_are_points_that_are_made_and_images_that_can_be_found():
    points = [name for name in options("data.name") if name not in (*schema.IMAGES, *schema.UCI, "arrays")]
    assert all(callable(getattr(data, name.replace("-", "_"))) for name in points)
    assert set(schema.IMAGES) <= set(sources.DATASETS)
    assert set(schema.UCI) == {name for name in sources.DATASETS if name.startswith("uci-")}


def test_other_names_are_functions_too():
    assert options("method.noise") == tuple(rules.NOISES)
    assert all(callable(getattr(schedules, name)) for name in options("annealing.name") if name != "none")
    names = [name.replace("-", "_") for name in options("likelihood.name") if name != "auto"]
    assert all(callable(getattr(likelihoods, name)) for name in names)
    optimisers = {name: getattr(optax, name) for name in options("optimiser.name") if name != "momentum"}
    decay = {name for name, make in optimisers.items() if "weight_decay" in inspect.signature(make).parameters}
    assert decay == set(schema.WITH_WEIGHT_DECAY)
