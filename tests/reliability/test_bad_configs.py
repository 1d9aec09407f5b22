"""R7: a bad config is one line with the file, the key and what is allowed; never a traceback, whatever is in it."""

import os
import re
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import audit
import checked
from stein import methods
from stein.runs import configs, template
from stein.runs.configs import ConfigError
from stein.runs.keys import KEYS, SECTIONS

DOTTED = [f"{section}.{key}" for section, keys in KEYS.items() for key in keys]


def key_of(name):
    section, key = name.split(".")
    return KEYS[section][key]


def refusal(folder, text, overrides=(), **options):
    """The complaint about a config, after the promises that hold for all of them."""
    path = folder / "bad.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with audit.listening() as events, pytest.raises(ConfigError) as caught:
        configs.load(path, overrides, **options)
    assert events == []  # R9: nothing in a config is ever run or imported
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message) < len(str(path)) + 600
    return message.removeprefix(f"{path}: ")


@pytest.fixture(autouse=True, scope="module")
def _warm(tmp_path_factory):
    """The type checker of the tests compiles for the first instances of an inner function; nothing else may."""
    path = tmp_path_factory.mktemp("warm") / "bad.toml"
    path.write_text('data.name = "regression-1d"\ntrain.steps = "five"')
    for _ in range(checked.INSTANCES):
        with pytest.raises(ConfigError):
            configs.load(path, ["train.seed=1"])


def toml(**settings):
    """``toml(train__steps=0)``: a config that is fine but for the given keys, whose values are TOML."""
    given = {"data.name": '"regression-1d"'} | {name.replace("__", "."): value for name, value in settings.items()}
    return "\n".join(f"{name} = {value}" for name, value in given.items() if value is not None)


# -- each key with values of the wrong type or out of its range ---------------------------------------------

TYPES = {  # as TOML, and the kinds of key that take it
    "'no such thing'": ("text",),
    "7.5": ("a number",),
    "true": ("true",),
    "[[1]]": (),
    "{a = 1}": (),
    "1979-05-27": (),
    "nan": (),
    "-inf": (),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in DOTTED
        for value in TYPES
        if not any(part.startswith(TYPES[value]) for part in key_of(name).allowed.split(" or "))
    ],
)
def test_wrong_type(tmp_path, name, value):
    message = refusal(tmp_path, toml(**{name: value}))
    assert message.startswith(f"{name}: got ")
    assert f"must be {key_of(name).allowed}" in message


RANGES = {
    "data.test_fraction": ("-0.1", "1", "1.0", "2", "nan", "inf"),
    "data.seed": ("-1", "4294967296", "1" + 30 * "0", "0x" + 5000 * "f"),
    "train.seed": ("-1", "4294967296", "9223372036854775808", "-9223372036854775809"),
    "train.steps": ("0", "-5", "1000000001", "10000000000000000000000"),
    "train.batch_size": ("-1", "1000000001"),
    "train.crop": ("-1", "1001"),
    "train.log_every": ("0", "-1"),
    "train.min_alive": ("0", "0.0", "-0.5", "1.01", "inf"),
    "train.early_stop": ("-1",),
    "method.particles": ("0", "-3", "100001"),
    "method.bandwidth": ("0", "-1.0", "inf", "'mean'", "1e999"),
    "method.temperature": ("0", "-1", "inf", "-inf"),
    "likelihood.sigma": ("0", "-0.5", "inf", "'known'"),
    "prior.scale": ("0", "-1", "inf", "-nan"),
    "model.hidden": ("[0]", "[50, -1]", "[50, 1.5]", "[true]", "['50']", "50", "[100001]", str([1] * 101)),
    "model.blocks": ("0", "1001"),
    "model.filters": ("0", "10001"),
    "model.stride": ("0", "9"),
    "optimiser.learning_rate": ("0", "-1e-3", "inf", "nan"),
    "optimiser.final_fraction": ("0", "1", "-1"),
    "optimiser.warmup_steps": ("-1",),
    "optimiser.clip": ("-1", "inf"),
    "optimiser.weight_decay": ("-0.1", "1"),
    "annealing.steps": ("-1",),
    "annealing.power": ("0", "-2", "inf"),
    "annealing.cycles": ("0", "1000001"),
    "evaluation.every": ("-1",),
    "checkpoints.every": ("0", "-1"),
    "checkpoints.keep": ("0", "1", "1000001"),
    "data.file": (r'"a\u0000.npz"', r'"a\nb.npz"', r'"a\tb.npz"', r'"\u001b[31m.npz"', f"'{5000 * 'a'}.npz'"),
    "data.inputs": (r'"a\u0000.npy"', r'"a\n.npy"'),
    "tracking.wandb": (r'"a\r\nb"', r'"\u0085"'),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in RANGES.items() for value in values])
