"""An ensemble in training: one state for all rules, and the pure function that advances it one step."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from stein import features, inputs, microcanonical, rules, steps, tree
from stein.draws import Draws, Keep
from stein.metrics import diagnostics
from stein.rules import Rule
from stein.schedules import Schedule, as_schedule, constant
from stein.targets import Target, View
from stein.types import Batch, Key, Particles, Weights


class State(NamedTuple):
    """Everything that the next step needs."""

    particles: Particles
    opt_state: Any
    memory: Any
    key: Key
    step: Int[Array, ""]
    ids: Int[Array, " n"]
    alive: Bool[Array, " n"]
    draws: Any = ()  # stein.draws.Draws of chains that keep them


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
        moved = state._replace(
            particles=particles, opt_state=opt_state, memory=memory, step=state.step + 1, alive=alive
        )  # fmt: skip
        if on_nan == "stop":
            moved = _unless_one_died(moved, state)
        if on_nan == "resample":
            particles = tree.where(alive, particles, draw(key_fresh, state.ids))
            opt_state = step.restart(~alive, particles, opt_state)
            moved = moved._replace(particles=particles, opt_state=opt_state, alive=jnp.ones_like(alive))
        return moved, info

    return Algorithm(init, advance, examine, target, on_nan)


def _unless_one_died(moved: State, before: State) -> State:
    stopped = before._replace(alive=moved.alive)
    return jax.tree.map(lambda a, b: jnp.where(jnp.all(moved.alive), a, b), moved, stopped)


def keeping(algorithm: Algorithm, keep: Keep) -> Algorithm:
    """The same chains, whose thinned states are kept in ``state.draws``; they are then the members of the ensemble."""
    keep.check()
    if algorithm.on_nan == "resample":
        raise ValueError("on_nan = 'resample': draws of a chain that began again are mixed with others; use 'freeze'")

    def init(*arguments: Any, **options: Any) -> State:
        state = algorithm.init(*arguments, **options)
        return state._replace(draws=keep.nothing(state.particles))

    def step(state: State, batch: Batch | None) -> tuple[State, Info]:
        moved, info = algorithm.step(state, batch)
        return moved._replace(draws=keep.add(state.draws, moved.particles, moved.step)), info

    return algorithm._replace(init=init, step=step)


def members(state: State) -> tuple[Particles, Bool[Array, " m"]]:
    """The members of the ensemble, and which of them are alive: the kept draws of the chains, or the particles.

    A chain's draws are alive if the chain is. The first draws of all chains come first.
    """
    if not isinstance(state.draws, Draws) or not int(state.draws.taken):
        return state.particles, state.alive
    kept = state.draws.in_order()
    number = len(jax.tree.leaves(kept)[0])
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept), jnp.tile(state.alive, number)


def mile(
    start: Algorithm,
    start_steps: int,
    tuning_steps: int,
    energy_variance: float = microcanonical.PUBLISHED,
    temperature: float = 1.0,
) -> Algorithm:
    r"""Microcanonical Langevin ensembles: from each member of a deep ensemble a chain of :mod:`stein.microcanonical`.

    Args:
        start: the deep ensemble, such as ``build("de", target)``; it trains for the first ``start_steps`` steps.
        tuning_steps: the steps after it, in which every chain finds its step size and length; at least 100. All later
            steps sample.
        energy_variance: what the tuning aims for, per dimension: less means shorter steps and a smaller bias.
        temperature: as in :func:`ensemble`.

    Cost: two gradients on all the data per chain and step.
    Limits: full batches only, and no rejection: a bias that falls with the step size remains. With the published aim
        it is not small (docs/api/rules.md).
    Reference: Sommer et al. (2025), "Microcanonical Langevin ensembles".
    """
    inputs.whole(0, start_steps=start_steps)
    inputs.whole(microcanonical.LEAST_TUNING, tuning_steps=tuning_steps)
    inputs.positive(energy_variance=energy_variance)
    target = start.target
    if start.on_nan == "resample":
        raise ValueError("on_nan = 'resample': a chain that begins again would not be tuned; use 'freeze' or 'stop'")

    def init(*arguments: Any, **options: Any) -> State:
        state = start.init(*arguments, **options)
        return state._replace(opt_state=(state.opt_state, microcanonical.init(state.particles)))

    def train(state: State, batch: Batch | None) -> tuple[State, Info]:
        optimiser, chains = state.opt_state
        moved, info = start.step(state._replace(opt_state=optimiser), batch)
        more = {"energy_change": jnp.zeros_like(chains.log_density)}
        return moved._replace(opt_state=(moved.opt_state, chains)), info._replace(more=more)

    def sample(state: State, batch: Batch | None) -> tuple[State, Info]:
        optimiser, chains = state.opt_state

        def log_density(weights: Weights) -> Float[Array, ""]:
            log_likelihood, log_prior = target.log_prob(weights, batch)
            return (target.num_data * log_likelihood + log_prior) / temperature

        key = jax.random.fold_in(state.key, state.step)
        proposal, moved, energy_change = microcanonical.advance(
            key, state.step - start_steps, state.ids, state.particles, chains, log_density, tuning_steps,
            energy_variance,
        )  # fmt: skip
        alive = state.alive & tree.healthy((proposal, moved.log_density))
        particles, chains = tree.where(alive, (proposal, moved), (state.particles, chains))
        log_prior = jax.vmap(lambda weights: target.log_prob(weights, batch)[1])(particles)
        log_likelihood = (temperature * chains.log_density - log_prior) / target.num_data
        info = Info(log_likelihood, log_prior, alive, {"energy_change": energy_change})
        new = state._replace(
            particles=particles, opt_state=(optimiser, chains), step=state.step + 1, alive=alive
        )  # fmt: skip
        return _unless_one_died(new, state) if start.on_nan == "stop" else new, info

    def step(state: State, batch: Batch | None) -> tuple[State, Info]:
        if batch is not None and batch.x.shape[0] != target.num_data:
            raise ValueError(
                f"a batch of {batch.x.shape[0]} points: these chains need all {target.num_data} in every step "
                "(train.batch_size = 0 in a config); sghmc samples with minibatches"
            )
        return jax.lax.cond(state.step < start_steps, train, sample, state, batch)

    def examine(state: State, batch: Batch | None) -> dict[str, Float[Array, ""]]:
        chains = state.opt_state[1]
        return start.diagnose(state, batch) | {
            "step_size": jnp.mean(chains.step_size), "momentum_length": jnp.mean(chains.length)
        }  # fmt: skip

    return Algorithm(init, step, examine, target, start.on_nan)


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
    draws: int = 0,
    thin: int = 1,
    burn_in: int = 0,
    tuning_steps: int = 0,
    energy_variance: float = microcanonical.PUBLISHED,
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
        draws: of a sampler: the last so many draws of each chain are the members of the ensemble (:func:`members`). 0:
            the particles are.
        thin, burn_in: a draw is kept every ``thin`` steps after ``burn_in`` steps.
        tuning_steps: of ``mile``: the last part of its burn-in. The part before it trains a deep ensemble.
        energy_variance: of ``mile``: what its tuning aims for; the default is the published one.
        noise_scale: as in :func:`ensemble`.
        freeze_preconditioner_after: keep the preconditioner of this step from then on (see :func:`stein.steps.rms`).
        options: for :func:`stein.rules.make`: repulsion, kernels and so on.

    >>> import stein
    >>> target = stein.density(lambda w: -0.5 * (w**2).sum(), lambda key: jax.random.normal(key, (2,)))
    >>> algorithm = build("w-svgd", target, stochastic=True, learning_rate=0.1)
    """
    entry = rules.lookup(method)
    if draws and not rules.is_sampler(entry, stochastic):
        raise ValueError(f"draws = {draws}: {method} without noise is no sampler; must be 0")
    rule = rules.make(method, stochastic=stochastic, noise=noise, **options)
    if not callable(learning_rate):
        inputs.positive(learning_rate=learning_rate)
    schedule = as_schedule(learning_rate)

    def rate(t: Array) -> Array:
        with jax.numpy_dtype_promotion("standard"):  # as Optax's schedules need
            return schedule(t)

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
    algorithm = ensemble(
        target, rule, step, anneal=anneal, temperature=temperature, noise_scale=noise_scale, start=start, on_nan=on_nan
    )
    if entry.dynamics == "microcanonical":
        if burn_in < tuning_steps:
            raise ValueError(f"burn_in = {burn_in}: the tuning is a part of it; must be at least {tuning_steps}")
        algorithm = mile(algorithm, burn_in - tuning_steps, tuning_steps, energy_variance, temperature)
    return keeping(algorithm, Keep(draws, thin, burn_in)) if draws else algorithm


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


