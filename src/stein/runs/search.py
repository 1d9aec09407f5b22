"""The search of `stein sweep`: from a TOML file to the checked configs of all trials.

::

    [base.data]             # the sections of a run's config, or base.config = "FILE"
    name = "digits"
    [search]
    kind = "random"
    trials = 30
    [search.keys]
    optimiser.learning_rate = {low = 1e-4, high = 1e-2, log = true}
    annealing.name = ["none", "linear"]

No jax here: errors must be fast.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard

import msgspec
import numpy as np
from msgspec import Struct

from stein.runs import configs
from stein.runs.configs import ConfigError
from stein.runs.folder import RunFolder
from stein.runs.keys import keys
from stein.runs.schema import IMAGES, Config, Seed, about
from stein.runs.wording import shown

MOST_TRIALS = 1000


class Search(Struct, frozen=True):
    """The section ``[search]``."""

    kind: Annotated[
        Literal["grid", "random", "tpe"],
        about("every combination of the values, random ones, or those that Optuna's TPE expects to be good"),
    ] = "grid"
    trials: Annotated[int, about("combinations to draw; a larger number keeps the first", ge=1, le=MOST_TRIALS)] = 20
    seed: Annotated[Seed, about("seed of the draws")] = 0
    halving: Annotated[
        bool, about("for tpe: end trials that are behind at a quarter of the steps of others (successive halving)")
    ] = False
    metric: Annotated[
        Literal["test_nll", "test_accuracy", "test_rmse"],
        about("metric that selects the best trial, on points held out for this"),
    ] = "test_nll"

    @property
    def sign(self) -> int:
        """The best trial has the lowest sign times metric."""
        return -1 if self.metric == "test_accuracy" else 1


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers to draw from; integers if both ends are integers."""

    low: int | float
    high: int | float
    log: bool = False


Choices = dict[str, list[Any] | Range]
Fail = Callable[[str, str], ConfigError]


class Trial(NamedTuple):
    """One run of a search."""

    name: str
    settings: dict[str, Any]
    config: Config

    def place(self, folder: Path) -> Path:
        return folder / "trials" / self.name


def place(folder: Path, number: int) -> Path:
    """The directory of a trial's run."""
    return folder / "trials" / f"{number:03}"


class Plan(NamedTuple):
    """A search: what all its trials share, and the trials themselves, as far as they are known beforehand."""

    search: Search
    choices: Choices
    base: dict[str, Any]
    origin: Path  # the file that paths in `base` are relative to
    spec: Path
    trials: tuple[Trial, ...] = ()

    @property
    def is_adaptive(self) -> bool:
        """Whether a trial's settings depend on how earlier ones ended."""
        return self.search.kind == "tpe"

    @property
    def length(self) -> int:
        return self.search.trials if self.is_adaptive else len(self.trials)

    def trial(self, number: int, settings: dict[str, Any]) -> Trial:
        """The trial with these settings.

        Raises:
            ConfigError: if no run can have them, in one line.
        """
        config = configs.checked(_changed(self.base, settings), self.origin, dict.fromkeys(settings, "search.keys"))
        for key, complaint in _conflicts(config, self.search):
            raise ConfigError(f"{self.spec}: {key}: {complaint}")
        return Trial(f"{number:03}", settings, config)

    def begun(self, number: int, folder: Path) -> Trial | None:
        """The trial whose run has begun in a folder; None if there is no such run.

        Raises:
            ValueError: if the run belongs to another search.
        """
        file = RunFolder(place(folder, number)).config
        if not file.exists():
            return None
        config = configs.load_run(file)
        trial = self.trial(number, self._settings(config)) if self.is_adaptive else self.trials[number]
        if trial.config != config:
            raise ValueError(f"{file}: is not trial {trial.name} of this search; use another --out")
        return trial

    def _settings(self, config: Config) -> dict[str, Any]:
        document, keys = msgspec.to_builtins(config), {key: key.split(".", 1) for key in self.choices}
        return {key: document[section][inner] for key, (section, inner) in keys.items()}

    @property
    def unseen(self) -> bool:
        """Whether there are test images that no trial uses; other trials have a validation part."""
        return _is_images(self.base.get("data"))

    @property
    def metric(self) -> str:
        """The metric of the choice: in trials on images, the test part consists of training images."""
        return self.search.metric if self.unseen else self.search.metric.replace("test_", "validation_")


def load(path: Path) -> Plan:
    """The search in a file.

    Raises:
        ConfigError: for any error in it or in one of its trials, in one line.
    """

    def fail(name: str, complaint: str) -> ConfigError:
        return ConfigError(f"{path}: {name}: {complaint}")

    document = configs.read(path)
    for name in document.keys() - {"base", "search"}:
        raise fail(shown(name), "unknown section; must be base or search")
    search, choices = _search(document.get("search"), fail)
    base, origin = _base(document.get("base"), path, fail)
    plan = Plan(search, choices, base, origin, path)
    if plan.is_adaptive:  # the settings are not known yet, but every trial lies between these
        for settings in itertools.islice(_corners(choices), MOST_TRIALS):
            plan.trial(0, settings)
        return plan
    drawn = _grid(choices, fail) if search.kind == "grid" else _random(choices, search.trials, search.seed)
    return plan._replace(trials=tuple(plan.trial(number, settings) for number, settings in enumerate(drawn)))


def check_folder(plan: Plan, folder: Path) -> None:
    """Raise an error if existing trials belong to another search."""
    for number in range(plan.length):
        plan.begun(number, folder)