def test_out_of_range(tmp_path, name, value):
    message = refusal(tmp_path, toml(**{name: value}))
    assert message.startswith(f"{name}: got ")
    assert f"must be {key_of(name).allowed}" in message


# -- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in DOTTED if key_of(name).options])
def test_misspelt_value(tmp_path, name):
    for option in key_of(name).options:
        wrong = option[:-1].upper() + "x"
        message = refusal(tmp_path, toml(**{name: f"'{wrong}'"}))
        assert message.startswith(f"{name}: got {wrong!r}; must be {key_of(name).allowed}")
        if len(option) > 4:
            assert re.search(r"; did you mean '[\w-]+'\?$", message)


@pytest.mark.parametrize("name", DOTTED)
def test_misspelt_key(tmp_path, name):
    section, key = name.split(".")
    for wrong in (f"{key}s_", f"{key[:-1]}"):
        if wrong in KEYS[section]:  # 'targets' without its s is a key as well
            continue
        message = refusal(tmp_path, toml(**{f"{section}.{wrong}": 1}))
        assert message.startswith(f"{section}.{wrong}: unknown key; one of {', '.join(KEYS[section])}")
        assert "; did you mean '" in message


@pytest.mark.parametrize("section", SECTIONS)
def test_misspelt_section_and_section_that_is_no_table(tmp_path, section):
    message = refusal(tmp_path, f"[{section}x]\n")
    assert message == f"{section}x: unknown section; one of {', '.join(SECTIONS)}; did you mean {section!r}?"
    for value in ("5", "'mlp'", "[]", "[{}]"):
        message = refusal(tmp_path, f"{section} = {value}")
        assert message.startswith(f"{section}: got ")
        assert message.endswith(f"must be a table: [{section}]")


SUGGESTIONS = {
    "steps = 5": "did you mean 'train.steps'?",
    "[optimizer]": "did you mean 'optimiser'?",
    "[Train]": "did you mean 'train'?",
    "[train]\nlearning_rate = 1.0": "did you mean 'optimiser.learning_rate'?",
    "[train]\nbatchsize = 1": "did you mean 'batch_size'?",
    "[method]\nname = 'h-svdg'": "did you mean 'h-svgd'?",
    "[method]\nname = 'W-SVGD'": "did you mean 'w-svgd'?",
    "[optimiser]\nname = 'Adam'": "did you mean 'adam'?",
    "[data]\nname = 'regression'": "did you mean 'regression-1d'?",
}


@pytest.mark.parametrize("text", SUGGESTIONS)
def test_nearest_name(tmp_path, text):
    assert refusal(tmp_path, text).endswith(SUGGESTIONS[text])


# -- keys that do not go together ---------------------------------------------------------------------------

FILE = {"data__name": None, "data__file": "'a.csv'", "data__target": "'y'"}
MULTIPLE = "must be a multiple of train.log_every"


def rule(name, **method):
    return toml(method__name=f"'{name}'", **{f"method__{key}": value for key, value in method.items()})


