"""What both estimators share: training on arrays, predictions in chunks of one size, uncertainty, pickling."""

import functools
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from stein import calibration, data, defaults, ensembles, evaluate, hooks, predict, train
from stein.ensembles import State
from stein.likelihoods import Likelihood
from stein.predictions import ClassPrediction, Prediction
from stein.runs import build, choosing, dataset, named, record, tables
from stein.runs.environment import precision
from stein.runs.kinds import Kind
from stein.runs.schema import Config, Data, Train
from stein.sklearn import files, settings
from stein.sklearn.networks import adapted, is_importable
from stein.types import Model, Particles

CHUNK = 1024
"""Rows per call of the networks, always: so predictions do not depend on how many rows are asked at once."""
MOST_REFERENCE_ROWS = 2048
TRAINING, VALIDATION, CALIBRATION = range(3)
NOT_PARAMETERS_OF_A_RUN = ("calibration", "calibration_fraction", "random_state", "verbose", "warm_start")

Rows = Float[np.ndarray, " b"]


class Uncertainty(NamedTuple):
    """The uncertainty of each row: arrays of one number per row, or of one per row and target.

    For numbers, in their units: ``total`` and ``aleatoric`` (noise) are standard deviations, ``epistemic`` that of the
    members' means, with total² = aleatoric² + epistemic²; ``disagreement`` is the largest difference between two
    members' means. For classes, in parts of the largest entropy: ``total`` is the entropy, ``epistemic`` the mutual
    information of the members, ``aleatoric`` the rest of the total, at least 0; ``disagreement`` is the standard
    deviation of the members' probabilities. A temperature changes the total, and not what is said about the members.
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    disagreement: np.ndarray


class SteinEnsemble(BaseEstimator):
    """The common part of :class:`~stein.sklearn.SteinRegressor` and :class:`~stein.sklearn.SteinClassifier`."""

    # -- training -------------------------------------------------------------------------------------------

    def _fit(
        self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, labels: tuple[str, ...], target: str
    ) -> None:
        """Train on checked arrays; ``labels`` are the names of the classes 0, 1, ..., empty for numbers."""
        if weights is not None:
            X, y, weights = (values[weights > 0] for values in (X, y, weights))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        classes, chosen = y if labels else None, self._kind_of_calibration()
        parts = np.full(len(X), TRAINING)
        for part, on, fraction in (
            (CALIBRATION, chosen == "conformal", self.calibration_fraction),
            (VALIDATION, self.early_stopping, self.validation_fraction),
        ):
            if on:
                left = np.flatnonzero(parts == TRAINING)
                mask = data.held_out(len(left), fraction, [seed, part], None if classes is None else classes[left])
                parts[left[mask]] = part
        rows = [np.flatnonzero(parts == part) for part in (TRAINING, VALIDATION, CALIBRATION)]
        config = settings.config(type(self).__name__, self._settings(), len(rows[0]), seed, y[rows[0]])
        continued = self.warm_start and hasattr(self, "members_")
        before = self._about if continued else {}
        if continued:
            self._check_same(X.shape[1], labels)
            if config.method.draws:
                raise ValueError(
                    f"warm_start: the members of {config.method.name} are draws; fit a clone of the estimator"
                )
            config = _replaced(config, "method", particles=len(jax.tree.leaves(self.members_)[0]))
        read = tables.Read(
            tuple(data.Arrays(X[part], y[part], labels) for part in rows),  # type: ignore[arg-type]
            config.likelihood.name,  # type: ignore[arg-type]
            tuple(getattr(self, "feature_names_in_", [f"x{i}" for i in range(X.shape[1])])),
            target,
            (),
            {},
        )
        weights = None if weights is None else weights[rows[0]]
        loaded, network = dataset.prepared(config, read, before, weights), adapted(self.model, X.shape[1])
        if not continued:
            self.spread_: calibration.Spread = calibration.UNCHANGED
            self.temperature_: float | None = None
        trial = None
        if chosen is not None and not continued and len(rows[0]) >= choosing.FEW:
            try:
                trial = self._chosen(config, read, weights, network, chosen)
            except choosing.Interrupted as stop:
                if not int(stop.state.step):
                    raise KeyboardInterrupt("interrupted before anything was learned") from None
                _warn_of_interrupt(int(stop.state.step), config.train.steps)
                self._keep(config, stop.loaded, stop.state, {"step": [int(stop.state.step)]})
                return
            config = _replaced(config, "prior", scale=trial.prior)
            if not (config.method.draws and self.calibration == "auto"):
                self.spread_, self.temperature_ = trial.spread, trial.temperature
        with precision(config):
            made = build.parts(config, loaded, network)
            state = build.begin(made.algorithm, config, self.members_ if continued else None)
            state, history = self._train(config, made, state)
        self._keep(config, loaded, state, history, trial)

    def _chosen(
        self, config: Config, read: tables.Read, weights: np.ndarray | None, network: Model | None, kind: str
    ) -> choosing.Trial:
        """The prior, unless it is given, and what calibrates the predictions."""
        priors = defaults.PRIORS if isinstance(self.prior, str) else (float(config.prior.scale),)
        keep = settings.is_number(config.likelihood.sigma) and kind != "spread"  # as it was given
        with hooks.progress(bool(self.verbose)) as bar:
            return choosing.choose(
                config, read, priors, self.calibration_fraction,
                keep_noise=keep, weights=weights, network=network, hooks=[bar],
            )  # fmt: skip

    def _keep(
        self,
        config: Config,
        loaded: dataset.Loaded,
        state: State,
        history: dict[str, list[float]],
        trial: choosing.Trial | None = None,
    ) -> None:
        """What predictions need: the living members, their description, and the calibration."""
        self.members_: Particles = jax.device_get(predict.living(*ensembles.members(state)))
        n, living = len(jax.tree.leaves(self.members_)[0]), int(np.asarray(state.alive).sum())
        self.config_: Config = build.resolved(
            _replaced(config, "method", particles=living), loaded.kind, len(loaded.train.x)
        )
        self.history_ = history
        self._about: dict[str, Any] = loaded.description() | {"alive": list(range(n)), "draws": n // living}
        self._check_learned(loaded)
        held = loaded.test
        self.conformal_: calibration.Conformal | None = None
        if held is not None:
            self.conformal_ = calibration.conformal(self._of_prepared(held.x), loaded.raw_targets(held.y))
        x = next(part for part in (held, loaded.validation, loaded.train) if part is not None).x[:MOST_REFERENCE_ROWS]
        self._usual: np.ndarray = _usual(_signals(self._of_prepared(x), x))
        if held is None and trial is not None:
            # The trial has not seen its rows, but few members that do not repel; the ensemble has seen all rows.
            known = isinstance(trial.prediction, ClassPrediction)
            tried = trial.prediction if known else self.spread_(trial.prediction)  # type: ignore[arg-type]
            self._usual = np.maximum(self._usual, _usual(_signals(tried, trial.x)))

    def _check_learned(self, loaded: dataset.Loaded) -> None:
        """Warn if the predictions of numbers, or those of single members, are further off than the targets' mean."""
        prediction = self._of_prepared(loaded.train.x[:MOST_REFERENCE_ROWS])
        if isinstance(prediction, ClassPrediction):
            return
        y = loaded.raw_targets(loaded.train.y[:MOST_REFERENCE_ROWS]).reshape(prediction.mean.shape)
        if said := worse_than_the_mean(prediction.means, y):
            remedy = "lower learning_rate or add steps"
            warnings.warn(f"{said}: {self.config_.method.name} has not converged; {remedy}", stacklevel=5)

    def _settings(self) -> dict[str, Any]:
        """The parameters that become a config; of a classifier the likelihood is categorical."""
        given = {"likelihood": "categorical", "noise": "auto", **self.get_params(deep=False)}
        return {key: value for key, value in given.items() if key not in NOT_PARAMETERS_OF_A_RUN}

    def _check_same(self, inputs: int, labels: tuple[str, ...]) -> None:
        before = tuple(self._about["shape"]), tuple(self._about["labels"])
        if before != ((inputs,), labels):
            raise ValueError("warm_start: the inputs or classes are others than before; fit a clone of the estimator")

    def _kind_of_calibration(self) -> str | None:
        """The calibration that "auto" means, or the given one."""
        raise NotImplementedError

    def _train(self, config: Config, made: build.Parts, state: State) -> tuple[State, dict[str, list[float]]]:
        """Train to the end, to the best validation nll with early stopping, or to an interrupt."""
        units, rows = made.data.units, []
        best_nll, best = math.inf, state
        shift = 0.0 if units is None else float(np.log(units.scale).sum())

        def record(moment: train.Moment) -> None:
            nonlocal best_nll, best
            row = {"step": moment.step, "log_likelihood": moment.metrics["log_likelihood"] - shift}
            if "validation_nll" in moment.metrics:
                row["validation_nll"] = moment.metrics["validation_nll"]
                if row["validation_nll"] < best_nll:
                    best_nll, best = row["validation_nll"], moment.state
            rows.append(row)

        measures: list[train.Hook] = []
        if made.data.validation is not None:
            x, y, _ = made.data.validation
            judge = evaluate.held_out(
                made.model, made.likelihood, x, made.data.raw_targets(y), build.in_units(made.data)
            )
            measures.append(
                hooks.evaluation(lambda state: {"validation_nll": judge(state)["test_nll"]}, config.evaluation.every)
            )
        stops = [hooks.early_stopping(config.train.early_stop, "validation_nll")] if config.train.early_stop else []
        with hooks.progress(bool(self.verbose)) as bar:
            try:
                state, _ = train.run(
                    made.algorithm,
                    state,
                    made.batches,
                    config.train.steps,
                    chunk=config.train.log_every,
                    hooks=[*measures, record, bar, *stops],
                )
            except train.Interrupted as stop:
                state = stop.state
                if not rows:
                    raise KeyboardInterrupt("interrupted before anything was learned") from None
                _warn_of_interrupt(rows[-1]["step"], config.train.steps)
        history = {key: [row[key] for row in rows] for key in rows[0]}
        return best if math.isfinite(best_nll) else state, history

    # -- predictions ----------------------------------------------------------------------------------------

    def prediction(self, X: Any) -> Prediction:
        """The ensemble's prediction with all that it can be asked: :mod:`stein.predictions`.

        It has the calibrated spread or temperature, but no conformal intervals.
        """
        return self._of_prepared(self._prepared(X))

    def _prepared(self, X: Any) -> np.ndarray:
        """Checked inputs, as the networks take them."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        scales = self._about["standardiser"]
        if scales is not None:
            X = record.standardiser(scales)(X)
        return X.astype(self.config_.train.precision)

    def _of_prepared(self, x: np.ndarray) -> Prediction:
        about, units = self._about, self._about["units"]
        scale = None if units is None or isinstance(self.config_.likelihood.sigma, str) else float(units["scale"][0])
        with precision(self.config_):
            network = adapted(self.model, about["shape"][0])
            model, likelihood = _network(
                _only_the_network(self.config_), about["kind"], scale, tuple(about["shape"]), about["answers"], network
            )
            outputs = predict.in_chunks(model, self.members_, x, chunk=CHUNK, full=True)
        prediction = likelihood.predictive(outputs)
        if isinstance(prediction, ClassPrediction):
            return prediction._replace(labels=tuple(about["labels"]), temperature=self.temperature_ or 1.0)
        prediction = self.spread_(prediction)
        return prediction if units is None else prediction.in_units(units["scale"], units["mean"])

    def ood_score(self, X: Any) -> Rows:
        """How unusual each row is: above 1 where it is more unusual than 95 % of the rows known from ``fit``.

        The larger of two ratios: the epistemic uncertainty (standard deviation of the members' means, of the worst
        target; for classes the mutual information) over its usual value, and the distance from the middle of the
        training rows (the largest standardised input) over its usual value. The usual values are 95 % quantiles of the
        rows held out for calibration or validation; if there are none, of the training rows, or of the rows that were
        held out to choose the prior, whichever are larger.
        """
        x = self._prepared(X)
        return (_signals(self._of_prepared(x), x) / self._usual).max(axis=1)

    # -- files ----------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Write the fitted estimator to a new directory: safetensors, TOML and JSON, nothing pickled.

        :meth:`load` reads it, and so do ``stein.load`` and ``stein predict``, which know the calibrated spread and
        temperature, but no conformal intervals.
        """
        check_is_fitted(self)
        files.save(self, Path(path))

    @classmethod
    def load(cls, path: Path | str, model: Any = None) -> Any:
        """Read an estimator that :meth:`save` wrote.

        Args:
            model: the network, if it was your own; its structure is checked.
        """
        return files.load(cls, Path(path), model)

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "members_") and self.model is not None and not is_importable(self.model):
            raise TypeError(
                f"model = {self.model!r}: cannot be pickled, because another process could not import it; define it at "
                "the top of a module, or use save(path) and load(path, model=...)"
            )
        return super().__getstate__()


