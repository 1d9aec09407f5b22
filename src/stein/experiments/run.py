"""From a config to a finished run, and from an interrupted run to a finished one."""

import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

import stein
from stein import checkpoint, doctor, durable, evaluate, hooks, predict, rules, train
from stein.ensembles import State
from stein.experiments import config as configs
from stein.experiments import dataset, more_steps, sizes
from stein.experiments import folder as folders
from stein.experiments.assemble import STREAM, Parts, assemble, batch_key, in_units, without_auto
from stein.experiments.signals import StoppedError
from stein.untrusted import CheckpointError

# What the promise "the same bytes" depends on.
IDENTITY = ("stein", "jax", "jaxlib", "numpy", "devices", "CPU threads", "CPU")


Say = Callable[[str], None]


def start(
    config: configs.Config, folder: Path, requests: list[int], show: bool, warn: Say, say: Say = lambda line: None
) -> None:
    """Train from the beginning in a new directory, whose lock the caller holds.

    Args:
        requests: signals received so far (:func:`stein.experiments.signals.requests`); one of them ends the run.
        show: draw a progress bar.
        warn: called with one line for everything that the user should know and that does not end the run.
        say: called with one line about what is learned from what.
    """
    set_precision(config)
    parts = assemble(config)  # before anything is written: bad data leaves no run behind
    for words in sizes.warnings(parts.data.train.x, parts.data.train.y):
        warn(words)
    _announce(parts, warn, say)
    durable.sweep(folder)
    folders.write_json(folder / "env.json", _environment())
    folders.write_json(folder / "data.json", parts.data.facts)
    durable.replace(folder / "config.toml", configs.dump(config).encode())
    _Run(config, folder, parts, requests, show, warn).go_on()


def resume(
    folder: Path,
    requests: list[int],
    show: bool,
    warn: Say,
    say: Say = lambda line: None,
    allow_changed_data: bool = False,
    steps: int | None = None,
) -> None:
    """Go on with a run, whose lock the caller holds, from its last good checkpoint.

    Args:
        allow_changed_data: go on with other data than the run began with, and warn; else they are a ``ValueError``.
        steps: the new total of its training steps; a finished run goes on too.
    """
    for place in (folder, folder / "checkpoints"):
        durable.sweep(place)
    config = configs.load_run(folder / "config.toml") if steps is None else more_steps.check(folder, steps)
    before, now = folders.read_json(folder / "env.json"), _environment()
    for name in IDENTITY:
        if before.get(name) != now[name]:
            warn(f"{name} was {before.get(name)} and is {now[name]}: the run goes on, the same to rounding only")
    set_precision(config)
    parts = reassemble(config, folder, allow_changed_data, warn)
    _announce(parts, warn, say)
    if steps is not None:  # only now: data that is refused leaves a finished run finished
        more_steps.allow(folder, config, warn)
    if allow_changed_data:
        folders.write_json(folder / "data.json", parts.data.facts)
    _Run(config, folder, parts, requests, show, warn).go_on()


def reassemble(config: configs.Config, folder: Path, allow_changed_data: bool, warn: Say) -> Parts:
    """The parts of a run that has begun, with the classes and scales that it began with.

    Raises:
        ValueError: its data are others now, and that is not allowed.
    """

    def changed(what: str) -> None:
        if not allow_changed_data:
            raise ValueError(
                f"{folder}: its data changed after training began: {what}; `--allow-changed-data` goes on all the same"
            )
        warn(f"the data changed after training began: {what}; test points may have been trained on")

    return assemble(config, folders.read_json(folder / "data.json"), changed)


def _announce(parts: Parts, warn: Say, say: Say) -> None:
    say(dataset.describe(parts.data))
    for note in parts.data.notes:
        warn(note)


def use_compilation_cache() -> None:
    """Keep what XLA compiles in the user's cache directory, for the next run."""
    cache = durable.user_cache()
    if cache is None:
        return
    place = cache / "xla"
    with contextlib.suppress(OSError):  # no place for a cache is no reason not to train
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(place))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    """What a checkpoint's manifest says about its run; ``batches`` is how the key of its batches is derived."""

    config: str
    metrics_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    batches: Annotated[int, msgspec.Meta(ge=1, le=STREAM)] = 1


