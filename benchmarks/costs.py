"""What a step costs by its equations, in operations, as a function of its sizes.

n members of d weights, batches of B rows, C outputs, r directions of an exact repulsion (the probe is one more).
Counted are products; everything else is element-wise, a tenth of all on small networks. ``tests/unit/test_costs.py``
compares them with XLA's own count of the compiled step.
"""

from itertools import pairwise


def weights(widths: tuple[int, ...]) -> int:
    """d of a perceptron."""
    return sum((i + 1) * o for i, o in pairwise(widths))


def passes(widths: tuple[int, ...], batch: int) -> tuple[int, int]:
    """Operations of one member's forward pass and of a backward pass: a layer's outputs, its gradient in the weights
    and, but for the first, its gradient in the inputs are products of 2 B i o operations each."""
    sizes = [i * o for i, o in pairwise(widths)]
    return 2 * batch * sum(sizes), 2 * batch * (2 * sum(sizes) - sizes[0])


def operations(method: str, n: int, widths: tuple[int, ...], batch: int, r: int | None = None) -> int:
    """Of a step; r is None for the local repulsion."""
    forward, backward = passes(widths, batch)
    mixed = 2 * n**2 * weights(widths)  # a product of n x n and n x d
    compared = 2 * n**2 * batch * widths[-1]  # the same with functions, n x BC
    on_weights = method[0] in "wh"
    if method == "de":
        return n * (forward + backward)
    if method == "w-svgd":
        return n * (forward + backward) + 2 * mixed  # distances, and K(G - 2X/h)
    if method == "f-svgd":
        return n * (forward + backward) + 3 * compared  # distances, K(S + P), repulsion
    # Distances in weights for h-SVGD and K G for both; then the repulsion: through each member's own backward pass, or
    # a backward pass and a product for every direction, and a last product.
    pulled, mixed_pulled, driven = n * backward, mixed, mixed
    if widths[0] > n:  # the first layer's product with the inputs is made once for all forces (stein.pullbacks)
        pulled -= n * 2 * batch * widths[0] * widths[1]
        mixed_pulled = mixed + 2 * n**2 * widths[1] * (batch - widths[0])
        driven += 2 * n**2 * widths[1] * batch
    repulsion = pulled if r is None else r * (pulled + mixed_pulled) + mixed_pulled
    return n * (forward + backward) + on_weights * mixed + driven + 2 * compared + repulsion
