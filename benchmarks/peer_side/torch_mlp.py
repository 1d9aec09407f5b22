"""torch: a deep ensemble or w-SVGD on stacked perceptrons, fused Adam. Arguments: method, ``eager`` or ``compiled``.

The normal prior is Adam's ``weight_decay``, which is its score, w/std^2, at no pass of its own over the weights.
"""

import math

import protocol
import torch
from torch.nn.functional import cross_entropy

problem, threads, (method, way) = protocol.arguments()
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
n, size = problem.members, problem.rows.shape[1]
x, y, rows = torch.tensor(problem.x), torch.tensor(problem.y).long(), torch.tensor(problem.rows)
scale = len(x) / size


def layers(leaves, hidden):
    """h W_l^T + b_l for all members at once, every layer one batched product."""
    for layer in range(0, len(leaves), 2):
        hidden = torch.baddbmm(leaves[layer + 1][:, None], hidden, leaves[layer].transpose(1, 2))
        hidden = torch.relu(hidden) if layer < len(leaves) - 2 else hidden
    return hidden


def points_as_rows(leaves, images):
    return layers(leaves, images.expand(n, *images.shape))


def first_layer_shared(leaves, images):
    """The first layer of all members is one product with the images that they share."""
    weight, bias = leaves[:2]
    flat = torch.addmm(bias.reshape(-1), images, weight.reshape(-1, weight.shape[2]).T)
    return layers(leaves[2:], torch.relu(flat.view(len(images), n, -1).transpose(0, 1)))


def points_as_columns(leaves, images):
    """W_l h + b_l with points as columns: no weight and no activation is transposed."""
    weight, bias = leaves[:2]
    flat = torch.addmm(bias.reshape(-1, 1), weight.reshape(-1, weight.shape[2]), images.T)
    hidden = torch.relu(flat.view(n, -1, len(images)))
    for layer in range(2, len(leaves), 2):
        hidden = torch.baddbmm(leaves[layer + 1][:, :, None], leaves[layer], hidden)
        hidden = torch.relu(hidden) if layer < len(leaves) - 2 else hidden
    return hidden.transpose(1, 2)


def weights():
    return [torch.tensor(leaf).requires_grad_() for leaf in problem.leaves]


def loss_of(outputs):
    """N/B times the sum over the batch, and over the members, whose gradients are apart."""

    def loss(leaves, images, classes):
        logits = outputs(leaves, images)
        flat = logits.reshape(-1, logits.shape[2])
        return scale * cross_entropy(flat, classes.repeat(n), reduction="sum")

    return torch.compile(loss) if way == "compiled" else loss


@torch.no_grad()
def svgd(leaves, scores):
    """phi = [K (g - 2 w/h) + (2/h) (K 1) w] / n: two products of n x n by n x d, and one for the distances."""
    flat = [leaf.reshape(n, -1) for leaf in leaves]
    products = sum(leaf @ leaf.T for leaf in (leaf - leaf.mean(0) for leaf in flat))
    norms = products.diagonal()
    squared = (norms[:, None] + norms[None] - 2 * products).clamp_(min=0).fill_diagonal_(0)
    ordered = squared.flatten().sort().values
    h = (ordered[(n * n - 1) // 2] + ordered[n * n // 2]) / 2 / math.log(n + 1)
    K = torch.exp(-squared / h)
    ones = K.sum(1, keepdim=True)
    return [
        ((K @ (g.reshape(n, -1) - (2 / h) * w) + (2 / h) * ones * w) / n).reshape(leaf.shape)
        for leaf, w, g in zip(leaves, flat, scores, strict=True)
    ]


def scores_of(loss, leaves, batch, prior):
    """grad log p at each leaf; ``prior``: whether it is in here, or left to Adam."""
    for leaf in leaves:
        leaf.grad = None
    loss(leaves, x[batch], y[batch]).backward()
    return [-leaf.grad - leaf.detach() if prior else -leaf.grad for leaf in leaves]


def stepper(loss):
    """One step of training, and its weights."""
    leaves = weights()
    optimiser = torch.optim.Adam(leaves, lr=problem.rate, weight_decay=float(method == "de"), fused=True)

    def step(t):
        batch = rows[t % len(rows)]
        if method == "de":
            optimiser.zero_grad(set_to_none=True)
            loss(leaves, x[batch], y[batch]).backward()
        else:
            scores = scores_of(loss, leaves, batch, prior=True)
            for leaf, phi in zip(leaves, svgd(leaves, scores), strict=True):
                leaf.grad = -phi
        optimiser.step()

    return step


losses = {outputs.__name__: loss_of(outputs) for outputs in (points_as_rows, first_layer_shared, points_as_columns)}
chosen, compilations = protocol.fastest({name: stepper(loss) for name, loss in losses.items()}, rounds=15)
loss = losses[chosen]
leaves = weights()
direction = scores_of(loss, leaves, rows[0], prior=True)
direction = svgd(leaves, direction) if method == "w-svgd" else direction
name = f"torch {torch.__version__}, {way}, {chosen.replace('_', ' ')}"
protocol.serve(name, direction, stepper(loss), compile_seconds=compilations[chosen])