CONFLICTS = [
    (toml(data__name=None), "data.name: no data; must be one of regression-1d, classification-2d"),
    ("", "data.name: no data"),
    (
        toml(data__classes="[1, 2]"),
        "data.classes: is for images by name; data.name must be one of digits, fashion-mnist",
    ),
    (toml(data__validate="true"), "data.validate: is for images by name"),
    (toml(data__name="'digits'", data__classes="[1, 1]"), "data.classes: got [1, 1]; a class is there twice"),
    (toml(data__name="''"), "data.name: no data"),
    (toml(data__file="'a.npz'"), "data.file: data.name is given too; must be one of data.name, data.file, data.inputs"),
    (toml(data__inputs="'x.npy'", data__targets="'y.npy'"), "data.inputs: data.name is given too"),
    (toml(**FILE | {"data__inputs": "'x.npy'", "data__targets": "'y.npy'"}), "data.inputs: data.file is given too"),
    (toml(data__name=None, data__inputs="'x.npy'"), "data.targets: is missing; data.inputs is given"),
    (toml(data__name=None, data__targets="'y.npy'"), "data.inputs: is missing; data.targets is given"),
    (toml(data__targets="'y.npy'"), "data.inputs: is missing"),
    (toml(**FILE | {"data__file": "'a.txt'"}), "data.file: got 'a.txt'; must end in .npz or .csv or .parquet"),
    (toml(**FILE | {"data__file": "'a.pkl'"}), "data.file: got 'a.pkl'; must end in"),
    (toml(data__name=None, data__inputs="'x.npz'", data__targets="'y.npy'"), "data.inputs: got 'x.npz'; must end in"),
    (toml(data__name=None, data__inputs="'x.npy'", data__targets="'y'"), "data.targets: got 'y'; must end in .npy"),
    (toml(**FILE | {"data__target": None}), "data.target: is missing; must be the name of the target column"),
    (toml(data__name=None, data__file="'a.parquet'"), "data.target: is missing"),
    (toml(data__name=None, data__file="'a.npz'", data__target="'y'"), "data.target: must be empty"),
    (toml(data__target="'y'"), "data.target: must be empty"),
    (toml(evaluation__every=250), f"evaluation.every: got 250; {MULTIPLE} = 100, such as 200"),
    (toml(checkpoints__every=290), f"checkpoints.every: got 290; {MULTIPLE} = 100, such as 300"),
    (toml(checkpoints__every=1), f"checkpoints.every: got 1; {MULTIPLE} = 100, such as 100"),
    (toml(train__log_every=3000), f"evaluation.every: got 1000; {MULTIPLE} = 3000, such as 3000"),
    (rule("de", stochastic="true"), "method.stochastic: de has no stochastic version; must be false; use sgld"),
    *[
        (rule(name, stochastic="true"), f"method.stochastic: {name} has no stochastic version")
        for name, method in methods.METHODS.items()
        if method.stochastic == "no"
    ],
    *[
        (rule(name, repulsion="'exact'"), f"method.repulsion: {name} has no functional repulsion")
        for name in ("de", "sgld", "w-svgd", "f-svgd", "blob")
    ],
    *[
        (rule(name, measurement="'independent'"), f"method.measurement: got 'independent'; must be batch: {name}")
        for name, method in methods.METHODS.items()
        if method.functional
    ],
    (
        toml(method__stochastic="true", method__repulsion="'local'"),
        "method.repulsion: got 'local'; must be exact: with noise",
    ),
    (toml(method__name="'h-svgd-s'", likelihood__name="'gaussian'"), "method.name: h-svgd-s compares probabilities"),
    (toml(method__name="'fw-svgd-s'", likelihood__name="'heteroscedastic'"), "method.name: fw-svgd-s compares"),
    (
        toml(annealing__name="'linear'", annealing__steps=10001),
        "annealing.steps: is 10001; must be from 2 to train.steps = 10000",
    ),
    (toml(annealing__name="'linear'", annealing__steps=1), "annealing.steps: is 1; must be from 2 to"),
    (toml(annealing__name="'hyperbolic'", train__steps=5), "annealing.steps: is 1; must be from 2 to train.steps = 5"),
    (toml(annealing__name="'cyclical'", annealing__steps=4), "annealing.steps: is 4; must be from 5 to"),
    (toml(optimiser__warmup_steps=10000), "optimiser.warmup_steps: got 10000; must be below train.steps = 10000"),
    (toml(optimiser__weight_decay=0.1), "optimiser.weight_decay: adam has none; must be 0, or use adamw, lamb, lion"),
    (toml(checkpoints__best="true", data__validation_fraction=0), "checkpoints.best: needs validation points"),
    (toml(checkpoints__best="true", evaluation__every=0), "checkpoints.best: needs evaluations during training"),
    (toml(train__early_stop=3, data__validation_fraction=0.0), "train.early_stop: needs validation points"),
    (toml(train__early_stop=3, evaluation__every=0), "train.early_stop: needs evaluations during training"),
]


@pytest.mark.parametrize(("text", "complaint"), CONFLICTS)
def test_conflict(tmp_path, text, complaint):
    assert refusal(tmp_path, text).startswith(complaint)


# -- files --------------------------------------------------------------------------------------------------

