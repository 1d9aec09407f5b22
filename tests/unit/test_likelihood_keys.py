"""The keys of the likelihoods that must be named: each has an effect, or is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from stein.runs import configs, kinds, named

OUTPUTS, Y = jnp.ones((3, 2)), jnp.array([[0.0], [1.0], [2.0]])


def likelihood(text: str, **scale: float):
    config = configs.parse(f'data.name = "regression-1d"\n[likelihood]\n{text}')
    return named.make_likelihood(config, config.likelihood.name, scale.get("scale"))


def test_every_key_has_an_effect():
    """Catches a key that is read nowhere, and a sigma that is not divided by the scale of the targets."""
    few = likelihood('name = "student-t"\nsigma = "learned"\ndegrees = 3.0')
    many = likelihood('name = "student-t"\nsigma = "learned"')
    assert not np.allclose(few.log_prob(OUTPUTS, Y), many.log_prob(OUTPUTS, Y))
    assert (many.shared_sigma, many.extra_outputs) == (True, 0)
    varying = likelihood('name = "student-t"\nsigma = "input-dependent"')
    assert (varying.shared_sigma, varying.extra_outputs) == (False, 1)
    given = likelihood('name = "student-t"\nsigma = 3.0', scale=2.0)
    np.testing.assert_array_equal(given.predictive(np.zeros((1, 1, 1))).sigmas, 1.5)
    counts = likelihood('name = "poisson"\nrate = 8.0')
    np.testing.assert_allclose(counts.predictive(np.zeros((1, 1, 1))).mean, 8.0, rtol=1e-12)


REFUSED = {
    'name = "gaussian"\ndegrees = 5.0': "likelihood.degrees: is for likelihood.name = 'student-t'",
    'name = "gaussian"\nrate = 5.0': "likelihood.rate: is for likelihood.name = 'poisson'",
    'name = "poisson"\nsigma = 1.0': "likelihood.sigma: the spread of counts follows from their rate",
    'name = "gaussian"\nsigma = "input-dependent"': "use likelihood.name = 'heteroscedastic'",
    'name = "student-t"\ndegrees = 2.0': "likelihood.degrees: got 2.0; must be a number above 2",
}


@pytest.mark.parametrize("text", REFUSED, ids=["degrees", "rate", "sigma of counts", "gaussian", "variance"])
def test_keys_without_effect_are_refused(text):
    with pytest.raises(configs.ConfigError, match=REFUSED[text]):
        likelihood(text)


def test_a_network_given_in_python_is_not_for_configs():
    with pytest.raises(
        configs.ConfigError, match=r"model.name: got 'given', which an estimator of stein.sklearn writes"
    ):
        configs.parse('data.name = "regression-1d"\nmodel.name = "given"')


@pytest.mark.parametrize("y", [np.array([1.5]), np.array([-1.0])], ids=["half", "negative"])
def test_counts_are_whole(y):
    with pytest.raises(ValueError, match=r"likelihood.name = 'poisson': 'visits' holds .*; must be counts: 0, 1, 2"):
        kinds.check_given(y, "poisson", "visits")
