"""The measured promises of the engine, each a ratio taken side by side in one run: ``make bench``.

Writes benchmarks/results.json and prints the same as a table. A machine that does something else at the same time
measures something else.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np

from stein import data, evaluate, hooks, likelihoods, models, predict, priors, targets, train
from stein.ensembles import build
from stein.models import resnet
from stein.paper import variants
from stein.runs.environment import facts

HERE = Path(__file__).parent
REPEATS, PAIRS = 7, 20


def toy() -> tuple:
    """Work T: 1-D regression, 1-50-50-1, 50 particles, batches of 64."""
    x, y = data.regression_1d()
    model = models.mlp([1, 50, 50, 1])
    likelihood = likelihoods.gaussian(1.0)
    target = targets.posterior(model, likelihood, priors.normal(), len(x))
    return (
        build("w-svgd", target),
        data.Batches(x, y, 64, jax.random.key(1)),
        evaluate.held_out(model, likelihood, jax.numpy.asarray(x), jax.numpy.asarray(y)),
    )


def loop_overhead(steps: int = 1000) -> list[dict]:
    """P8: a step inside the training loop, everything on as `stein train` has it, over a step of the bare scan.

    A thousand steps each with one checkpoint.
    """
    algorithm, batches, scores = toy()
    state = jax.jit(lambda key: algorithm.init(key, 50))(jax.random.key(0))

    @jax.jit
    def bare(state, batches):
        rows = batches.indices((0, 0), steps)
        return jax.lax.scan(lambda s, r: algorithm.step(s, batches.take(r)), state, rows)

    with tempfile.TemporaryDirectory() as folder, hooks.tensorboard(f"{folder}/tb") as board, hooks.progress() as bar:
        called = [
            hooks.members(),
            hooks.diagnostics(algorithm, batches, lambda message: None),
            hooks.evaluation(lambda s: scores(predict.living(s.particles, s.alive)), 1000),
            hooks.Log(f"{folder}/metrics.jsonl"), board, bar, hooks.Checkpoints(f"{folder}/checkpoints", every=1000),
        ]  # fmt: skip

        def whole(state, batches):
            return train.run(algorithm, state, batches, steps, chunk=100, hooks=called)

        def goes_on(work) -> None:
            nonlocal state
            state, _ = jax.block_until_ready(work(state, batches))

        size = f"w-svgd, 1-50-50-1, n = 50, B = 64, {steps} steps with 10 log lines, an evaluation and a checkpoint"
        return [paired("P8 training loop / bare scan", size, partial(goes_on, whole), partial(goes_on, bare), 1.05)]


def paired(name: str, size: str, ours, theirs, limit: float, pairs: int = PAIRS) -> dict:
    """Both pieces of work in turn, and the median of the ratios of neighbours: these can be compared where a machine's
    speed drifts within minutes."""
    times = {ours: [], theirs: []}
    for _ in range(pairs + 1):  # the first pair compiles
        for work, taken in times.items():
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    ours, theirs = (taken[1:] for taken in times.values())
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    quarter, ratio, three = statistics.quantiles(ratios, n=4)
    return {"row": name, "size": size, "seconds": statistics.median(ours), "peer_seconds": statistics.median(theirs),
            "ratio": ratio, "quartiles": [quarter, three], "pairs": len(ratios), "limit": limit,
            "holds": ratio <= limit}  # fmt: skip


def row(name: str, size: str, ours: float, theirs: float, limit: float) -> dict:
    ratio = ours / theirs
    return {"row": name, "size": size, "seconds": ours, "peer_seconds": theirs, "ratio": ratio, "limit": limit,
            "holds": ratio <= limit}  # fmt: skip


def start_up() -> list[dict]:
    """P13: the help, the first step of training, and what the compilation cache saves. Seconds, not ratios."""
    command = str(Path(sys.executable).with_name("stein"))

    def timed(*arguments: str, **extra: str) -> float:
        began = time.perf_counter()
        subprocess.run([command, *arguments], check=True, capture_output=True, env=os.environ | extra)
        return time.perf_counter() - began

    helped = min(timed("--help") for _ in range(REPEATS))
    cold, warm, first = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "toy.toml"
        config.write_text('[data]\nname = "regression-1d"\n[method]\nname = "w-svgd"\nparticles = 50\n'
                          "[train]\nsteps = 1\nlog_every = 1\nbatch_size = 64\n[checkpoints]\nevery = 1\n")  # fmt: skip
        for i in range(5):
            cache = f"{folder}/cache{i}"
            for taken, name in ((cold, "cold"), (warm, "warm")):
                taken.append(timed("train", str(config), "--out", f"{folder}/{name}{i}", XDG_CACHE_HOME=cache))
            began = time.time()
            script = [sys.executable, "-c", FIRST_STEP, str(config)]
            done = subprocess.run(script, check=True, capture_output=True, text=True)
            first.append(float(done.stdout) - began)
    size = "w-svgd, 1-50-50-1, n = 50, B = 64; no compilation cache"
    whole = "a whole `stein train` of one step, diagnostics, checkpoint and export included"
    return [
        row("P13 stein --help", "seconds", helped, 1.0, 0.5),
        row("P13 first training step", f"{size}; seconds from launch", statistics.median(first), 1.0, 5.0),
        row("P13 second run / first run", whole, statistics.median(warm), statistics.median(cold), 1.0),
    ]


def regression_figure() -> list[dict]:
    """P7: every method of the regression figure, one seed, at the paper's settings, against the committed posterior."""
    command = str(Path(sys.executable).with_name("stein"))
    columns = [variant.label for variant in variants.DETERMINISTIC if variant.column]
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "reproduce",
            "fig1",
            "--tasks",
            "regression",
            "--seeds",
            "42",
            "--out",
            folder,
            "--methods",
            *columns,
        ]
        began = time.perf_counter()
        subprocess.run([command, *arguments], check=True, capture_output=True)
        taken = time.perf_counter() - began
    return [
        row("P7 regression figure, minutes", f"{', '.join(columns)}: 50 members, 10,000 steps", taken / 60, 1.0, 3.0)
    ]


