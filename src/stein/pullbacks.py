r"""Forces on functions, mapped back to the weights: :math:`J_i^\top u_i` for all members, whose inputs are the same.

The last product of a backward pass is that of the first layer. Its gradient is :math:`D_i X`, where :math:`D_i` is the
gradient in :math:`W_i X^\top` and X are the inputs, which all members share. So :math:`\sum_j A_{ij} D_j X + E_i X
= (\sum_j A_{ij} D_j + E_i)\, X`: a rule that adds several such forces multiplies by X once, and a :class:`Pulled` is a
force before that product. For images, whose first layer is the largest, it is a sixth of a step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stein import tree
from stein.types import FirstLayer, Model, Particles, Weights


class Pulled(NamedTuple):
    """A force on the weights, before the first layer's product with the inputs, or a combination of such forces.

    ``products`` are the gradients in the first layer's products. The force is ``weights``, and for the first layer's
    matrix ``products @ inputs`` besides. They are ``None`` where no product is put off: then ``weights`` is all of it.
    Both carry the particle axis first, so that :mod:`stein.tree` computes with them as with the force itself.
    """

    weights: Particles
    products: Float[Array, "n o m"] | None = None


class Jacobians(eqx.Module):
    """The transposed Jacobians of all members' outputs in their weights, at the same inputs; those of the dead are zero
    (see :meth:`among`)."""

    vjp: Callable[..., tuple]
    inputs: Float[Array, "m i"] | None = None
    first: FirstLayer | None = eqx.field(default=None, static=True)
    alive: Bool[Array, " n"] | None = None

    def among(self, alive: Bool[Array, " n"]) -> "Jacobians":
        """The same, with zeros for the dead."""
        return dataclasses.replace(self, alive=alive)

    def pull(self, cotangent: Float[Array, "n m c"]) -> Pulled:
        """J_i^T u_i for every member i."""
        weights, *products = self.vjp(cotangent)
        if self.first is not None:
            weights = eqx.tree_at(self.first.weight, weights, self._nothing(weights))
        pulled = Pulled(weights, *products)
        # The result is masked: a dead network's own residuals may be infinite, and 0 * inf is NaN.
        return pulled if self.alive is None else tree.where(self.alive, pulled, 0)

    def expand(self, pulled: Pulled) -> Particles:
        """The force itself, with the product that was put off."""
        if self.first is None or self.inputs is None or pulled.products is None:
            return pulled.weights
        # All members' matrices are one, with points as rows (turned in memory, hence the barrier): the form that XLA
        # multiplies fastest on a CPU.
        points_first = jax.lax.optimization_barrier(jnp.moveaxis(pulled.products, 2, 0))
        product = points_first.reshape(len(self.inputs), -1).T @ self.inputs
        product = product.reshape(*points_first.shape[1:], -1)
        return eqx.tree_at(self.first.weight, pulled.weights, self.first.weight(pulled.weights) + product)

    def known(self, weights: Particles) -> Pulled:
        """A force that needs no product, in the form of those that do."""
        return Pulled(weights, None if self.first is None else self._nothing(weights))

    def bound(self, pulled: Pulled) -> Pulled:
        r"""A tree with norms that are at least those of the force, without the product: :math:`|DX| \le |D|\,|X|`."""
        if self.first is None:
            return pulled
        return pulled._replace(products=jnp.linalg.norm(self.inputs) * pulled.products)

    def _nothing(self, like: Particles) -> Float[Array, "n 1 1"]:
        """Zeros that stretch to whatever they are added to."""
        return jnp.zeros((jax.tree.leaves(like)[0].shape[0], 1, 1), tree.dtype(like))


def outputs(model: Model, particles: Particles, inputs: Array) -> tuple[Array, Jacobians]:
    """The outputs (n, m, c) of all members at the same inputs, and their Jacobians.

    With fewer inputs than members the first layer's product costs less than a mixture of its gradients, and is not put
    off.
    """
    first = _shared_first(model, particles)
    if first is None:
        return of_function(model.apply, particles, inputs)
    inputs, products = _first_products(first, particles, inputs)
    found, vjp = jax.vjp(jax.vmap(first.rest), particles, products)
    return found, Jacobians(vjp, inputs, first)


def outputs_alone(model: Model, particles: Particles, inputs: Array) -> Float[Array, "n m c"]:
    """The same outputs, without Jacobians."""
    first = _shared_first(model, particles)
    if first is None:
        return jax.vmap(model.apply, (0, None))(particles, inputs)
    return jax.vmap(first.rest)(particles, _first_products(first, particles, inputs)[1])


def _shared_first(model: Model, particles: Particles) -> FirstLayer | None:
    """The first layer, if all members' products with the inputs are made as one."""
    if model.first is None:
        return None
    members, _, widths = model.first.weight(particles).shape
    return model.first if widths > members else None


def _first_products(
    first: FirstLayer, particles: Particles, inputs: Float[Array, "m i"]
) -> tuple[Float[Array, "m i"], Float[Array, "n o m"]]:
    """The inputs in the weights' dtype, and the first layer's products with them."""
    matrices = first.weight(particles)
    inputs = inputs.astype(matrices.dtype)
    products = jax.lax.optimization_barrier(inputs @ matrices.reshape(-1, inputs.shape[1]).T)  # as in `expand`
    return inputs, jnp.moveaxis(products.reshape(len(inputs), *matrices.shape[:2]), 0, 2)


def of_function(see: Callable[[Weights, Any], Array], particles: Particles, inputs: Any) -> tuple[Array, Jacobians]:
    """The same for any function of one network's weights and of the inputs; no product is put off."""
    found, vjp = jax.vjp(lambda w: jax.vmap(see, (0, None))(w, inputs), particles)
    return found, Jacobians(vjp)