def _search(table: Any, fail: Fail) -> tuple[Search, Choices]:
    if table is None:
        raise fail("search", "is missing; must be a table: [search]")
    given = dict(table) if isinstance(table, dict) else table
    searched = given.pop("keys", None) if isinstance(given, dict) else None
    search = Search(**configs.values(given, "search", keys(Search), fail))
    for key in ("trials", "seed"):
        if search.kind == "grid" and key in given:
            raise fail(f"search.{key}", "is for random and tpe; a grid has every combination")
    if search.halving and search.kind != "tpe":
        raise fail("search.halving", f'is for kind = "tpe"; the trials of {search.kind} are all trained to their end')
    choices: Choices = {}
    for name, values in _flat(searched if isinstance(searched, dict) else {}):
        section, dot, _ = name.partition(".")
        if not dot:
            raise fail(f"search.keys: {shown(name)}", "must be section.key, such as optimiser.learning_rate")
        if section == "data":
            raise fail(f"search.keys: {name}", "all trials must have the same data; search keys of other sections")
        choices[name] = _choice(name, values, search.kind, fail)
    if not choices:
        raise fail("search.keys", "is missing; must be a table of keys and the values to try")
    return search, choices


def _flat(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys with their section: TOML reads a.b as a table within a table, and "a.b" as one key."""
    for name, value in table.items():
        if "." not in name and isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _choice(name: str, values: Any, kind: str, fail: Fail) -> list[Any] | Range:
    allowed = "a list of different values"
    if kind != "grid":
        allowed += ", or {low, high, log} with low below high, and above 0 where log = true"
    if isinstance(values, list) and values and not any(value in values[:i] for i, value in enumerate(values)):
        return values
    if isinstance(values, dict) and kind != "grid":
        try:
            found = msgspec.convert(values, Range)
        except msgspec.ValidationError:
            found = Range(0, 0)
        if -math.inf < found.low < found.high < math.inf and (found.low > 0 or not found.log):
            return found
    raise fail(f"search.keys: {name}", f"got {shown(values)}; must be {allowed}")


def _base(table: Any, path: Path, fail: Fail) -> tuple[dict[str, Any], Path]:
    """The document that all trials share, and the file that its paths are relative to."""
    if not isinstance(table, dict) or not table:
        raise fail("base", 'is missing; must be sections of a run\'s config, as [base.data], or config = "FILE"')
    if "config" in table:
        if len(table) > 1 or not isinstance(table["config"], str):
            raise fail("base.config", "must be the path of a run's config, and nothing beside it")
        origin = path.parent / table["config"]
        return configs.read(origin), origin
    data = table.get("data")
    if _is_images(data) and data.get("validate") is False:
        raise fail("base.data.validate", "got false; must be true or left out: the test images stay unseen")
    return table, path


def _is_images(data: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(data, dict) and data.get("name") in IMAGES


def _changed(base: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    document = {section: dict(table) if isinstance(table, dict) else table for section, table in base.items()}
    data = document.get("data")
    if _is_images(data):
        data["validate"] = True
    elif isinstance(data, dict) and data.get("validation_fraction", "auto") == "auto" and not data.get("split_column"):
        data["validation_fraction"] = 0.1
    for name, value in settings.items():
        section, _, key = name.partition(".")
        table = document.setdefault(section, {})
        if isinstance(table, dict):  # other types are rejected by the check
            table[key] = value
    return document


def _conflicts(config: Config, search: Search) -> Iterator[tuple[str, str]]:
    """Settings that are valid for a run but not for a search."""
    if search.halving and not config.evaluation.every:
        yield "evaluation.every", "is 0; must be above 0: search.halving compares trials while they train"
    if config.data.validate and not config.data.test_fraction:
        yield "data.test_fraction", "is 0; must be above 0: trials are compared on held-out images"
    if not (config.data.validate or config.validation_fraction or config.data.split_column):
        yield "data.validation_fraction", "is 0; must be above 0: trials are compared on validation points"
    if config.data.validate and config.train.early_stop:
        yield "train.early_stop", "must be 0: trials and the best config would be stopped by others; search train.steps"


def _grid(choices: Choices, fail: Fail) -> list[dict[str, Any]]:
    lists = [values for values in choices.values() if isinstance(values, list)]
    count = math.prod(map(len, lists))
    if count > MOST_TRIALS:
        raise fail("search.keys", f"makes {count} trials; must be at most {MOST_TRIALS}")
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*lists)]


def _corners(choices: Choices) -> Iterator[dict[str, Any]]:
    """Every combination of listed values and ends of ranges."""
    lists = [values if isinstance(values, list) else [values.low, values.high] for values in choices.values()]
    return (dict(zip(choices, values, strict=True)) for values in itertools.product(*lists))


def _random(choices: Choices, trials: int, seed: int) -> list[dict[str, Any]]:
    """One generator per trial, so that a longer search begins with the trials of a shorter one."""
    generators = [np.random.default_rng([seed, number]) for number in range(trials)]
    return [{name: _drawn(values, random) for name, values in choices.items()} for random in generators]


def _drawn(values: list[Any] | Range, random: np.random.Generator) -> Any:
    if isinstance(values, list):
        return values[random.integers(len(values))]
    whole = isinstance(values.low, int) and isinstance(values.high, int)
    low, high = values.low, values.high + whole  # integers are truncated; high is included
    number = math.exp(random.uniform(math.log(low), math.log(high))) if values.log else random.uniform(low, high)
    rounded = int(number // 1) if whole else float(f"{number:.4g}")
    return min(max(rounded, values.low), values.high)