@dataclasses.dataclass
class _Run:
    config: configs.Config
    folder: Path
    parts: Parts
    requests: list[int]
    show: bool
    warn: Callable[[str], None]
    stream: int = STREAM

    def go_on(self) -> None:
        """Train from the last good checkpoint, or from the beginning, to the end."""
        state, rows = self._where_it_was()
        section = self.config.train
        if int(state.step) < section.steps:
            if self._is_early_enough(rows):
                self.warn(f"train.early_stop = {section.early_stop} ends the run at step {int(state.step)}")
            else:
                state = self._train(state, rows)
        self._finish(state)

    def _where_it_was(self) -> tuple[State, list[dict[str, Any]]]:
        key, n = jax.random.key(self.config.train.seed), self.config.method.particles
        first = jax.jit(lambda key: self.parts.algorithm.init(key, n))
        like = jax.eval_shape(first, key)
        found = checkpoint.newest(self.folder / "checkpoints", like, self.warn)
        log = self.folder / "metrics.jsonl"
        if found is None:
            state, length = first(key), 0
        else:
            state, saved, path = found
            try:
                facts = msgspec.convert(saved, _Facts)
            except msgspec.ValidationError as error:
                raise CheckpointError(f"{path}: not a checkpoint of a run: {error}") from error
            length = facts.metrics_bytes
            if facts.config not in more_steps.fingerprints(self.folder, self.config):
                raise ValueError(
                    f"{self.folder}: config.toml is not the one that the checkpoint was made with; undo the change, or "
                    "start another run (`stein resume --steps N` alone may change train.steps)"
                )
            if facts.batches != self.stream:  # a run goes on with the batches that it began with
                self.stream = facts.batches
                key = batch_key(self.config.train.seed, self.stream)
                self.parts = self.parts._replace(batches=self.parts.batches.with_key(key))
        if folders.cut(log, length) < length:
            self.warn(f"{log}: lines are missing at its end; the run goes on without them")
        return state, folders.read_rows(log)

    @property
    def _metric(self) -> str:
        """What early stopping and the best checkpoint go by, the lower the better; older runs have one part only."""
        return "test_nll" if self.parts.data.validation is None else "validation_nll"

    def _is_early_enough(self, rows: list[dict[str, Any]]) -> bool:
        patience, metric = self.config.train.early_stop, self._metric
        return bool(patience) and hooks.has_stalled([row[metric] for row in rows if metric in row], patience)

    def _train(self, state: State, rows: list[dict[str, Any]]) -> State:
        config, parts, start = self.config, self.parts, int(state.step)
        log = hooks.Log(self.folder / "metrics.jsonl", self.warn)

        def facts() -> dict[str, Any]:
            size = log.write()
            durable.sync(log.path)  # before the manifest that relies on it
            return msgspec.to_builtins(_Facts(configs.fingerprint(config), size, self.stream))

        best = self._metric if config.checkpoints.best else None
        saver = hooks.Checkpoints(
            self.folder / "checkpoints",
            config.checkpoints.every,
            config.checkpoints.keep,
            best=best,
            facts=facts,
            past=rows,
            warn=self.warn,
        )
        name = folders.read_json(self.folder / "env.json").get("run", self.folder.name)
        words = {f"{s}.{k}": v for s, keys in msgspec.to_builtins(config).items() for k, v in keys.items()}
        with contextlib.ExitStack() as stack:
            called: list[train.Hook] = [hooks.members(), self._in_units()]
            if config.tracking.diagnostics:
                called.append(hooks.diagnostics(parts.algorithm, parts.batches, self.warn))
            called += [hooks.evaluation(self._evaluation(), config.evaluation.every), log]
            if config.tracking.tensorboard:
                called.append(stack.enter_context(hooks.tensorboard(self.folder / "tb", start, self.warn)))
            if config.tracking.mlflow:
                called.append(stack.enter_context(hooks.mlflow(config.tracking.mlflow, name, words)))
            if config.tracking.wandb:
                called.append(stack.enter_context(hooks.wandb(config.tracking.wandb, name, words)))
            called += [stack.enter_context(hooks.progress(self.show, start)), self._pulse(start), saver]
            if config.train.early_stop:
                called.append(hooks.early_stopping(config.train.early_stop, self._metric, rows))
            called.append(lambda moment: bool(self.requests))
            state, _ = train.run(
                parts.algorithm,
                state,
                parts.batches,
                config.train.steps - start,
                # Hooks count on multiples, also where a run goes on between two of them.
                chunk=lambda step: config.train.log_every - step % config.train.log_every,
                hooks=called,
                min_alive=config.train.min_alive,
            )
        saver.save(state)
        if self.requests and int(state.step) < config.train.steps:
            raise StoppedError(
                f"stopped at step {int(state.step)} of {config.train.steps} and saved; "
                f"`stein resume {self.folder}` goes on",
                self.requests[0],
            )
        return state

    def _evaluation(self) -> Callable[[State], dict[str, float]]:
        """The test part and the validation part, in the units of the targets."""
        loaded = self.parts.data
        likelihood, scaled = in_units(self.parts.likelihood, loaded)
        suites = {
            name: evaluate.held_out(self.parts.model, likelihood, jnp.asarray(part.x), jnp.asarray(scaled(part.y)))
            for name, part in (("validation", loaded.validation), ("test", loaded.test))
            if part is not None
        }

        def scores(state: State) -> dict[str, float]:
            members = predict.living(state.particles, state.alive)
            return {
                f"{name}_{metric.removeprefix('test_')}": value
                for name, suite in suites.items()
                for metric, value in suite(members).items()
            }

        return scores

    def _in_units(self) -> train.Hook:
        """Densities of standardised targets, per unit of the targets themselves."""
        units = self.parts.data.units
        shift = 0.0 if units is None else float(np.log(units.scale).sum())

        def hook(moment: train.Moment) -> None:
            metrics = moment.metrics
            metrics["log_likelihood"] -= shift
            members = metrics["log_likelihood_members"]
            metrics["log_likelihood_members"] = [None if value is None else value - shift for value in members]

        return hook

    def _pulse(self, start: int) -> train.Hook:
        """Step and speed for `stein status`, once a second; a reader sees a whole file, a crash may lose it."""
        clock, last = hooks.Stopwatch(start), 0.0

        def hook(moment: train.Moment) -> None:
            nonlocal last
            speed = clock.speed(moment.step)
            if time.monotonic() - last > 1 or moment.step == moment.last_step:
                last = time.monotonic()
                temporary = self.folder / f".tmp-{os.getpid()}-progress"
                with contextlib.suppress(OSError):
                    temporary.write_text(json.dumps({"step": moment.step, "speed": speed, "time": time.time()}))
                    temporary.replace(self.folder / "progress.json")

        return hook

    def _finish(self, state: State) -> None:
        """The ensemble in one file, its card, and last the numbers that say that the run is over."""
        config = self.config
        row = folders.last_row(self.folder / "metrics.jsonl")
        alive = np.flatnonzero(np.asarray(state.alive)).tolist()
        loaded = self.parts.data
        about = {
            "version": stein.__version__,
            "config": msgspec.to_builtins(config),
            "alive": alive,
            "labels": loaded.train.labels,
            "inputs": loaded.inputs,
            "target": loaded.target,
            "likelihood": self.parts.likelihood.name,
            **{name: loaded.facts[name] for name in ("standardiser", "units")},
        }
        # One entry: safetensors writes several in random order, and equal runs shall have equal files.
        checkpoint.export(self.folder / "ensemble.safetensors", state.particles, {"stein": json.dumps(about)})
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        durable.replace(self.folder / "card.md", _card(config, self.parts, numbers, alive).encode())
        method = {"method": config.method.name, "stochastic": config.method.stochastic}
        numbers |= dataset.baseline(loaded)
        folders.write_json(self.folder / "metrics.json", method | {"steps": int(state.step)} | numbers)


