"""The playground computes in the page what stein computes: its mathematics is written twice, and compared here."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pages
from stein import hmc, kernels, likelihoods, models, priors, rules, steps, targets, tree
from stein.report import page
from stein.types import Batch

pytestmark = pytest.mark.skipif(pages.CHROMIUM is None, reason=pages.NO_BROWSER)

MEMBERS, STEPS, UNITS = 6, 3, 8
BEYOND = [-2.5, -2, -0.35, 0, 0.35, 2, 2.5]
SHIFTS = np.array([[-1.6, -0.8], [1.6, 0.8]])

DENSITIES: dict[str, Callable[[Any], Any]] = {
    "gaussian": lambda w: -0.5 * w @ np.linalg.inv([[1, 0.8], [0.8, 1]]) @ w,
    "modes": lambda w: jax.nn.logsumexp(-jnp.sum((w[None] - SHIFTS) ** 2, axis=1) / (2 * 0.7**2)),
    "ring": lambda w: -((jnp.sqrt(jnp.sum(w**2)) - 1.8) ** 2) / (2 * 0.3**2),
    "banana": lambda w: -(w[0] ** 2) / (2 * 1.2**2) - (w[1] - w[0] ** 2 / 2 + 1) ** 2 / (2 * 0.5**2),
}


def network() -> Any:
    def apply(w: Any, x: Any) -> Any:
        out, slope, shift = w[:UNITS], w[UNITS : 2 * UNITS], w[2 * UNITS : 3 * UNITS]
        return (jnp.tanh(x * slope[None] + shift[None]) @ out + w[3 * UNITS])[:, None]

    return models.from_function(lambda key: jax.random.normal(key, (3 * UNITS + 1,)), apply)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pages.Opened]:
    path = tmp_path_factory.mktemp("playground") / "playground.html"
    path.write_bytes(page.live("Playground", "playground"))
    with pages.browser() as browser:
        found = pages.Opened(browser, path)
        yield found
        assert found.complaints == []
        assert found.network == []


def target(problem: str, data: dict[str, list[float]]) -> tuple[targets.Target, Batch]:
    if problem in DENSITIES:
        return targets.density(DENSITIES[problem], lambda key: jax.random.normal(key, (2,))), Batch(None, None)
    x, y = (jnp.asarray(data[name])[:, None] for name in ("x", "y"))
    extra = np.array(BEYOND)[:, None] if problem == "outside" else None
    measured = targets.Measurement(extra=extra)
    posterior = targets.posterior(
        network(), likelihoods.gaussian(0.1), priors.normal(2.0), len(x), measurement=measured
    )
    return posterior, Batch(x, y)


def by_stein(problem: str, method: str, kernel: str, start: Any, data: Any) -> tuple[Any, list[Any]]:
    """The particles after some steps, and the normal draws that these used."""
    at, batch = target(problem, data)
    made = getattr(kernels, kernel)(kernels.median(factor=2.0))
    name, _, noisy = method.partition(" with ")
    options: dict[str, Any] = {"kernel_w": made, "kernel_f": made} if name == "h-svgd" else {"kernel": made}
    rule = rules.make(name, stochastic=bool(noisy), **({} if name in ("de", "sgld") else options))
    plane, ids, alive = problem in DENSITIES, jnp.arange(MEMBERS), jnp.ones(MEMBERS, bool)
    rate = 0.05 if plane else 0.02
    langevin = plane or rule.noisy
    step = steps.langevin(rate if plane else rate / 100) if langevin else steps.descend(optax.adam(rate))
    x, state, draws = jnp.asarray(start), step.init(jnp.asarray(start)), []
    for number in range(STEPS):
        key = jax.random.key(number)
        seen = at.view(key, x, batch, ids, alive, jnp.ones(()), rule.space, rule.functional)
        force, _ = rule.force(key, seen, rule.memory)
        draws.append(np.asarray(tree.normal(key, ids, x)).tolist())
        move = steps.Move(force.drift, force.noise, seen.loglik_w, alive, jnp.asarray(number))
        x, state, _ = step.update(x, state, move)
    return np.asarray(x), draws


IN_PAGE = """([problem, options, start, draws]) => {
  const array = (rows) => rows.map((row) => Float64Array.from(row));
  let state = playground.begin(array(start));
  for (const normals of draws) state = playground.advance(problem, state, options, array(normals));
  return state.x.map((row) => Array.from(row));
}"""
WITH_NOISE = "w-svgd with noise"


@pytest.mark.parametrize(
    ("problem", "method", "kernel"),
    [
        ("banana", WITH_NOISE, "imq"),
        ("outside", "h-svgd", "rbf"),
        *[
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                *[(problem, "w-svgd", "rbf") for problem in DENSITIES],
                *[("modes", method, "imq") for method in ("de", "sgld", "kde-wgd")],
                ("regression", "fw-svgd", "rbf"),
                *[("outside", method, "imq") for method in ("de", "sgld", WITH_NOISE, "kde-wgd", "fw-svgd")],
            )
        ],
    ],
)
def test_the_page_moves_the_members_as_stein_does(opened: pages.Opened, problem: str, method: str, kernel: str) -> None:
    """Catches: a sign, a factor, a bandwidth, a Jacobian or an optimiser that differ between the page and stein."""
    data = opened.page.evaluate("({x: [...playground.INPUTS], y: [...playground.TARGETS]})")
    size = 2 if problem in DENSITIES else 3 * UNITS + 1
    start = np.random.default_rng(3).normal(size=(MEMBERS, size))
    expected, draws = by_stein(problem, method, kernel, start, data)
    rate = opened.page.evaluate(f"playground.PROBLEMS.{problem}.rate")
    options = {"method": method, "kernel": kernel, "width": 2.0, "rate": rate}
    found = np.array(opened.page.evaluate(IN_PAGE, [problem, options, start.tolist(), draws]))
    # Float64 on both sides. Adam divides by roots of squares, and the root of the noise has a condition of up to 1e3.
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    assert np.abs(expected - start).max() > 1e-3


@pytest.mark.long
def test_the_posterior_of_the_page_is_that_of_nuts(opened: pages.Opened) -> None:
    """Catches: a leapfrog, an acceptance or a density that is wrong; the band is what members are compared with."""
    in_page = """() => {
      const random = playground.generator(5), grid = Float64Array.from([-2.5, -1.1, -0.3, 0, 0.3, 1.1, 2.5]);
      const chains = random.normals(4, 25).map((w) => ({ w, size: 0.02 })), kept = [];
      for (let i = 0; i < 4400; i++) for (const chain of chains) {
        playground.hamiltonian(chain, random, i < 400);
        if (i >= 400) kept.push(Array.from(playground.network(chain.w, grid).outputs));
      }
      return kept;
    }"""
    found = np.array(opened.page.evaluate(in_page))
    data = opened.page.evaluate("({x: [...playground.INPUTS], y: [...playground.TARGETS]})")
    x, y = (jnp.asarray(data[name])[:, None] for name in ("x", "y"))
    log_prob = hmc.log_posterior(network(), likelihoods.gaussian(0.1), priors.normal(2.0), x, y)
    draws = _nuts(log_prob)
    grid = jnp.asarray([-2.5, -1.1, -0.3, 0, 0.3, 1.1, 2.5])[:, None]
    expected = np.asarray(jax.vmap(network().apply, (0, None))(draws, grid))[:, :, 0]
    # Over five seeds of the page's chains the standard deviations of the two differed by up to 13 %, and the means by
    # up to 0.13 of the largest: the error of few and correlated draws.
    np.testing.assert_allclose(found.std(axis=0), expected.std(axis=0), rtol=0.2)
    np.testing.assert_allclose(found.mean(axis=0), expected.mean(axis=0), atol=0.2 * expected.std(axis=0).max())


def _nuts(log_prob: Any) -> Any:
    """8,000 draws of eight chains."""
    sampler = hmc.nuts(log_prob)
    start = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3 * UNITS + 1)))
    state = hmc.warm_up(log_prob, sampler.init(jax.random.key(0), 8, start), 500)

    def transition(state: Any, _: None) -> tuple[Any, Any]:
        state, _info = sampler.step(state, None)
        return state, state.particles

    _, draws = jax.jit(lambda state: jax.lax.scan(transition, state, None, length=1000))(state)
    return draws.reshape(-1, 3 * UNITS + 1)


@pytest.mark.long
def test_everything_that_can_be_chosen_moves(opened: pages.Opened) -> None:
    """Catches: a control without effect, a method offered where it cannot run, words that no longer follow the picture,
    and what keeps readers with a keyboard or a screen reader out."""
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect

    shown = opened.page
    for problem in shown.locator("#problem option").all():
        shown.select_option("#problem", problem.get_attribute("value"))
        for method in shown.locator("#method option:enabled").all():
            shown.select_option("#method", method.get_attribute("value"))
            before = shown.locator("#moving").inner_html()
            shown.click("#one")
            assert shown.locator("#moving").inner_html() != before
            assert shown.locator("#numbers").inner_text().startswith("Step 1. ")
    shown.locator("#members").fill("7")
    assert shown.locator("#moving path").count() == 7
    shown.focus("#run")
    shown.keyboard.press("Enter")
    expect(shown.locator("#numbers")).to_contain_text("at the data", timeout=120_000)
    assert shown.locator("#posterior").get_attribute("d")
    found = Axe().run(shown).response["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
