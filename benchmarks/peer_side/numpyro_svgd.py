"""NumPyro's ``einstein.SVGD`` with Adam, its ``update`` jitted.

Its median is that of distances, not of their squares; for the check a factor makes the bandwidth the given one.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import protocol
from jax_mlp import outputs
from numpyro.contrib.einstein import SVGD, RBFKernel
from numpyro.contrib.einstein.stein_util import median_bandwidth

problem, _, _ = protocol.arguments()
x, y, rows = (jnp.asarray(values) for values in (problem.x, problem.y, problem.rows))
leaves = [jnp.asarray(leaf) for leaf in problem.leaves]
scale = len(x) / rows.shape[1]
names = [f"leaf{i}" for i in range(len(leaves))]


def model(x, y):
    sampled = [
        numpyro.sample(name, dist.Normal().expand(leaf.shape[1:]).to_event())
        for name, leaf in zip(names, leaves, strict=True)
    ]
    with numpyro.handlers.scale(scale=scale), numpyro.plate("points", len(x)):
        numpyro.sample("y", dist.Categorical(logits=outputs(sampled, x)), obs=y)


svgd = SVGD(model, numpyro.optim.SGD(1.0), RBFKernel(), num_stein_particles=problem.members)
begun = svgd.init(jax.random.key(0), x[rows[0]], y[rows[0]])  # draws for half a minute: once for both optimisers


def stepper(optimiser, kernel):
    """A jitted step, and the state in which the particles are ours."""
    svgd.optim, svgd.kernel_fn = optimiser, kernel
    started = {f"{name}_auto_loc": leaf for name, leaf in zip(names, leaves, strict=True)}

    @jax.jit
    def step(state, batch):
        return svgd.update(state, x[batch], y[batch])[0]

    return step, begun._replace(optim_state=optimiser.init(started))


flat = jnp.concatenate([leaf.reshape(problem.members, -1) for leaf in leaves], axis=1)
factor = problem.number("bandwidth") / median_bandwidth(flat, lambda n: 1.0)
plain, start = stepper(numpyro.optim.SGD(1.0), RBFKernel(bandwidth_factor=lambda n: factor))
moved = svgd.get_params(plain(start, rows[0]))
direction = [moved[f"{name}_auto_loc"] - leaf for name, leaf in zip(names, leaves, strict=True)]
step, state = stepper(numpyro.optim.Adam(problem.rate), RBFKernel())


def go_on(t):
    global state
    state = step(state, rows[t % len(rows)])


name = f"NumPyro {numpyro.__version__}, einstein.SVGD"
protocol.serve(name, direction, go_on, lambda: jax.block_until_ready(state))
