"""torch: a deep ensemble of ResNet-32, fused Adam. Argument: ``looped`` over members, or ``vmapped``.

Leaves are ours, in our order: per convolution (members, 3, 3, inputs, outputs) and its bias; per stage the entrance,
then the other blocks stacked behind the members' axis; at the end the linear layer.
"""

import protocol
import torch
from torch.nn.functional import conv2d, cross_entropy, linear, pad

problem, threads, (way,) = protocol.arguments()
torch.set_num_threads(threads)
torch.set_num_interop_threads(1)
n = problem.members
x = torch.tensor(problem.x).permute(0, 3, 1, 2).contiguous()
y, rows = torch.tensor(problem.y).long(), torch.tensor(problem.rows)
scale = len(x) / rows.shape[1]


def in_torch():
    """Weights and biases in the order of use, each with a leading axis of members. Stacked blocks are taken apart."""
    leaves = [torch.tensor(leaf) for leaf in problem.leaves]
    stem, stages, head = leaves[:2], [leaves[2 + 8 * s : 10 + 8 * s] for s in range(3)], leaves[-2:]
    ordered = list(stem)
    for stage in stages:
        entrance, rest = stage[:4], stage[4:]
        ordered += entrance
        for block in range(rest[0].shape[1]):
            ordered += [leaf[:, block] for leaf in rest]
    ordered += head
    return [_outputs_first(leaf) for leaf in ordered]


def _outputs_first(leaf):
    if leaf.dim() == 5:
        return leaf.permute(0, 4, 3, 1, 2).contiguous()
    return leaf.transpose(1, 2).contiguous() if leaf.dim() == 3 else leaf.contiguous()


def _outputs_last(leaf):
    if leaf.dim() == 5:
        return leaf.permute(0, 3, 4, 2, 1)
    return leaf.transpose(1, 2) if leaf.dim() == 3 else leaf


def in_ours(ordered):
    """The inverse of :func:`in_torch`."""
    ordered = [_outputs_last(leaf) for leaf in ordered]
    blocks = (len(ordered) - 4) // 12
    leaves, at = list(ordered[:2]), 2
    for _ in range(3):
        leaves += ordered[at : at + 4]
        rest = [ordered[at + 4 * b : at + 4 * b + 4] for b in range(1, blocks)]
        leaves += [torch.stack(alike, 1) for alike in zip(*rest, strict=True)]
        at += 4 * blocks
    return [leaf.numpy() for leaf in leaves + ordered[-2:]]


def outputs(weights, images):
    """One member's logits: He et al.'s shortcut A, no normalisation."""
    layers = iter(zip(weights[::2], weights[1::2], strict=True))
    hidden = torch.relu(conv2d(images, *next(layers), padding=1))
    blocks = (len(weights) // 2 - 2) // 2
    for block in range(blocks):
        first, second = next(layers), next(layers)
        stride = 1 + int(block in (blocks // 3, 2 * blocks // 3))
        residual = conv2d(torch.relu(conv2d(hidden, *first, stride=stride, padding=1)), *second, padding=1)
        shortcut = hidden[:, :, ::stride, ::stride]
        new = residual.shape[1] - shortcut.shape[1]
        hidden = torch.relu(residual + pad(shortcut, (0, 0, 0, 0, 0, new)))
    return linear(hidden.mean((2, 3)), *next(layers))


def loss(weights, images, classes):
    return scale * cross_entropy(outputs(weights, images), classes, reduction="sum")


def gradients(stacked, images, classes):
    """Of every member's loss, with the members' axis in front: vmapped, or one member after the other."""
    if way == "vmapped":
        return torch.func.vmap(torch.func.grad(loss), (0, None, None))(tuple(stacked), images, classes)
    each = []
    for i in range(n):
        weights = [leaf[i].detach().requires_grad_() for leaf in stacked]
        each.append(torch.autograd.grad(loss(weights, images, classes), weights))
    return [torch.stack(alike) for alike in zip(*each, strict=True)]


def stepper(memory_format):
    """One step of training in a layout of the images."""
    stacked = [leaf.requires_grad_() for leaf in in_torch()]
    optimiser = torch.optim.Adam(stacked, lr=problem.rate, weight_decay=1.0, fused=True)

    def step(t):
        batch = rows[t % len(rows)]
        images = x[batch].contiguous(memory_format=memory_format)
        for leaf, gradient in zip(stacked, gradients(stacked, images, y[batch]), strict=True):
            leaf.grad = gradient.detach()
        optimiser.step()

    return step


stacked = in_torch()
direction = in_ours([-g - w for g, w in zip(gradients(stacked, x[rows[0]], y[rows[0]]), stacked, strict=True)])
layouts = {"images as planes": torch.contiguous_format, "images as pixels": torch.channels_last}
chosen, _ = protocol.fastest({name: stepper(layout) for name, layout in layouts.items()}, rounds=3)
protocol.serve(f"torch {torch.__version__}, {way}, {chosen}", direction, stepper(layouts[chosen]))
