"""Plants bugs in a copy of the source, one at a time, and sees whether the tests notice.

``make mutants`` runs the suite on the unedited source, which must pass, then on every edit, which must fail, and writes
``results/mutants``. The tests know nothing of the edits. ``python tests/mutants.py NAME ...`` tries some of them only, and
brings the result up to date for these; of the unedited source it runs the tests that have failed on an edit. A row's
``commit`` says which source and tests it is about.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Deterministic tests first: what they catch need not wait for the statistical ones.
EARLY = (
    "unit/test_health unit/test_identities unit/test_outliers unit/test_pullbacks unit/test_features unit/test_scores "
    "unit/test_diagnostics statistical/test_microcanonical"
)
STAGES = (
    ["tests/unit/test_twin.py", "tests/unit/test_gradients.py"],
    [f"tests/{name}.py" for name in EARLY.split()],
    ["tests/unit", "tests/contract", "tests/statistical"],
)
# ruff: noqa: E501 - an edit is easier to read on one line
# name: (file, (old, new), ...); every old text must occur in the file, and its first occurrence is replaced
MUTANTS = {
    "repulsion attracts": ("kernels.py", ("left = 2 / h * descent", "left = -2 / h * descent"), ("2 / h * slope)", "-2 / h * slope)")),
    "repulsion without its 2": ("kernels.py", ("left = 2 / h * descent", "left = 1 / h * descent"), ("2 / h * slope)", "1 / h * slope)")),
    "bandwidth over log n": ("kernels.py", ("jnp.log1p(jnp.maximum(n, 1)", "jnp.log(jnp.maximum(n, 2)")),
    "median without the diagonal": ("kernels.py", ("def median(diagonal: bool = True", "def median(diagonal: bool = False")),
    "dead particles in the median": ("kernels.py", ("living = alive[upper[0]] & alive[upper[1]]", "living = upper[0] >= 0")),
    "product rule without the other factor": (
        "kernels.py",
        ("gram.weighted(jnp.prod(jnp.stack(others), axis=0)) if others else gram", "gram"),
    ),
    "bandwidth never frozen": ("kernels.py", ("jnp.where(seen < after", "jnp.where(seen >= 0")),
    "distances not centred": ("tree.py", ("gram(x, middle(x, alive))", "gram(x)")),
    "distances around the mean of all": ("tree.py", ("gram(x, middle(x, alive))", "gram(x, mean(x, alive))")),
    "repulsion around the mean of all": ("kernels.py", ("origin = tree.middle(x, self.alive)", "origin = tree.mean(x, self.alive)")),
    "one product around the mean of all": ("kernels.py", ("shifted = tree.around_middle(x, self.alive)", "shifted = tree.centre(x, self.alive)")),
    "one product with the diagonal": ("kernels.py", (" + self.ratio * jnp.diagonal(drive)", "")),
    "sum of kernels without its weights": ("kernels.py", ("gram.weighted(jnp.full_like(gram.matrix, w))", "gram.weighted(jnp.ones_like(gram.matrix))")),
    "dead particles in the mean": (
        "tree.py",
        ("mix(weights / number, where(alive, x, 0))", "mix(jnp.ones_like(weights) / len(alive), x)"),
    ),
    "images left out of a filter's gradient": ("models/resnet.py", ("return total + cotangent", "return cotangent")),
    "noise by position": ("tree.py", ("one))(ids, like)", "one))(jnp.arange(len(ids)), like)")),
    "w-SVGD drift without 1/n": ("rules/svgd.py", ("tree.scale(1 / view.num_alive(), phi)", "phi")),
    "f-SVGD drift without 1/n": ("rules/svgd.py", ("view.backward(phi / view.num_alive())", "view.backward(phi)")),
    "1/n counts the dead": ("targets.py", ("jnp.maximum(jnp.sum(self.alive), 1)", "jnp.asarray(self.alive.size)")),
    "f-SVGD forgets the prior": (
        "rules/svgd.py",
        ("score = view.score_f + view.lift(view.prior_f)", "score = view.score_f"),
    ),
    "hybrid noise from the functional kernel": (
        "rules/svgd.py",
        ("driven(noise, key_noise, gram_w.matrix, view)", "driven(noise, key_noise, gram_f.matrix, view)"),
    ),
    "N/B missing": ("targets.py", ("num_data * lik + pri", "size * lik + pri")),
    "prior counted per batch": ("targets.py", ("num_data * lik + pri", "num_data * lik + num_data / size * pri")),
    "likelihood at points without a label": ("targets.py", ("- size), (0, 0)))", '- size), (0, 0)), mode="edge")')),
    "gradient not checked for NaN": ("targets.py", ("else tree.healthy(data.jacobians.bound(score)))", "else alive)")),
    "dead pull-back not masked": (
        "pullbacks.py",
        ("return pulled if self.alive is None else tree.where(self.alive, pulled, 0)", "return pulled"),
    ),
    "first layer's own gradient twice": ("pullbacks.py", ("first.weight(pulled.weights) + product", "first.weight(pulled.weights) + 2 * product")),
    "chunks of predictions taken for members": ("predict.py", ("jnp.moveaxis(found, 0, 1).reshape(", "found.reshape(")),
    "relu's derivative at zero": ("models/mlp.py", ("jnp.where(result > 0,", "jnp.where(result >= 0,")),
    "gradient of the first layer not checked": ("pullbacks.py", ("jnp.linalg.norm(self.inputs) * pulled.products", "0 * pulled.products")),
    "temperature squared": ("ensembles.py", ("/ temperature", "/ temperature**2")),
    "key reused every step": ("ensembles.py", ("jax.random.fold_in(state.key, state.step)", "jax.random.fold_in(state.key, 0)")),
    "annealing on the repulsion too": (
        "ensembles.py",
        ("state.alive, drive, rule", "state.alive, jnp.ones_like(drive), rule"),
        ("steps.Move(force.drift,", "steps.Move(tree.scale(drive, force.drift),"),
    ),
    "sqrt 2 dropped from the correlated noise": ("rules/noise.py", ("jnp.sqrt(2 / view", "jnp.sqrt(1 / view")),
    "sqrt 2 dropped from SGLD": ("rules/independent.py", ("tree.scale(2**0.5", "tree.scale(1.0")),
    "momentum without friction in its noise": ("steps.py", ("jnp.maximum(friction - size**2", "jnp.maximum(1.0 - size**2")),
    "position moves with the old momentum": ("steps.py", ("tree.add(particles, tree.scale(size, pushed))", "tree.add(particles, tree.scale(size, momenta))")),
    "energy aim does not fall": ("microcanonical.py", ("(5 - 4 * (t / third)", "(5 - 0 * (t / third)")),
    "chains at temperature one": ("ensembles.py", ("target.num_data * log_likelihood + log_prior) / temperature", "target.num_data * log_likelihood + log_prior) / 1.0")),
    "draws off by one": ("draws.py", ("after = steps - self.burn_in", "after = steps - self.burn_in + 1")),
    "element-wise root": ("rules/noise.py", ("tree.mix(factor, ", "tree.mix(jnp.sqrt(regular), ")),
    "jitter only in the noise": ("rules/noise.py", ("return regular, tree.scale", "return matrix, tree.scale")),
    "Jacobian of the moved particle": (
        "rules/functional.py",
        ("    def repulsion(key: Key, gram: AnyGram, view: View) -> Pulled:\n",
         "    def repulsion(key: Key, gram: AnyGram, view: View) -> Pulled:\n"
         "        return local().pulled(key, gram, view)\n"),
    ),
    "a direction lost at full rank": ("rules/functional.py", ("most = min(values.size - 1, unit[0].size)", "most = min(values.size - 1, unit[0].size) - 1")),
    "energy of the functions": ("rules/functional.py", ("seen = pushes(gram.left, norms, values, vectors)", "seen = values")),
    "probe not balanced": ("rules/functional.py", ("signs / root", "signs * root")),
    "softmax twice": ("likelihoods.py", ("- jax.nn.softmax(outputs)", "- jax.nn.softmax(jax.nn.softmax(outputs))")),
    "softmax pull-back without its mean": ("likelihoods.py", ("p * (u - jnp.sum(p * u, axis=1, keepdims=True))", "p * u")),
    "score over sigma, not its square": ("likelihoods.py", ("/ sigma**2", "/ sigma")),
    "prior score over std, not its square": ("priors.py", ("-a / s**2", "-a / s")),
    "SSGE with the wrong sign": ("scores.py", ("(within @ samples - jnp", "(-within @ samples + jnp")),
    "SSGE with one inverse": ("scores.py", ("1 / jnp.where(kept, values, 1) ** 2", "1 / jnp.where(kept, values, 1)")),
    "dead functions in the width of SSGE": ("scores.py", ("if alive is None else alive", "")),
    "blob counts i twice": ("rules/wgd.py", ("inverse[:, None] + inverse[None, :]", "inverse[:, None] + inverse[:, None]")),
    "repulsive ensemble attracts": ("rules/wgd.py", ("return Force(tree.add(view.score_w, R), None, R, {\"functions\": gram}), memory", "return Force(tree.add(view.score_w, tree.scale(-1.0, R)), None, R, {\"functions\": gram}), memory")),
    "repulsive ensemble at the batch too": ("targets.py", ('batch.x[: None if measurement.where == "batch" else 0]', "batch.x")),
    "one bandwidth for all points": ("kernels.py", ("gram, _ = kernel(m**0.5 * one, alive, memory)", "gram, _ = radial(lambda u: (jnp.exp(-u), jnp.exp(-u)), Bandwidth(lambda s, a, h: (median().estimate(tree.squared_distances(x, alive), a, ())[0], h)))(m**0.5 * one, alive, memory)")),
    "length of input gradients constant": ("features.py", ("jnp.sqrt(jnp.sum(gradient**2, axis=1", "jnp.sqrt(jnp.sum(jax.lax.stop_gradient(gradient) ** 2, axis=1")),
    "gradient of the first class": ("targets.py", ("classes[: x.shape[0]], outputs", "0 * classes[: x.shape[0]], outputs")),
    "t flow without its mean": ("rules/wgd.py", ("centred = tree.centre(view.features, view.alive)", "centred = view.features")),
    "wide network with the other angle": ("functional_priors.py", ("(jnp.pi - theta) * cosine", "theta * cosine")),
    "far spread of a part of the data": ("hooks/measures.py", (" * math.sqrt(len(used) / len(x))", "")),
    "spread without its noise": ("metrics/diagnostics.py", ("F @ F.T / noise**2", "F @ F.T")),
    "preconditioner not rooted in the noise": ("steps.py", ("jnp.sqrt(p) * z", "p * z")),
    "Langevin noise times the step": ("steps.py", ("tree.scale(size**0.5, noise)", "tree.scale(size, noise)")),
    "move of the dead made": ("steps.py", ("return tree.where(alive, proposal, particles), state, alive", "return proposal, state, alive")),
    "last columns not in the distances": ("tree.py", ("total + block(i * width, width), rest)", "total + block(i * width, width), 0 * rest)")),
    "hyperbolic without 1.3": ("schedules.py", ("jnp.tanh((1.3 *", "jnp.tanh((1.0 *")),
    "every epoch in the same order": ("batches.py", ("jax.random.fold_in(key, epoch)", "key")),
}  # fmt: skip


def mutate(source: Path, name: str) -> None:
    """Apply one edit to a copy of the source tree."""
    file, *edits = MUTANTS[name]
    path = source / "stein" / file
    text = path.read_text()
    for old, new in edits:
        if old not in text:
            raise SystemExit(f"error: {name}: {file} no longer contains {old!r}")
        text = text.replace(old, new, 1)
    path.write_text(text)


def first_failure(source: Path, stages: tuple[list[str], ...] = STAGES) -> str | None:
    """The first test that fails on this source, or None where all pass."""
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        # What an edit does not touch need not be compiled again.
        "JAX_COMPILATION_CACHE_DIR": str(source.parent / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    options = [
        "-x",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-m",
        "not long",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
    ]
    for tests in stages:
        command = [sys.executable, "-m", "pytest", *options, *tests]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        lines = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if lines:
            return lines[0].split(" ", 1)[1].split(" - ")[0]
        if result.returncode:
            raise SystemExit(f"error: pytest did not run:\n{result.stdout}{result.stderr}")
    return None


def main(names: list[str]) -> int:
    out = ROOT / "results" / "mutants" / "mutants.json"
    before = json.loads(out.read_text())["mutants"] if names else []
    rows = {row["mutant"]: row for row in before if row["mutant"] in MUTANTS}
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        for name in [*names, ""] if names else ["", *MUTANTS]:
            shutil.rmtree(source, ignore_errors=True)
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            if name:
                mutate(source, name)
            began = time.monotonic()
            catching = sorted({row["caught_by"] for row in rows.values() if row["mutant"] in names} - {None})
            if names and not name and not catching:
                continue
            failure = first_failure(source, (catching,) if names and not name else STAGES)
            print(f"{name or 'unedited':45} {failure or 'all pass'} ({time.monotonic() - began:.0f} s)", flush=True)
            if not name and failure:
                print("error: the unedited source does not pass; nothing can be learnt from the mutants")
                return 1
            if name:
                file = f"src/stein/{MUTANTS[name][0]}"
                rows[name] = {"mutant": name, "file": file, "caught_by": failure, "commit": commit}
    caught = sum(row["caught_by"] is not None for row in rows.values())
    print(f"caught {caught}/{len(rows)}")
    result = {"command": "make mutants", "caught": caught, "total": len(rows), "mutants": list(rows.values())}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    return int(caught < len(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