BROKEN = {
    "line 2: 'steps 5': is not valid TOML": "[train]\nsteps 5",
    "line 2: 'steps =': is not valid TOML": "[train]\nsteps =",
    "line 1: '[train': is not valid TOML": "[train",
    "line 1: '= 5': is not valid TOML": "= 5",
    "line 3: 'steps = 2': is not valid TOML: given twice": "[train]\nsteps = 1\nsteps = 2",
    "line 3: '[train]': is not valid TOML: given twice": "[train]\nsteps = 1\n[train]\nseed = 2",
    "line 2: 'train.steps = 2': is not valid TOML: given twice": "train.steps = 1\ntrain.steps = 2",
    "line 2: '[train]': is not valid TOML: given twice": "train = {steps = 1}\n[train]\n",
    "line 1: 'train.steps = 1 2'": "train.steps = 1 2",
    "line 1: 'train.steps = 01'": "train.steps = 01",
    "line 1: 'train.steps = 1__0'": "train.steps = 1__0",
    "line 1: 'data.name = \"\\\\ud800\"'": 'data.name = "\\ud800"',
    "line 1: 'data.name = \"a": 'data.name = "a',
    "line 1: 'train.steps = True'": "train.steps = True",
    "line 1: 'train.steps = None'": "train.steps = None",
    "line 1: 'a\\x00 = 1'": "a\0 = 1",
    'line 1: \'{"train": {"steps": 5}}\'': '{"train": {"steps": 5}}',
    "line 1: '<!DOCTYPE html>'": "<!DOCTYPE html>\n",
    "line 1: 'train:'": "train:\n  steps: 5\n",
    "line 1: is not UTF-8 text; save the file as UTF-8": b"\xff\xfe[\0t\0",
    "line 2: is not UTF-8 text": b"[data]\nfile = 't\xe4ble.csv'\n",
    "line 1: '\\x80\\x04": "\x80\x04\x95 pickle",
    "is not valid TOML: Exceeds the limit": "train.steps = " + 5000 * "1",
    "is nested too deeply": "train.steps = " + 10_000 * "[" + 10_000 * "]",
    "is larger than 1_000_000 bytes": "#" + 1_000_000 * "x",
    "train.steps: got {'a': {'a': {'a': ": "train.steps" + 2000 * ".a" + " = 1",
    "train.steps: got [0, 0, 0, 0, 0, 0, ...]": f"train.steps = {[0] * 10_000}",
    "train.steps: got a number too long to show": "train.steps = 0x" + 10_000 * "f",
    "model._target_: unknown key": "[model]\n_target_ = 'os.system'",
    "_target_: unknown section": "_target_ = 'os.system'",
    "_partial_: unknown section": "[_partial_]",
    "'__import__(\"os\")': unknown section": """'__import__("os")' = 1""",
    "train.'a\\nb': unknown key": '[train]\n"a\\nb" = 1',
    "train.'\\x00': unknown key": '[train]\n"\\u0000" = 1',
    "train.'': unknown key": '[train]\n"" = 1',
    "train.'a b': unknown key": '[train]\n"a b" = 1',
    "'\\u202e': unknown section": '"\\u202e" = 1',
    "train.'xxxx": f"train.{10_000 * 'x'} = 1",
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_broken_file(tmp_path, complaint):
    assert refusal(tmp_path, BROKEN[complaint]).startswith(complaint)


def unreadable(folder):
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "plain").write_text("")
    return {
        folder / "missing.toml": "no such file; `stein config init` writes one",
        folder: "is a directory; must be a TOML file",
        folder / "pipe": "is no regular file; must be a TOML file",
        folder / "loop": "cannot be read: Too many levels of symbolic links",
        folder / "plain" / "run.toml": "cannot be read: Not a directory",
        folder / (300 * "a"): "cannot be read: File name too long",
        folder / "a\0b": "cannot be read: embedded null byte",
        folder / "a\nb": "no such file",
    }


def test_file_that_cannot_be_read(tmp_path):
    for path, complaint in unreadable(tmp_path).items():
        with pytest.raises(ConfigError) as caught:
            configs.load(path)
        printable = "".join(c if c.isprintable() else "?" for c in str(path))
        assert str(caught.value).startswith(f"{printable}: {complaint}")


# -- the command line ---------------------------------------------------------------------------------------

