"""P5: a step of w-SVGD against the SVGD of other libraries, on the same networks, data and optimiser."""

from typing import NamedTuple

from harness import paired
from peers import Peer
from works import Steps, compared_particles, direction, first_batch, median_bandwidth, method, problem, work_m

from stein import kernels

STEPS = 10


class Other(NamedTuple):
    """A peer: its name and script, how it is checked, what it differs in, steps in a measurement, pairs, and how many
    times as fast we promise to be, by members."""

    whose: str
    script: tuple[str, ...]
    checked_at: str
    differs: str
    steps: int
    pairs: int
    times: dict[int, float]


TORCH, COMPILED = (("torch_mlp", "w-svgd", way) for way in ("eager", "compiled"))
OTHERS = (
    Other("torch's, eager", TORCH, "median", "same bandwidth rule", 10, 8, {20: 1, 50: 1}),
    Other("torch's, compiled", COMPILED, "median", "same bandwidth rule", 10, 8, {20: 1, 50: 1}),
    Other("BlackJAX's", ("blackjax_svgd",), "fixed", "its h has log n, and no diagonal", 1, 5, {20: 5, 50: 15}),
    Other("NumPyro's", ("numpyro_svgd",), "fixed", "its h has distances unsquared", 1, 5, {20: 15, 50: 30}),
    Other("Pyro's", ("pyro_svgd",), "flat", "its kernel has an h for every weight", 1, 5, {20: 2, 50: 3}),
)
FLAT = 1e12  # times the bandwidth: k = 1 to float32, also where every weight adds to the distance over its own


def step() -> list[dict]:
    return [row for members in (20, 50) for row in at(members)]


def at(members: int) -> list[dict]:
    work = work_m(members)
    particles = compared_particles(work)
    h = median_bandwidth(particles)
    given = problem(work, particles, bandwidth=h, flat_factor=FLAT)
    batch = first_batch(given)
    at_kernel = {"median": kernels.rbf(), "fixed": kernels.rbf(h), "flat": kernels.rbf(FLAT * h)}
    forces = {name: direction("w-svgd", work, particles, batch, kernel=k) for name, k in at_kernel.items()}
    ours = Steps(method("w-svgd", work), work, STEPS)
    rows = []
    for other in OTHERS:
        with Peer(*other.script, problem=given, steps=other.steps) as peer:
            apart = peer.agreement(forces[other.checked_at])
            rows.append(paired(
                f"P5 w-svgd step / {other.whose}, n = {members}", work.words, ours, peer,
                1 / other.times[members], other.pairs, unit="seconds per step", peer=peer.name, note=other.differs,
                compile_seconds=ours.compile_seconds, peer_compile_seconds=peer.compile_seconds,
                checked=f"same direction at {WORDS[other.checked_at]}, {apart:.1g} of its size apart",
            ))  # fmt: skip
    return rows


WORDS = {
    "median": "the median bandwidth",
    "fixed": "one given bandwidth",
    "flat": "an infinite bandwidth (the mean of the scores)",
}