def _warn_of_interrupt(step: int, steps: int) -> None:
    warnings.warn(
        f"fit was interrupted at step {step} of {steps}: the estimator keeps what it has learned; its learning rate "
        "has not come down",
        stacklevel=5,
    )


def worse_than_the_mean(means: Float[np.ndarray, "n b k"], y: Float[np.ndarray, "b k"]) -> str:
    """What is wrong with members' predictions of the rows they were trained on; nothing if they are usable.

    Twice the variance is more than noise adds to an ensemble that learned nothing; a single member, whose weights
    may be a wide posterior's, has to miss by twice the standard deviation.
    """
    of_mean = np.mean(np.square(y - y.mean(axis=0)))
    of_members = np.mean(np.square(means - y), axis=(1, 2))
    of_all = np.mean(np.square(means.mean(axis=0) - y))
    if of_mean == 0:
        return ""
    if not of_all <= 2 * of_mean:
        return (
            f"the predictions of the training rows are worse than their mean (squared error {of_all:.3g}, of the mean "
            f"{of_mean:.3g})"
        )
    lost = int((~(of_members <= 4 * of_mean)).sum())
    return f"{lost} of {len(means)} members predict the training rows worse than their mean does" if lost else ""


def checked_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray | None:
    """The weights of the rows as an array, or None if none are given."""
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("sample_weight: all weights are zero; at least one must be above 0")
    return weights


