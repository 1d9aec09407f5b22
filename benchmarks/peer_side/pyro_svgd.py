"""Pyro's ``SVGD``, multivariate, with Adam. Its kernel has a bandwidth of its own for every weight, so the direction is
checked where all kernels are alike: at a bandwidth so large that k = 1, the mean of the scores."""

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
leaves = [torch.tensor(leaf) for leaf in problem.leaves]
scale = len(x) / rows.shape[1]


def model(x, y):
    hidden = x
    for i in range(0, len(leaves), 2):
        weight, bias = (
            pyro.sample(f"leaf{j}", dist.Normal(0.0, 1.0).expand(leaves[j].shape[1:]).to_event(leaves[j].dim() - 1))
            for j in (i, i + 1)
        )
        # Of the axes (members, points, ...) the plate of the members has the first, and one for the points.
        weight, bias = weight.reshape(n, *leaves[i].shape[1:]), bias.reshape(n, 1, -1)
        hidden = torch.baddbmm(bias, hidden.expand(n, *hidden.shape[-2:]), weight.transpose(1, 2))
        hidden = torch.relu(hidden) if i < len(leaves) - 2 else hidden
    with pyro.poutine.scale(scale=scale), pyro.plate("points", len(x), dim=-1):
        pyro.sample("y", dist.Categorical(logits=hidden, validate_args=False), obs=y)


def stepper(optimiser, kernel):
    pyro.clear_param_store()
    svgd = SVGD(model, kernel, optimiser, num_particles=n, max_plate_nesting=1, mode="multivariate")
    svgd.guide(x[rows[0]], y[rows[0]])  # makes its parameter, which then gets our weights
    flat = torch.cat([leaf.reshape(n, -1) for leaf in leaves], dim=1)
    particles = pyro.param("svgd_particles")
    with torch.no_grad():
        particles.copy_(flat.reshape(particles.shape))
    return svgd, flat


def taken_apart(flat):
    sizes = [leaf[0].numel() for leaf in leaves]
    return [part.reshape(leaf.shape).numpy() for part, leaf in zip(flat.split(sizes, dim=1), leaves, strict=True)]


svgd, before = stepper(pyro.optim.SGD({"lr": 1.0}), RBFSteinKernel(bandwidth_factor=problem.number("flat_factor")))
svgd.step(x[rows[0]], y[rows[0]])
direction = taken_apart(pyro.param("svgd_particles").detach().reshape(n, -1) - before)
svgd, _ = stepper(pyro.optim.Adam({"lr": problem.rate}), RBFSteinKernel())


def step(t):
    batch = rows[t % len(rows)]
    svgd.step(x[batch], y[batch])


protocol.serve(f"Pyro {pyro.__version__}, SVGD, multivariate", direction, step, lambda: None)
