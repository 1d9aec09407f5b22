"""BlackJAX's ``svgd`` with Adam, jitted step by step.

Its bandwidth is med^2 / log n over pairs, ours med^2 / log(n + 1) over ordered pairs with the diagonal. Its first step
takes the bandwidth that it is given, and is the one checked.
"""

import blackjax
import jax
import jax.numpy as jnp
import optax
import protocol
from jax_mlp import log_likelihood, log_prior

problem, _, _ = protocol.arguments()
x, y, rows = (jnp.asarray(values) for values in (problem.x, problem.y, problem.rows))
scale = len(x) / rows.shape[1]
leaves = [jnp.asarray(leaf) for leaf in problem.leaves]


def score(leaves, x, y):
    return jax.grad(lambda w: scale * log_likelihood(w, x, y) + log_prior(w))(leaves)


def stepper(optimiser):
    algorithm = blackjax.svgd(score, optimiser)

    @jax.jit
    def step(state, batch):
        return algorithm.step(state, x=x[batch], y=y[batch])

    start = algorithm.init(leaves, {"length_scale": jnp.asarray(problem.number("bandwidth"), jnp.float32)})
    return step, start


plain, start = stepper(optax.sgd(1.0))
moved = plain(start, rows[0])
direction = [a - b for a, b in zip(moved.particles, leaves, strict=True)]
step, state = stepper(optax.adam(problem.rate))


def go_on(t):
    global state
    state = step(state, rows[t % len(rows)])


name = f"BlackJAX {blackjax.__version__}, svgd"
protocol.serve(name, direction, go_on, lambda: jax.block_until_ready(state))