OVERRIDES = {
    "train.steps=0": "train.steps (from --set): got 0; must be a whole number from 1",
    "train.steps=abc": "train.steps (from --set): got 'abc'; must be a whole number from 1",
    "train.steps=": "train.steps (from --set): got ''; must be",
    "train.steps=1e3": "train.steps (from --set): got 1000.0; must be",
    "train.steps=true": "train.steps (from --set): got true; must be",
    "train.step=5": "train.step (from --set): unknown key; one of steps, batch_size",
    "trian.steps=5": "trian: unknown section; one of data, method",
    "train.steps.x=5": "train.'steps.x' (from --set): unknown key",
    "train.steps": "--set 'train.steps': must be section.key=value",
    "steps=5": "--set 'steps=5': must be section.key=value",
    "=5": "--set '=5': must be section.key=value",
    ".=5": "--set '.=5': must be section.key=value",
    "": "--set '': must be section.key=value",
    "data.file=a\0.npz": "data.file (from --set): got 'a\\x00.npz'; must be text of one line",
    "data.file=\udcff.npz": "data.file (from --set): got '\\udcff.npz'; must be text of one line",
    "train.steps=" + 5000 * "[": "train.steps (from --set): got '[[[",
    "train.steps=" + 5000 * "9": "train.steps (from --set): got '999",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_bad_override(tmp_path, override):
    assert refusal(tmp_path, toml(), [override]).startswith(OVERRIDES[override])


def test_bad_options(tmp_path):
    message = refusal(tmp_path, toml(), method="h-svdg")
    assert message.startswith("method.name (from --method): got 'h-svdg'; must be one of de, sgld")
    assert message.endswith("did you mean 'h-svgd'?")
    message = refusal(tmp_path, toml(), method="f-svgd", stochastic=True)
    assert message.startswith("method.stochastic (from --stochastic): f-svgd has no stochastic version")
    assert refusal(tmp_path, "train = 5", ["train.steps=5"]).startswith("train: got 5; must be a table")


def test_folder_whose_name_cannot_be_written_down(tmp_path):
    folder = tmp_path / "\udcff"
    folder.mkdir()
    (folder / "run.toml").write_text("data.file = 'a.npz'")
    with pytest.raises(ConfigError, match=r"data.file: .* must be text of one line"):
        configs.load(folder / "run.toml")


# -- mutations ----------------------------------------------------------------------------------------------

TEMPLATE = template.template()
PIECES = [
    "[",
    "]",
    "[[",
    "=",
    '"',
    "'",
    '"""',
    "\n",
    "\0",
    "\ufeff",
    ".",
    ",",
    "{",
    "}",
    "#",
    "nan",
    "-inf",
    "0x",
    "1e999",
]
PIECES += [
    "true",
    "_target_",
    "\\ud800",
    "\\u0000",
    "9" * 30,
    "1979-05-27",
    "[train]\n",
    "steps = 1\n",
    "data.name = 1\n",
]

edits = st.lists(
    st.tuples(
        st.integers(0, len(TEMPLATE)),
        st.integers(0, 40),
        st.one_of(st.sampled_from(PIECES), st.text(max_size=10), st.sampled_from(DOTTED)),
    ),
    min_size=1,
    max_size=6,
)
values = st.recursive(
    st.one_of(
        st.integers().map(str),
        st.floats().map(repr),
        st.booleans().map(lambda b: str(b).lower()),
        st.text(string.printable, max_size=20),
        st.sampled_from([option for name in DOTTED for option in key_of(name).options]),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
    max_leaves=5,
)
overrides = st.lists(
    st.one_of(st.builds("{}={}".format, st.sampled_from(DOTTED), values), st.text(max_size=20)), max_size=3
)


def survives(folder, content, changes=(), method=None):
    """A config, or one line."""
    path = folder / "mutant.toml"
    path.write_bytes(content)
    try:
        loaded = configs.load(path, changes, method)
    except ConfigError as error:
        message = str(error)
    else:
        assert configs.parse(configs.dump(loaded)) == loaded
        return
    assert message.startswith(f"{path}: ")
    assert message.isprintable()


def check_mutants(folder, count):
    mutated = settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )

    @mutated
    @given(edits, overrides, st.one_of(st.none(), st.text(max_size=10)))
    def texts(changes, given_overrides, method):
        text = TEMPLATE
        for position, length, piece in changes:
            text = text[:position] + piece + text[position + length :]
        survives(folder, text.encode(errors="surrogatepass"), given_overrides, method)

    @mutated
    @given(st.lists(st.tuples(st.integers(0, len(TEMPLATE.encode()) - 1), st.integers(0, 255)), max_size=4))
    def flipped_bytes(changes):
        content = bytearray(TEMPLATE.encode())
        for position, byte in changes:
            content[position] = byte
        survives(folder, bytes(content))

    @mutated
    @given(st.dictionaries(st.sampled_from(DOTTED), values, max_size=5))
    def keys(changes):
        survives(folder, toml(**changes).encode())

    texts()
    flipped_bytes()
    keys()


def test_mutants_are_configs_or_one_line(tmp_path):
    check_mutants(tmp_path, 30)


@pytest.mark.long
def test_thousands_of_mutants_are_configs_or_one_line(tmp_path):
    check_mutants(tmp_path, 2000)