def _check_other_features(target: Target, rule: Rule) -> None:
    """What a rule compares that is not a function of the outputs."""
    if rule.space == "probabilities" or not target.network:
        raise ValueError(
            f"the rule compares {rule.space} (probabilities: a method ending in -s): "
            f"this target has only {', '.join(target.spaces)}"
        )
    if rule.functional:
        raise ValueError(f"space = {rule.space!r}: a functional rule moves outputs; must be {', '.join(target.spaces)}")
    where = target.measurement
    if features.takes_labels(rule.space) and (where.where != "batch" or where.extra is not None):
        raise ValueError("measurement: the rule compares what needs labels; must be the batch without extra points")


def _check(target: Target, rule: Rule, step: steps.Step, temperature: float, start: str, on_nan: str) -> None:
    if rule.space not in target.spaces:
        _check_other_features(target, rule)
    if rule.unlabelled and target.measurement.where != "extra":
        raise ValueError("measurement: this rule repels at unlabelled points only; use Measurement('extra', extra=...)")
    if rule.functional and not target.measurement.is_gradient_batch():
        raise ValueError("measurement: a functional rule works on the gradient batch itself (plus extra points)")
    if rule.noisy and not step.takes_noise:
        raise ValueError("step: a stochastic rule needs steps.langevin(...), not a bare optimiser")
    inputs.positive(temperature=temperature)
    if start not in ("prior", "model"):
        raise ValueError(f"start = {start!r}: 'prior' or 'model'")
    if on_nan not in ("freeze", "resample", "stop"):
        raise ValueError(f"on_nan = {on_nan!r}: 'freeze', 'resample' or 'stop'")
