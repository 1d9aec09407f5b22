"""What the studies of the toy tasks run, and how their tables are put together."""

import json

import jax
import numpy as np
import pytest

from stein import build, data, schedules, train
from stein.paper import reference, toy_figures, toys
from stein.paper.variants import Size, Variant

SMALL = Size(particles=0.06, steps=0.001)  # three members, ten steps


def phase(task, method, weights=None, **options):
    """One phase of a cell of seed 42, written out."""
    key_start, key_batches = jax.random.split(jax.random.key(42))
    algorithm = build(method, task.target(), **options)
    batches = data.Batches(task.x, task.y, task.batch_size, key_batches)
    state, _ = train.run(algorithm, algorithm.init(key_start, 3, weights), batches, 10, chunk=10)
    return state.particles


@pytest.mark.long
def test_only_the_first_phase_of_the_corrected_noise_is_annealed():
    """Catches a sampling phase whose likelihood is weakened, which samples another distribution than the posterior, and
    a first or only phase that has lost the annealing of its task."""
    task = toys.regression()._replace(anneal=schedules.hyperbolic(20))
    start = phase(task, "de", learning_rate=task.learning_rate, anneal=task.anneal)
    end = phase(task, "psgld", start, learning_rate=1e-4)
    alone, after = Variant("DE", "de"), Variant("pSGLD", "psgld", {"learning_rate": 1e-4}, first=Variant("DE", "de"))
    for variant, weights in ((alone, start), (after, end)):
        right = task.predict(weights)
        assert np.abs(toy_figures.run_cell(task, variant, 42, SMALL) - right).max() < 1e-9 * np.abs(right).max()


def test_the_floor_of_the_classification_task_is_against_the_other_draws():
    """Eight draws, three of them against the other five. Catches a mean that contains the draws compared with it."""
    random = np.random.default_rng(1)
    task = toys.classification()._replace(particles=3)
    said = random.dirichlet(np.full(5, 0.3), size=(2, 4, len(task.points)))
    flat = said.reshape(8, -1, 5)
    (found,) = reference._floor(task, said, flat[:, : toys.SIDE**2].mean(axis=0), repeats=1)
    chosen = np.random.default_rng(0).choice(8, 3, replace=False)
    others = np.delete(flat, chosen, axis=0)[:, : toys.SIDE**2].mean(axis=0)
    assert found == pytest.approx(toys.compare_classification(flat[chosen], others), rel=1e-9)


def test_a_table_keeps_the_rows_whose_cells_are_gone(tmp_path):
    """A clone has the table and not its cells; one row is made again. Catches the others lost, a kept number that is
    not named as kept, claims and means of the old numbers, and the seeds of one row given to the others."""
    draws = reference.posterior("regression").draws

    def save(label, seed, width):
        toy_figures.save_cell(
            toy_figures.cell_path(tmp_path, "regression", label, seed), width * draws[seed::40][:, :, None]
        )

    for seed in (1, 2):
        save("DE", seed, 0.5)
        save("fw-SVGD", seed, 0.9)
    assert toy_figures.write("fig1", "paper", tmp_path, (1, 2))
    whole = json.loads((tmp_path / "table.json").read_bytes())["tasks"]["regression"]
    assert whole["kept"] == {}
    for path in (tmp_path / "cells").rglob("*.npz"):
        path.unlink()
    save("fw-SVGD", 2, 2.0)
    before = json.loads((tmp_path / "table.json").read_bytes())
    before["tasks"]["regression"]["rows"]["no longer made"] = whole["rows"]["DE"]
    (tmp_path / "table.json").write_text(json.dumps(before))

    assert toy_figures.write("fig1", "paper", tmp_path, (2,))  # no column of both tasks: the posterior alone
    table = json.loads((tmp_path / "table.json").read_bytes())
    part = table["tasks"]["regression"]
    assert table["seeds"] == [1, 2]
    assert part["kept"] == {"DE": [1, 2], "fw-SVGD": [1], "no longer made": [1, 2]}
    assert part["rows"]["no longer made"] == part["rows"]["DE"] == whole["rows"]["DE"]
    old, new = whole["rows"]["fw-SVGD"]["seeds"], part["rows"]["fw-SVGD"]["seeds"]
    assert new["1"] == old["1"]
    assert new["2"]["rho_data"] == pytest.approx(old["2"]["rho_data"] * 2 / 0.9, rel=1e-5)
    mean, _ = part["rows"]["fw-SVGD"]["mean ± error"]["rho_data"]
    assert mean == pytest.approx((new["1"]["rho_data"] + new["2"]["rho_data"]) / 2)
    (claim,) = (c for c in part["claims"] if (c["number"], c["larger"], c["smaller"]) == ("rho_gap", "fw-SVGD", "DE"))
    differences = [new[seed]["rho_gap"] - part["rows"]["DE"]["seeds"][seed]["rho_gap"] for seed in ("1", "2")]
    assert claim["difference"] == pytest.approx(np.mean(differences))
    assert "Made last: fw-SVGD (seed 2)." in (tmp_path / "table.md").read_text()
