"""P9: a step of an ensemble of ResNet-32 against torch; and its convolutions, member by member or together."""

import jax
from harness import clocked, paired
from peers import Peer
from works import Steps, direction, first_batch, first_particles, method, problem, work_c

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
