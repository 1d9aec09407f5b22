"""The environment of a run: versions and hardware, floating-point precision, and the compilation cache."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from stein import __version__
from stein.runs.schema import Config
from stein.storage import durable

IDENTITY = ("stein", "jax", "jaxlib", "numpy", "devices", "CPU threads", "CPU", "instructions")
"""The facts that must agree for bit-identical results."""


def facts() -> dict[str, str]:
    """Facts for a bug report: versions, platform, devices, threads and precision.

    >>> facts()["x64"] in ("on", "off")
    True
    """
    found = {"python": platform.python_version(), "stein": __version__}
    for package in ("jax", "jaxlib", "numpy", "equinox", "optax", "flax"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    kinds = Counter(f"{device.platform} ({device.device_kind})" for device in jax.devices())
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return found | {
        "platform": platform.platform(),
        "devices": ", ".join(f"{count} x {kind}" for kind, count in kinds.items()),
        "CPU threads": os.environ.get("NPROC") or str(len(affinity(0)) if affinity else os.cpu_count()),
        "x64": "on" if jax.config.read("jax_enable_x64") else "off",
    }


def environment() -> dict[str, Any]:
    """The facts that a result depends on, and a unique name for the run."""
    processor = {"CPU": _said_by_the_kernel("model name") or platform.processor(), "instructions": _instructions()}
    return facts() | processor | {"commit": _commit(), "run": f"stein-{uuid.uuid4().hex[:12]}"}


@contextlib.contextmanager
def precision(config: Config) -> Iterator[None]:
    """Set jax to the config's floating-point precision inside this context."""
    with jax.enable_x64(config.train.precision == "float64"):
        yield


def use_compilation_cache() -> None:
    """Cache what XLA compiles in the user's cache directory."""
    cache = durable.user_cache()
    if cache is None:
        return
    place = cache / "xla"
    with contextlib.suppress(OSError):  # training works without a cache
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(place))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _instructions() -> str:
    """The widest vectors that the processor has, for which XLA compiles: processors of one name may differ in it."""
    flags = _said_by_the_kernel("flags").split()
    return next((name for name in ("avx512f", "avx2", "avx") if name in flags), platform.machine())


def _said_by_the_kernel(name: str) -> str:
    """A fact about the first processor, where there is Linux's list of them; else nothing."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.partition(":")[0].strip() == name:
                return line.partition(":")[2].strip()
    return ""


def _commit() -> str:
    """The commit of the working directory, if it is a git repository."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
        return answer.stdout.strip()
    return ""