def set_precision(config: configs.Config) -> None:
    jax.config.update("jax_enable_x64", config.train.precision == "float64")


def _environment() -> dict[str, Any]:
    """What a result depends on, and a name for the run that no other has."""
    return doctor.facts() | {"CPU": _processor(), "commit": _commit(), "run": f"stein-{uuid.uuid4().hex[:12]}"}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    """The commit of the user's own working directory, if it is one of git's."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
        return answer.stdout.strip()
    return ""


def _card(config: configs.Config, parts: Parts, numbers: dict[str, Any], alive: list[int]) -> str:
    """The model card: what this is, what it was trained on, how good it is, what it is not good for."""
    config = without_auto(config, parts.data)
    method = rules.lookup(config.method.name)
    source = config.data.name or config.data.file or config.data.inputs
    rows = parts.batches.num_data
    table = "\n".join(f"| {name} | {value:.6g} |" for name, value in numbers.items())
    stochastic = " with noise" if config.method.stochastic else ""
    return f"""# An ensemble of {len(alive)} networks

| | |
|---|---|
| method | {method.name}{stochastic}: {method.summary} |
| data | {source}, {rows} training points |
| model | {config.model.name}, likelihood {parts.likelihood.name}, prior {config.prior.name}({config.prior.scale}) |
| training | {numbers.get("step", 0)} steps, seed {config.train.seed}, {config.train.precision} |
| members | {config.method.particles}, of which alive: {len(alive)} |
| written by | stein {stein.__version__} |

## Numbers at the last step

| metric | value |
|---|---|
{table}

`log_likelihood` and `log_prior` are means over members and the last logged chunk; `test_*` are on held-out data, and
`validation_*` on the part that early stopping and the best checkpoint go by. All are in the units of the targets.

## Limits

- The spread of the members is an estimate of what the data leave open under this model and prior, not a guarantee;
  far from the data it follows the prior.
- Trained on the data above only: inputs of another kind, scale or preprocessing are out of distribution.
- Are the members draws from the posterior? For {method.name}: "{method.posterior}" (`stein methods` explains).

`ensemble.safetensors` holds the weights, members along the first axis of every array, and the whole config as metadata.
"""
