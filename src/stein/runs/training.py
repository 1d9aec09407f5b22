"""Train a run from its config, or resume an interrupted one."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import msgspec
import numpy as np
from jax.sharding import Mesh

from stein import __version__, ensembles, evaluate, hooks, processes, train
from stein.batches import Batches
from stein.ensembles import State
from stein.runs import configs, dataset, forecast, more_steps, sizes
from stein.runs.build import STREAM, Parts, assemble, batch_key, begin, in_units, shapes
from stein.runs.card import card
from stein.runs.conclusion import conclude
from stein.runs.environment import IDENTITY, environment, precision
from stein.runs.folder import RunFolder
from stein.runs.schema import Config
from stein.runs.signals import StoppedError
from stein.sharding import Spread
from stein.storage import checkpoint, documents, durable
from stein.storage.untrusted import CheckpointError

Say = Callable[[str], None]


def start(
    config: Config,
    folder: RunFolder,
    requests: list[int],
    show: bool,
    warn: Say,
    say: Say = lambda line: None,
    mesh: Mesh | None = None,
    also: Sequence[train.Hook] = (),
) -> None:
    """Train from the beginning in a new directory. The caller holds its lock.

    If the run has several processes, all of them call this, and only the first holds the lock and writes, except for
    the checkpoints.

    Args:
        requests: signals received so far (:func:`stein.runs.signals.requests`); any of them ends the run.
        show: draw a progress bar.
        warn: called with one line per warning.
        say: called with one line that describes the data.
        mesh: the devices that the members are spread over (:func:`stein.sharding.mesh`). Default: one device.
        also: hooks that are called after those of the run.
    """
    with precision(config):
        parts = assemble(config)  # before anything is written: bad data creates no run
        forecast.fits(config, shapes(parts.algorithm, config), jax.process_count())
        for warning in sizes.warnings(parts.data.train.x, parts.data.train.y):
            warn(warning)
        _announce(parts, warn, say)
        if processes.is_first():
            durable.sweep(folder.path)
            documents.write_json(folder.environment, environment() | _devices_used(mesh))
            documents.write_json(folder.data, parts.data.facts)
            durable.replace(folder.config, configs.dump(config).encode())
        _Training(config, folder, parts, requests, show, warn, say, mesh, also).go_on()


def resume(
    folder: RunFolder,
    requests: list[int],
    show: bool,
    warn: Say,
    say: Say = lambda line: None,
    allow_changed_data: bool = False,
    steps: int | None = None,
    mesh: Mesh | None = None,
    also: Sequence[train.Hook] = (),
) -> None:
    """Continue a run from its last good checkpoint. The caller holds its lock.

    Args:
        allow_changed_data: if the data changed after the run began, warn instead of raising ``ValueError``.
        steps: new total of training steps, also for a finished run.
        mesh: as in :func:`start`; another one than before gives the same to rounding.
        also: hooks that are called after those of the run.
    """
    if processes.is_first():
        for place in (folder.path, folder.checkpoints):
            durable.sweep(place)
    config = configs.load_run(folder.config) if steps is None else more_steps.check(folder, steps)
    with precision(config):
        before, now = documents.read_json(folder.environment), environment() | _devices_used(mesh)
        for name in ("instructions", USED):
            before.setdefault(name, now[name])  # older runs do not say
        for name in (*IDENTITY, USED):
            if before.get(name) != now[name]:
                warn(f"{name} was {before.get(name)} and is {now[name]}: the run goes on, the same to rounding only")
        changed = dataset.changed_data(str(folder), allow_changed_data, warn)
        parts = assemble(config, documents.read_json(folder.data), changed)
        _announce(parts, warn, say)
        processes.exchange()  # all have read what the first now writes
        if steps is not None and processes.is_first():  # only now: after rejected data, a finished run stays finished
            more_steps.allow(folder, config, warn)
        if allow_changed_data and processes.is_first():
            documents.write_json(folder.data, parts.data.facts)
        _Training(config, folder, parts, requests, show, warn, say, mesh, also).go_on()


USED = "devices used"


def _devices_used(mesh: Mesh | None) -> dict[str, str]:
    number = 1 if mesh is None else mesh.size
    return {USED: str(number) if jax.process_count() == 1 else f"{number} of {jax.process_count()} processes"}


def _announce(parts: Parts, warn: Say, say: Say) -> None:
    say(dataset.describe(parts.data))
    for note in parts.data.notes:
        warn(note)


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    """The run's facts in a checkpoint's manifest; ``batches`` is how the key of its batches is derived."""

    config: str
    metrics_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    batches: Annotated[int, msgspec.Meta(ge=1, le=STREAM)] = 1


@dataclasses.dataclass
class _Training:
    config: Config
    folder: RunFolder
    parts: Parts
    requests: list[int]
    show: bool
    warn: Say
    say: Say
    mesh: Mesh | None = None
    also: Sequence[train.Hook] = ()
    stream: int = STREAM
    spread: Spread | None = None

    def go_on(self) -> None:
        """Train from the last good checkpoint, or from the beginning, to the end."""
        like = shapes(self.parts.algorithm, self.config)
        if self.mesh is not None:
            self.spread = Spread(self.mesh, like)
            self.parts = self.parts._replace(algorithm=self.spread.algorithm(self.parts.algorithm))
        state, rows = self._where_it_was(like)
        section = self.config.train
        if int(state.step) < section.steps:
            if self._is_early_enough(rows):
                self.warn(f"train.early_stop = {section.early_stop} ends the run at step {int(state.step)}")
            else:
                state = self._train(state, rows)
        if self.spread is not None:
            processes.part()
            if not processes.is_first():
                return
            # Every row is on disk: no device needs to hold them all but the one that evaluates them.
            saved = checkpoint.newest(self.folder.checkpoints, like, self.warn)
            assert saved is not None  # noqa: S101 - the last step was saved, or this one was loaded
            state = saved[0]
        self._finish(state)

    def _where_it_was(self, like: State) -> tuple[State, list[dict[str, Any]]]:
        found = checkpoint.newest(self.folder.checkpoints, like, self.warn)
        if found is None:
            state, length = begin(self.parts.algorithm, self.config), 0
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
            batches = self.parts.batches
            # A run keeps the batches that it began with.
            if facts.batches != self.stream and isinstance(batches, Batches):
                self.stream = facts.batches
                key = batch_key(self.config.train.seed, self.stream)
                self.parts = self.parts._replace(batches=batches.with_key(key))
            if self.spread is not None:
                state = self.spread.place(state)
        if self.spread is not None and isinstance(self.parts.batches, Batches):  # a stream is read by every process
            self.parts = self.parts._replace(batches=self.spread.everywhere(self.parts.batches))
        if processes.is_first() and self.folder.cut_log(length) < length:
            self.warn(f"{self.folder.log}: lines are missing at its end; the run goes on without them")
        processes.exchange()  # all read what the first has left of the log
        return state, self.folder.rows()

    @property
    def _metric(self) -> str:
        """The metric of early stopping and the best checkpoint, lower is better; older runs have no validation part."""
        return "test_nll" if self.parts.data.validation is None else "validation_nll"

    def _is_early_enough(self, rows: list[dict[str, Any]]) -> bool:
        patience, metric = self.config.train.early_stop, self._metric
        return bool(patience) and hooks.has_stalled([row[metric] for row in rows if metric in row], patience)

    def _train(self, state: State, rows: list[dict[str, Any]]) -> State:
        config, start = self.config, int(state.step)
        log = hooks.Log(self.folder.log, self.warn)
        saver = self._saver(log, rows)
        with contextlib.ExitStack() as stack:
            called: list[train.Hook] = self._measures()
            if processes.is_first():
                called += [log, *self._trackers(stack, start), self._pulse(start)]
            called.append(saver)
            if config.train.early_stop:
                called.append(hooks.early_stopping(config.train.early_stop, self._metric, rows))
            called += [*self.also, lambda moment: bool(self.requests)]
            state, _ = train.run(
                self.parts.algorithm,
                state,
                self.parts.batches,
                config.train.steps - start,
                # Hooks rely on multiples, also if a run resumes between two of them.
                chunk=lambda step: config.train.log_every - step % config.train.log_every,
                hooks=called,
                min_alive=config.train.min_alive,
            )
        saver.save(state)
        if processes.agreed(bool(self.requests)) and int(state.step) < config.train.steps:
            raise StoppedError(
                f"stopped at step {int(state.step)} of {config.train.steps} and saved; "
                f"`stein resume {self.folder}` goes on",
                (self.requests or [signal.SIGTERM])[0],
            )
        return state

    def _saver(self, log: hooks.Log, rows: list[dict[str, Any]]) -> hooks.Checkpoints:
        section = self.config.checkpoints

        def facts() -> dict[str, Any]:
            size = log.write()
            durable.sync(log.path)  # before the manifest that relies on it
            return msgspec.to_builtins(_Facts(configs.fingerprint(self.config), size, self.stream))

        best = self._metric if section.best else None
        return hooks.Checkpoints(
            self.folder.checkpoints,
            section.every,
            section.keep,
            best=best,
            facts=facts,
            past=rows,
            warn=self.warn,
            mine=(lambda state: state) if self.spread is None else self.spread.mine,
        )

    def _measures(self) -> list[train.Hook]:
        """The hooks whose numbers go into the log."""
        measures: list[train.Hook] = [hooks.members(), self._in_units()]
        if self.config.tracking.diagnostics:
            measures.append(hooks.diagnostics(self.parts.algorithm, self.parts.batches, self.warn))
        if self.config.tracking.far_spread:
            model, likelihood, algorithm, _, loaded = self.parts
            every = self.config.evaluation.every or self.config.train.steps
            measures.append(
                hooks.far_spread(model, likelihood, algorithm.target, loaded.train.x, every=every, warn=self.warn)
            )
        return [*measures, hooks.evaluation(self._evaluation(), self.config.evaluation.every)]

    def _trackers(self, stack: contextlib.ExitStack, start: int) -> list[train.Hook]:
        """The hooks that report the numbers."""
        section = self.config.tracking
        name = documents.read_json(self.folder.environment).get("run", self.folder.path.name)
        settings = {f"{s}.{k}": v for s, keys in msgspec.to_builtins(self.config).items() for k, v in keys.items()}
        trackers: list[train.Hook] = []
        if section.tensorboard:
            trackers.append(stack.enter_context(hooks.tensorboard(self.folder.board, start, self.warn)))
        if section.mlflow:
            trackers.append(stack.enter_context(hooks.mlflow(section.mlflow, name, settings)))
        if section.wandb:
            trackers.append(stack.enter_context(hooks.wandb(section.wandb, name, settings)))
        return [*trackers, stack.enter_context(hooks.progress(self.show, start))]

    def _evaluation(self) -> Callable[[State], dict[str, float]]:
        """Scores on the test and validation parts, in the units of the targets."""
        loaded = self.parts.data
        suites = {
            name: evaluate.held_out(
                self.parts.model, self.parts.likelihood, part.x, loaded.raw_targets(part.y), in_units(loaded)
            )
            for name, part in (("validation", loaded.validation), ("test", loaded.test))
            if part is not None
        }

        def scores(state: State) -> dict[str, float]:
            return {
                f"{name}_{metric.removeprefix('test_')}": value
                for name, suite in suites.items()
                for metric, value in suite(state).items()
            }

        return scores

    def _in_units(self) -> train.Hook:
        """Densities of standardised targets, per unit of the targets themselves."""
        units = self.parts.data.units
        shift = 0.0 if units is None else float(np.log(units.scale).sum())

        def hook(moment: train.Moment) -> dict[str, Any]:
            of_all, members = (moment.metrics[name] for name in ("log_likelihood", "log_likelihood_members"))
            in_units = [None if value is None else value - shift for value in members]
            return {"log_likelihood": of_all - shift, "log_likelihood_members": in_units}

        return hook

    def _pulse(self, start: int) -> train.Hook:
        """Step and speed for `stein status`, once a second."""
        clock, last = hooks.Stopwatch(start), 0.0

        def hook(moment: train.Moment) -> None:
            nonlocal last
            speed = clock.speed(moment.step)
            if time.monotonic() - last > 1 or moment.step == moment.last_step:
                last = time.monotonic()
                self.folder.write_progress(step=moment.step, speed=speed, time=time.time())

        return hook

    def _finish(self, state: State) -> None:
        """Write the ensemble, its card, and last metrics.json, which marks the run as finished."""
        config, loaded = self.config, self.parts.data
        members, living = ensembles.members(state)
        alive = np.flatnonzero(np.asarray(living)).tolist()
        about = {
            "version": __version__,
            "config": msgspec.to_builtins(config),
            "alive": alive,
            "likelihood": self.parts.likelihood.name,
            **loaded.description(),
        }
        if config.method.draws:
            about["draws"] = len(living) // config.method.particles
        numbers = {name: value for name, value in self.folder.last_row().items() if isinstance(value, (int, float))}
        if config.evaluation.summary:
            found, scores = conclude(config, self.folder, self.parts, state, self.requests, self.show, self.say)
            about["calibration"] = msgspec.to_builtins(found)
            numbers |= scores
        checkpoint.export(self.folder.ensemble, members, about)
        durable.replace(self.folder.card, card(config, self.parts, numbers, alive).encode())
        method = {"method": config.method.name, "stochastic": config.method.stochastic}
        if loaded.test is not None:
            numbers |= dataset.baseline(loaded.constant, loaded.raw_targets(loaded.test.y))
        documents.write_json(self.folder.numbers, method | {"steps": int(state.step)} | numbers)
