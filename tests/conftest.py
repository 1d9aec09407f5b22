"""Every test runs in strict mode: no silent dtype or rank promotion, shapes checked, four simulated devices."""

import os

# Most tests compile for seconds and run for milliseconds; those that run longer ask for more effort themselves.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"]
)
os.environ["MPLBACKEND"] = "Agg"

from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)  # exact identities are checked to 1e-10; float32 tests cast
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

install_import_hook("stein", "checked.typechecker")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs of the training processes that tests start, shared by the workers of pytest-xdist."""
    return tmp_path_factory.getbasetemp().parent / "cache"
