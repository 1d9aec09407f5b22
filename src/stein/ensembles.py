"""An ensemble in training: one state for all rules, and the pure function that advances it one step."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from stein import inputs, rules, steps, tree
from stein.metrics import diagnostics
from stein.rules import Rule
from stein.schedules import Schedule, as_schedule, constant
from stein.targets import Target, View
from stein.types import Batch, Key, Particles


class State(NamedTuple):
    """Everything that the next step needs."""

    particles: Particles
    opt_state: Any
    memory: Any
    key: Key
    step: Int[Array, ""]
    ids: Int[Array, " n"]
    alive: Bool[Array, " n"]


class Info(NamedTuple):
    """Metrics of a step."""

    log_likelihood: Float[Array, " n"]
    log_prior: Float[Array, " n"]
    alive: Bool[Array, " n"]
    more: dict[str, Array] = {}  # noqa: RUF012 - metrics specific to an algorithm, one number per particle


class Algorithm(NamedTuple):
    """``init(key, num_particles) -> State`` and ``step(state, batch) -> (State, Info)``, both pure.

    ``diagnose(state, batch)`` measures how the members interact (:func:`diagnose`), at the cost of a step or two.
    ``on_nan`` is the policy for dead particles, for the training loop.
    """

    init: Callable[..., State]
    step: Callable[[State, Batch | None], tuple[State, Info]]
    diagnose: Callable[[State, Batch | None], dict[str, Float[Array, ""]]]
    target: Target
    on_nan: str


def ensemble(
    target: Target,
    rule: Rule | Callable,
    step: steps.Step | optax.GradientTransformation,
    *,
    anneal: float | Schedule = constant(),
    temperature: float = 1.0,
    noise_scale: Schedule | None = None,
    start: str = "prior",
    on_nan: str = "freeze",
) -> Algorithm:
    r"""An algorithm from a target, a rule and a step.

    Args:
        rule: from :mod:`stein.rules`, or a plain function ``(key, view, memory) -> (Force, memory)``.
        step: an Optax optimiser for deterministic rules, :func:`stein.steps.langevin` for stochastic ones, or, for
            independent members, :func:`stein.steps.sghmc`.
        anneal: :math:`\gamma_t`, multiplies the driving force only (see :mod:`stein.schedules`).
        temperature: T, divides the driving force: the target becomes :math:`p^{1/T}`.
        noise_scale: multiplies the noise; where it is not 1, the members do not sample the target
            (see :func:`stein.schedules.late_in_cycles`).
        start: ``"prior"`` draws, or ``"model"``, the model's own initialiser. (``init`` also takes weights.)
        on_nan: what happens to a particle that is not finite: ``"freeze"`` it and leave it out of every sum,
            ``"resample"`` it from ``start``, or ``"stop"``, where no particle moves any more.

    Returns:
        An :class:`Algorithm`. ``algorithm.init(key, num_particles, weights=None, spread=0.01)`` starts from draws or
        from given ``weights``: an ensemble (with a leading axis of ``num_particles``), or one network, whose
        copies are perturbed by normal noise of standard deviation ``spread``.
    """
    if not isinstance(rule, Rule):
        _check_force(rule)
        rule = Rule(rule)
    if not isinstance(step, steps.Step):
        step = steps.descend(step)
    _check(target, rule, step, temperature, start, on_nan)
    anneal = as_schedule(anneal)
    fresh = target.sample if start == "prior" else target.init

    def draw(key: Key, ids: Int[Array, " n"]) -> Particles:
        return jax.vmap(lambda i: fresh(jax.random.fold_in(key, i)))(ids)

    def init(key: Key, num_particles: int, weights: Any = None, spread: float = 0.01) -> State:
        inputs.key(key)
        inputs.whole(1, num_particles=num_particles)
        key_start, key_run = jax.random.split(key)
        ids = jnp.arange(num_particles, dtype=jnp.int32)
        particles = draw(key_start, ids) if weights is None else _given(weights, target, key_start, ids, spread)
        return State(
            particles,
            step.init(particles),
            rule.memory,
            key_run,
            jnp.zeros((), jnp.int32),
            ids,
            tree.healthy(particles),
        )

    def look(state: State, batch: Batch | None) -> tuple[View, rules.Force, Any, Key]:
        key_view, key_rule, key_fresh = jax.random.split(jax.random.fold_in(state.key, state.step), 3)
        drive = anneal(state.step) / temperature
        view = target.view(key_view, state.particles, batch, state.ids, state.alive, drive, rule.space, rule.functional)
        return view, *rule.force(key_rule, view, state.memory), key_fresh

    def examine(state: State, batch: Batch | None) -> dict[str, Float[Array, ""]]:
        view, force, _, _ = look(state, batch)
        return diagnose(view, force)

    def advance(state: State, batch: Batch | None) -> tuple[State, Info]:
        view, force, memory, key_fresh = look(state, batch)
        noise = force.noise
        if noise_scale is not None and noise is not None:
            noise = tree.scale(noise_scale(state.step), noise)
        move = steps.Move(force.drift, noise, view.loglik_w, view.alive, state.step)
        particles, opt_state, alive = step.update(state.particles, state.opt_state, move)
        info = Info(view.log_likelihood, view.log_prior, alive)
        moved = State(particles, opt_state, memory, state.key, state.step + 1, state.ids, alive)
        if on_nan == "stop":
            stopped = state._replace(alive=alive)
            moved = jax.tree.map(lambda a, b: jnp.where(jnp.all(alive), a, b), moved, stopped)
        if on_nan == "resample":
            particles = tree.where(alive, particles, draw(key_fresh, state.ids))
            opt_state = step.restart(~alive, particles, opt_state)
            moved = moved._replace(particles=particles, opt_state=opt_state, alive=jnp.ones_like(alive))
        return moved, info

    return Algorithm(init, advance, examine, target, on_nan)


def diagnose(view: View, force: rules.Force) -> dict[str, Float[Array, ""]]:
    """How the members interact.

    ``bandwidth_*``, ``row_sum_*`` (mean sum of a kernel row) and ``similarity_*`` (mean kernel value of two different
    members) for each kernel, on ``weights`` or ``functions``; ``force_ratio``, the norm of the repulsion
    over that of the rest of the drift; ``effective_rank`` of the members' functions; and the ``stein_discrepancy`` from
    the posterior, on this minibatch, without annealing and temperature.
    """
    numbers: dict[str, Float[Array, ""]] = {}
    for space, gram in force.grams.items():
        numbers |= {f"{name}_{space}": value for name, value in diagnostics.kernel(gram.matrix, view.alive).items()}
        for bandwidth in jax.tree.leaves(gram.bandwidth)[:1]:
            numbers[f"bandwidth_{space}"] = bandwidth
    if force.repulsion is not None:
        rest = tree.add(force.drift, tree.scale(-1.0, force.repulsion))
        numbers["force_ratio"] = diagnostics.norm(force.repulsion) / diagnostics.norm(rest)
    numbers["effective_rank"] = diagnostics.effective_rank(view.features, view.alive)
    numbers["stein_discrepancy"] = diagnostics.stein_discrepancy(view.weights, view.posterior_w, view.alive)
    return numbers


def build(
    method: str,
    target: Target,
    *,
    learning_rate: float | Schedule = 1e-3,
    stochastic: bool = False,
    optimiser: Callable[[float | Schedule], optax.GradientTransformation] = optax.adam,
    noise: str = "cholesky",
    noise_place: str = "langevin",
    freeze_preconditioner_after: int | None = None,
    anneal: float | Schedule = constant(),
    temperature: float = 1.0,
    friction: float = 0.1,
    noise_scale: Schedule | None = None,
    start: str = "prior",
    on_nan: str = "freeze",
    **options: Any,
) -> Algorithm:
    """An algorithm by its method's name, with the matching step.

    Deterministic methods move by ``optimiser(learning_rate)``. Stochastic ones move by Langevin steps of size
    ``learning_rate / num_data`` under the preconditioner of their method. ``noise_place="adam-inside"`` is the
    published variant, for reproduction only (see :func:`stein.steps.noise_inside`). The square of a step of
    ``sghmc``, which has momenta, is ``learning_rate / num_data``.

    Args:
        friction: of ``sghmc``: the fraction of the momentum that is lost in a step.
        noise_scale: as in :func:`ensemble`.
        freeze_preconditioner_after: keep the preconditioner of this step from then on (see :func:`stein.steps.rms`).
        options: for :func:`stein.rules.make`: repulsion, kernels and so on.

    >>> import stein
    >>> target = stein.density(lambda w: -0.5 * (w**2).sum(), lambda key: jax.random.normal(key, (2,)))
    >>> algorithm = build("w-svgd", target, stochastic=True, learning_rate=0.1)
    """
    entry = rules.lookup(method)
    rule = rules.make(method, stochastic=stochastic, noise=noise, **options)
    if not callable(learning_rate):
        inputs.positive(learning_rate=learning_rate)
    rate = as_schedule(learning_rate)
    if noise_place not in ("langevin", "adam-inside"):
        raise ValueError(f"noise_place = {noise_place!r}: 'langevin' or 'adam-inside'")
    if not rule.noisy:
        step = steps.descend(optimiser(learning_rate))
    elif entry.dynamics == "hamiltonian":
        if noise_place != "langevin":
            raise ValueError(f"noise_place = {noise_place!r}: {method} has momenta of its own; must be 'langevin'")
        step = steps.sghmc(lambda t: (rate(t) / target.num_data) ** 0.5, friction)
    elif noise_place == "adam-inside":
        step = steps.noise_inside(optimiser(learning_rate), rate)
    else:
        preconditioner = {
            "shared": steps.rms(shared=True, freeze_after=freeze_preconditioner_after),
            "own": steps.rms(shared=False, freeze_after=freeze_preconditioner_after),
            None: None,
        }[entry.preconditioner]
        step = steps.langevin(lambda t: rate(t) / target.num_data, preconditioner)
    return ensemble(
        target, rule, step, anneal=anneal, temperature=temperature, noise_scale=noise_scale, start=start, on_nan=on_nan
    )


def _given(weights: Any, target: Target, key: Key, ids: Int[Array, " n"], spread: float) -> Particles:
    """Particles from an existing ensemble, or from one network and a little noise."""
    n = len(ids)
    one = jax.eval_shape(target.init, jax.random.key(0))
    many = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape), leaf.dtype), one)

    def matches(like: Any) -> bool:
        return bool(eqx.tree_equal(jax.tree.map(jnp.shape, weights), jax.tree.map(jnp.shape, like)))

    if matches(many):
        return jax.tree.map(jnp.asarray, weights)
    if not matches(one):
        raise ValueError(f"weights: neither one network of this model nor an ensemble of {n}")
    inputs.positive(or_zero=n == 1, spread=spread)  # identical members would never separate
    copies = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], n, axis=0), weights)
    return tree.add(copies, tree.scale(spread, tree.normal(key, ids, copies)))


def _check_force(rule: Any) -> None:
    """A plain force takes three arguments; `rules.w_svgd` without parentheses is not a rule."""
    if not callable(rule):
        raise ValueError(f"rule is of type {type(rule).__name__}: must be a rule, or a function (key, view, memory)")
    name, signature = getattr(rule, "__name__", type(rule).__name__), inspect.signature(rule)
    if signature.return_annotation in (Rule, "Rule"):
        raise ValueError(f"rule = {name}: makes a rule, and is none itself; call it: {name}()")
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise ValueError(f"rule = {name}: must be a rule, or a function (key, view, memory)") from None


def _check(target: Target, rule: Rule, step: steps.Step, temperature: float, start: str, on_nan: str) -> None:
    if rule.space not in target.spaces:
        raise ValueError(
            f"the rule compares {rule.space} (a method ending in -s): "
            f"this likelihood has only {', '.join(target.spaces)}"
        )
    if rule.functional and not target.measurement.is_gradient_batch():
        raise ValueError("measurement: a functional rule works on the gradient batch itself (plus extra points)")
    if rule.noisy and not step.takes_noise:
        raise ValueError("step: a stochastic rule needs steps.langevin(...), not a bare optimiser")
    inputs.positive(temperature=temperature)
    if start not in ("prior", "model"):
        raise ValueError(f"start = {start!r}: 'prior' or 'model'")
    if on_nan not in ("freeze", "resample", "stop"):
        raise ValueError(f"on_nan = {on_nan!r}: 'freeze', 'resample' or 'stop'")
