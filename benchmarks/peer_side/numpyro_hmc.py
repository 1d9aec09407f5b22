"""NumPyro's HMC or NUTS on a small regression, all chains in one vectorised program, float64. Arguments: ``HMC`` or
``NUTS``, the step size, and how often a trajectory doubles. A step is one transition of every chain."""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import protocol  # noqa: E402
from jax_mlp import log_prior, outputs  # noqa: E402
from numpyro.infer import HMC, NUTS  # noqa: E402

problem, _, (kind, size, doublings) = protocol.arguments()
x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
leaves = [jnp.asarray(leaf) for leaf in problem.leaves]
fixed = {"step_size": float(size), "adapt_step_size": False, "adapt_mass_matrix": False}


def potential(leaves):
    return 0.5 * jnp.sum((y - outputs(leaves, x)) ** 2) - log_prior(leaves)


length = 2 ** int(doublings) - 1
if kind == "HMC":
    kernel = HMC(potential_fn=potential, num_steps=length, **fixed)
else:
    kernel = NUTS(potential_fn=potential, max_tree_depth=int(doublings), **fixed)
state = kernel.init(jax.random.split(jax.random.key(0), problem.members), 0, leaves, (), {})
sample = jax.jit(lambda state: kernel.sample(state, (), {}))
direction = [-leaf for leaf in jax.vmap(jax.grad(potential))(leaves)]


def go_on(t):
    global state
    state = sample(state)


def finish():
    """Every trajectory must have its whole length: a side that makes fewer gradients is not faster."""
    if int(jnp.sum(state.num_steps)) != length * problem.members:
        raise ValueError(f"leapfrog steps of the chains: {state.num_steps}, expected {length} each")


protocol.serve(f"NumPyro {numpyro.__version__}, {kind}, vectorised chains", direction, go_on, finish)
