"""P8: what the training loop adds to its steps. P15: what it adds where the data stay in files."""

import tempfile
from functools import partial

import jax
import numpy as np
from harness import clocked, paired
from works import ROWS, Steps, method, work_m, work_t

from stein import data, evaluate, hooks, likelihoods, predict, train
from stein.ensembles import build


def overhead(steps: int = 1000) -> list[dict]:
    """A step inside the training loop over a step of the bare scan: with progress, log, TensorBoard and checkpoints,
    and with all that `stein train` measures as well, which is work of its own.

    A thousand steps each, with ten log lines and a checkpoint.
    """
    work = work_t()
    algorithm, batches = build("w-svgd", work.target), work.batches
    scores = evaluate.held_out(work.model, likelihoods.gaussian(1.0), batches.x, batches.y)
    state = jax.jit(lambda key: algorithm.init(key, 50))(jax.random.key(0))

    @jax.jit
    def bare(state, batches):
        rows = batches.indices((0, 0), steps)
        return jax.lax.scan(lambda s, r: algorithm.step(s, batches.take(r)), state, rows)

    with tempfile.TemporaryDirectory() as folder, hooks.tensorboard(f"{folder}/tb") as board, hooks.progress() as bar:
        measure = [
            hooks.members(),
            hooks.diagnostics(algorithm, batches, lambda message: None),
            hooks.evaluation(lambda s: scores(predict.living(s.particles, s.alive)), 1000),
        ]
        report = [
            hooks.Log(f"{folder}/metrics.jsonl"),
            board,
            bar,
            hooks.Checkpoints(f"{folder}/checkpoints", every=1000),
        ]

        def whole(called, state, batches):
            return train.run(algorithm, state, batches, steps, chunk=100, hooks=called)

        def goes_on(work) -> None:
            nonlocal state
            state, _ = jax.block_until_ready(work(state, batches))

        def row(name, words, called) -> dict:
            loop, scan = (clocked(partial(goes_on, work), steps) for work in (partial(whole, called), bare))
            return paired(name, words, loop, scan, 1.05, unit="seconds per step")

        size = f"w-svgd, {work.words}, {steps} steps with 10 log lines and a checkpoint"
        more = f"{size}, ten diagnoses and an evaluation"
        return [
            row("P8 training loop / bare scan", size, report),
            row("P8 the same with measurements", more, measure + report),
        ]


def stream() -> list[dict]:
    """A step with batches from memory-mapped files, read ahead by a thread, over one with batches from memory.

    Of 10,000 rows: an epoch is longer than a chunk, as it is wherever data do not fit in memory.
    """
    rows = []
    for name, work, steps in (("curve", work_t(rows=ROWS), 500), ("images", work_m(), 20)):
        with tempfile.TemporaryDirectory() as folder:
            for part in "xy":
                np.save(f"{folder}/{part}.npy", np.asarray(getattr(work.batches, part)))
            files = data.MemoryMapped(f"{folder}/x.npy", f"{folder}/y.npy")
            algorithm = method("w-svgd", work)
            ours, theirs = (
                Steps(algorithm, work._replace(batches=batches), steps, chunk=steps // 10)
                for batches in (data.Stream(files, work.batches.size, seed=1), work.batches)
            )
            size = f"w-svgd, {work.words}, chunks of {steps // 10} steps"
            rows.append(
                paired(f"P15 {name} from files / from memory", size, ours, theirs, 1.1, unit="seconds per step")
            )
    return rows