def name_of(y: Any) -> str:
    """The name of the target column, if it has one."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) else "y"


def _signals(prediction: Prediction, x: np.ndarray) -> np.ndarray:
    """Signs that a row is unusual, one column each: the epistemic uncertainties and the largest input."""
    known = isinstance(prediction, ClassPrediction)
    epistemic = prediction.mutual_information[:, None] if known else prediction.epistemic  # type: ignore[union-attr]
    return np.column_stack([epistemic, np.abs(x).max(axis=1)]).astype(float)


def _usual(signals: np.ndarray) -> np.ndarray:
    """The values of the signals that 95 % of the rows do not exceed, in any of them."""
    tiny = np.finfo(float).tiny
    usual = np.maximum(np.quantile(signals, 0.95, axis=0), tiny)
    return usual * max(np.quantile((signals / usual).max(axis=1), 0.95), tiny)


def _replaced(config: Config, section: str, **keys: Any) -> Config:
    return msgspec.structs.replace(config, **{section: msgspec.structs.replace(getattr(config, section), **keys)})


def _only_the_network(config: Config) -> Config:
    """The part of a config that predictions depend on: other fits share what was compiled for them."""
    return Config(
        data=Data(), model=config.model, likelihood=config.likelihood, train=Train(precision=config.train.precision)
    )


@functools.lru_cache(maxsize=8)
def _network(
    config: Config, kind: Kind, scale: float | None, shape: tuple[int, ...], answers: int, network: Model | None
) -> tuple[Model, Likelihood]:
    likelihood = named.make_likelihood(config, kind, scale)
    return named.make_model(config, likelihood, shape, answers, network), likelihood
