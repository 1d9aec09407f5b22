"""P12: predictions of many images."""

from itertools import pairwise

import jax
import numpy as np
from harness import clocked, paired, row
from works import WIDTHS

from stein import models, predict


def images(number: int = 10_000, members: int = 50, chunk: int = 1000) -> list[dict]:
    """Probabilities of many images, over the time that XLA needs for one product of as many operations.

    10,000 images flattened, networks of the paper's Table 1. (NumPy's BLAS is faster than XLA's on many CPUs, by 1.4 on
    the one of results.json; no program inside XLA can use it.) The second row is the memory that a chunk of activations
    takes beyond weights, images and answers, over what one layer of it needs.
    """
    model = models.mlp(WIDTHS)
    particles = jax.vmap(model.init)(jax.random.split(jax.random.key(0), members))
    x = np.random.default_rng(0).random((number, WIDTHS[0]), np.float32)
    operations = sum(i * o for i, o in pairwise(WIDTHS))
    side = jax.numpy.asarray(x[:chunk])
    other = jax.numpy.zeros((WIDTHS[0], members * operations // WIDTHS[0]))
    product = jax.jit(jax.numpy.matmul)

    def products() -> None:
        for _ in range(0, number, chunk):
            product(side, other).block_until_ready()

    def predictions() -> None:
        predict.in_chunks(model, particles, x)

    held = predict.AT_ONCE // members  # rows whose layers are in memory at once
    compiled = predict._outputs.lower(model, particles, x[: predict.CHUNKS * held], predict.CHUNKS).compile()
    activations = compiled.memory_analysis().temp_size_in_bytes
    size = f"{number} images, n = {members}, 784-100-100-100-10; products: {chunk} at a time, predictions: {held}"
    return [
        paired("P12 prediction / its products", size, clocked(predictions), clocked(products), 1 / 0.8),
        row("P12 memory / one layer's outputs", size, activations, 4 * held * members * 100, 4.0, unit="bytes"),
    ]