def prediction(images: int = 10_000, members: int = 50, chunk: int = 1000) -> list[dict]:
    """P12: probabilities of many images, over the time that XLA needs for one product of as many operations.

    10,000 images flattened, networks of the paper's Table 1. (NumPy's BLAS is faster than XLA's on many CPUs, by 1.4 on
    the one of results.json; no program inside XLA can use it.) The second row is the memory that a chunk of activations
    takes beyond weights, images and answers, over what one layer of them needs.
    """
    widths = [784, 100, 100, 100, 10]
    model = models.mlp(widths)
    particles = jax.vmap(model.init)(jax.random.split(jax.random.key(0), members))
    x = np.random.default_rng(0).random((images, widths[0]), np.float32)
    operations = sum(i * o for i, o in pairwise(widths))
    side = jax.numpy.asarray(x[:chunk])
    other = jax.numpy.zeros((widths[0], members * operations // widths[0]))
    product = jax.jit(jax.numpy.matmul)

    def products() -> None:
        for _ in range(0, images, chunk):
            product(side, other).block_until_ready()

    def predictions() -> None:
        predict.in_chunks(model, particles, x, chunk=chunk)

    compiled = predict._outputs.lower(model, particles, side).compile()
    activations = compiled.memory_analysis().temp_size_in_bytes
    size = f"{images} images, n = {members}, 784-100-100-100-10, {chunk} at a time"
    return [
        paired("P12 prediction / its products", size, predictions, products, 1 / 0.8),
        row("P12 memory / one layer's outputs", f"{size}; bytes", activations, 4 * chunk * members * 100, 4.0),
    ]


def convolutions(members: int = 4, images: int = 64, channels: int = 16, size: int = 32) -> list[dict]:
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

        return lambda: jax.block_until_ready(twice(x, filters))

    work = f"{members} members, {images} images of {size} x {size}, {channels} channels, two steps"
    return [
        paired("convolutions in turns / together", work, steps(resnet._in_turns), steps(resnet._slide), 0.2, pairs=3)
    ]


# What `stein train` does until its first step is done; it prints the time.
FIRST_STEP = """
import pathlib, sys, time
import jax
from stein import train
from stein.runs import configs
from stein.runs.build import assemble
parts = assemble(configs.load(pathlib.Path(sys.argv[1])))
state = train.begin(parts.algorithm, jax.random.key(0), 50)
train.run(parts.algorithm, state, parts.batches, 1)
print(time.time())
"""


MEASUREMENTS = {"P8": loop_overhead, "P13": start_up, "P7": regression_figure, "P12": prediction, "conv": convolutions}


def main(chosen: list[str]) -> int:
    """Measure, all or the chosen; rows that are not measured stay as they were."""
    path = HERE / "results.json"
    rows = [row for name in chosen or MEASUREMENTS for row in MEASUREMENTS[name]()]
    before = json.loads(path.read_text())["rows"] if chosen and path.exists() else []
    kept = [row for row in before if row["row"] not in {row["row"] for row in rows}]
    found = facts()
    machine = {name: found[name] for name in ("jax", "jaxlib", "python", "platform", "CPU threads")}
    result = {"command": "make bench", "repeats": REPEATS, "environment": machine, "rows": [*kept, *rows]}
    path.write_text(json.dumps(result, indent=2) + "\n")
    for r in rows:
        print(f"{r['row']:32} {r['ratio']:7.3f}  limit {r['limit']:5.2f}  {'holds' if r['holds'] else 'FAILS'}")
    return int(not all(r["holds"] for r in rows))


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main(sys.argv[1:]))
