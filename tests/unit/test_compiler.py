"""Compiler options: unknown ones are left out, and what a program computes does not depend on them."""

import jax
import numpy as np

from stein import compiler


def test_an_option_that_the_compiler_does_not_know_is_left_out() -> None:
    program = compiler.jit(lambda x: 2 * x, {"xla_no_such_option": 1, "xla_backend_optimization_level": 0})
    assert program()(np.float32(3)) == 6
    assert not compiler._known("xla_no_such_option", 1)


def test_programs_are_made_once() -> None:
    program = compiler.jit(lambda x: x + 1, compiler.OFTEN)
    assert program() is program()


def test_the_first_weights_are_those_of_the_optimised_program_to_rounding() -> None:
    def draw(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (1000,))

    key = jax.random.key(3)
    once, often = (compiler.jit(draw, options)()(key) for options in (compiler.ONCE, compiler.OFTEN))
    np.testing.assert_allclose(once, often, rtol=2e-6, atol=1e-7)
