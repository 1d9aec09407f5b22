"""P9: a step of an ensemble of ResNet-32 against torch; a user's own CNN; convolutions member by member or together."""

import jax
import jax.numpy as jnp
import numpy as np
from harness import clocked, paired
from peers import Peer
from works import Steps, Work, direction, first_batch, first_particles, method, problem, work_c

from stein import data, likelihoods, models, priors, targets
from stein.models import resnet

STEPS, PAIRS = 2, 5
TOLERANCE = (
    2e-3  # 32 layers in float32: units near zero are on the other side; ours and torch's are each 4e-4 off float64
)


def step() -> list[dict]:
    work = work_c()
    particles = first_particles(work)
    given = problem(work, particles)
    force = direction("de", work, particles, first_batch(given))
    ours = Steps(method("de", work), work, STEPS)
    rows = []
    for way in ("vmapped", "looped"):
        with Peer("torch_resnet", way, problem=given, steps=STEPS) as peer:
            apart = peer.agreement(force, TOLERANCE)
            rows.append(paired(
                f"P9 ResNet-32 step / torch's, {way}", work.words, ours, peer, 1.0, PAIRS, unit="seconds per step",
                peer=peer.name, compile_seconds=ours.compile_seconds, peer_compile_seconds=peer.compile_seconds,
                checked=f"same gradients, {apart:.1g} of their size apart",
            ))  # fmt: skip
    return rows


def own_network(members: int = 5, size: int = 100) -> list[dict]:
    """A step of a small CNN that a user wrote, over as many gradients of one such network, one after the other.

    The gradients are compiled by themselves, without a loop around them: there XLA is at its best.
    """

    def init(key):
        keys = jax.random.split(key, 3)
        shapes = {"a": (3, 3, 1, 16), "b": (3, 3, 16, 32), "c": (7 * 7 * 32, 10)}
        return {name: 0.1 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def apply(weights, x):
        for name in "ab":
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, weights[name], (2, 2), "SAME", dimension_numbers=layout))
        return x.reshape(len(x), -1) @ weights["c"]

    random = np.random.default_rng(0)
    x, y = random.random((1000, 28, 28, 1), np.float32), random.integers(0, 10, 1000)
    model, likelihood = models.from_function(init, apply), likelihoods.categorical()
    target = targets.posterior(model, likelihood, priors.normal(), len(x))
    words = f"two strided convolutions and a dense layer, 28 x 28, n = {members}, B = {size}, float32, Adam"
    work = Work(words, model, target, data.Batches(x, y, size, jax.random.key(1)), members)
    batch = jnp.asarray(x[:size]), jnp.asarray(y[:size])
    gradient = jax.jit(jax.grad(lambda weights: likelihood.log_prob(apply(weights, batch[0]), batch[1]).mean()))
    weights = init(jax.random.key(0))

    def one_by_one() -> None:
        for _ in range(members):
            jax.block_until_ready(gradient(weights))

    def against(name: str) -> dict:
        ours = Steps(method(name, work), work, 10)
        title = f"convolutions of an own CNN, {name} / {members} gradients"
        return paired(title, words, ours, clocked(one_by_one), None, 10, unit="seconds per step",
                      compile_seconds=ours.compile_seconds)  # fmt: skip

    return [against(name) for name in ("de", "h-svgd")]


def turns(members: int = 4, images: int = 64, channels: int = 16, size: int = 32) -> list[dict]:
    """A convolution of ResNet-32's first stage and its gradients, in a loop as in training: members in turns, as the
    model has it on a CPU, over XLA's of all members together."""
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (members, images, size, size, channels))
    filters = jax.random.normal(keys[1], (members, 3, 3, channels, channels))

    def steps(way):
        def loss(x, filters):
            return jax.numpy.sum(jax.nn.relu(way(x, filters, 1)))

        @jax.jit
        def twice(x, filters):
            def move(at, _):
                return jax.tree.map(lambda a, g: a - 1e-3 * g, at, jax.vmap(jax.grad(loss, (0, 1)))(*at)), None

            return jax.lax.scan(move, (x, filters), length=2)[0]

        return clocked(lambda: jax.block_until_ready(twice(x, filters)))

    work = f"{members} members, {images} images of {size} x {size}, {channels} channels, two steps"
    return [
        paired("convolutions in turns / together", work, steps(resnet._in_turns), steps(resnet._slide), 0.2, pairs=3)
    ]
