"""How many programs a new user's first commands compile, and how long that takes: what a cold start feels like.

``python benchmarks/compilations.py`` runs `stein demo`, a fit of the estimator and the smoke budget of Table 2, each in
a process of its own without a compilation cache, and writes results/compilations/compilations.json: per program the
number of compilations and their seconds. ``python benchmarks/compilations.py fit`` does one of them again.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULT = Path("results/compilations/compilations.json")
COMPILED = "/jax/core/compile/backend_compile_duration"


def demo(folder: str) -> None:
    command("demo", "--out", folder)


def fit(folder: str) -> None:
    from sklearn.datasets import load_diabetes

    from stein.sklearn import SteinRegressor

    SteinRegressor(random_state=0).fit(*load_diabetes(return_X_y=True))


def table2(folder: str) -> None:
    command("reproduce", "table2", "--preset", "smoke", "--workers", "1", "--out", folder)


WORKS = {"demo": demo, "fit": fit, "table2": table2}


def command(*words: str) -> None:
    from stein.cli import main

    sys.argv = ["stein", *words]
    status = main()
    if status:
        raise RuntimeError(f"`stein {' '.join(words)}` ended with {status}")


def counted(name: str) -> dict:
    """In this process: do the work, and count."""
    import jax

    programs: dict[str, list[float]] = collections.defaultdict(list)

    def note(event: str, seconds: float, **about: str) -> None:
        if event == COMPILED:
            programs[about.get("fun_name", "")].append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        WORKS[name](folder)
    taken = time.perf_counter() - began
    longest = sorted(programs.items(), key=lambda item: -sum(item[1]))
    return {
        "programs": sum(map(len, programs.values())),
        "compile_seconds": round(sum(map(sum, programs.values())), 2),
        "all_seconds": round(taken, 2),
        "by_program": {of: {"times": len(each), "seconds": round(sum(each), 2)} for of, each in longest},
    }


def main() -> None:
    if sys.argv[1:2] == ["count"]:
        print(json.dumps(counted(sys.argv[2])))
        return
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in sys.argv[1:] or WORKS:
        with tempfile.TemporaryDirectory() as cache:
            print(name, flush=True)
            fresh = os.environ | {"XDG_CACHE_HOME": cache, "JAX_ENABLE_COMPILATION_CACHE": "0"}
            done = subprocess.run(
                [sys.executable, __file__, "count", name], check=True, stdout=subprocess.PIPE, text=True, env=fresh
            )
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print({key: found[name][key] for key in ("programs", "compile_seconds", "all_seconds")}, flush=True)
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
