"""Pyro's ``SVGD``, multivariate, with Adam.

Its kernel has a bandwidth of its own for every weight, so the direction is checked where all kernels are alike: at a
bandwidth so large that k = 1, the mean of the scores. All weights are one site: Pyro flattens site by site, and with
several of them the rows of its kernel are not the particles.
"""

import protocol
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVGD, RBFSteinKernel

problem, threads, _ = protocol.arguments()
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
n = problem.members
x, y, rows = torch.tensor(problem.x), torch.tensor(problem.y).long(), torch.tensor(problem.rows)
shapes = [leaf.shape[1:] for leaf in problem.leaves]
sizes = [leaf[0].size for leaf in problem.leaves]
start = torch.cat([torch.tensor(leaf).reshape(n, -1) for leaf in problem.leaves], dim=1)
scale = len(x) / rows.shape[1]


def taken_apart(flat):
    return [part.reshape(n, *shape) for part, shape in zip(flat.split(sizes, dim=1), shapes, strict=True)]


def model(x, y):
    leaves = taken_apart(pyro.sample("weights", dist.Normal(0.0, 1.0).expand([sum(sizes)]).to_event(1)).reshape(n, -1))
    hidden = x.expand(n, *x.shape)
    for i in range(0, len(leaves), 2):
        hidden = torch.baddbmm(leaves[i + 1][:, None], hidden, leaves[i].transpose(1, 2))
        hidden = torch.relu(hidden) if i < len(leaves) - 2 else hidden
    with pyro.poutine.scale(scale=scale), pyro.plate("points", len(x), dim=-1):
        pyro.sample("y", dist.Categorical(logits=hidden), obs=y)


def started(optimiser, kernel):
    """SVGD whose particles are ours."""
    pyro.clear_param_store()
    svgd = SVGD(model, kernel, optimiser, num_particles=n, max_plate_nesting=1, mode="multivariate")
    svgd.guide(x[rows[0]], y[rows[0]])  # makes its parameter
    with torch.no_grad():
        particles = pyro.param("svgd_particles")
        particles.copy_(start.reshape(particles.shape))
    return svgd


pyro.enable_validation(False)  # at its best
svgd = started(pyro.optim.SGD({"lr": 1.0}), RBFSteinKernel(bandwidth_factor=problem.number("flat_factor")))
svgd.step(x[rows[0]], y[rows[0]])
moved = pyro.param("svgd_particles").detach().reshape(n, -1)
direction = [leaf.numpy() for leaf in taken_apart(moved - start)]
svgd = started(pyro.optim.Adam({"lr": problem.rate}), RBFSteinKernel())


def step(t):
    batch = rows[t % len(rows)]
    svgd.step(x[batch], y[batch])


protocol.serve(f"Pyro {pyro.__version__}, SVGD, multivariate", direction, step)
