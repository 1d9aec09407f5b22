"""``make crash-test N=300``: real training processes, killed N times with SIGKILL, resumed, compared byte for byte.

Chains of nine kills (:func:`runs.kill_chain`), methods and places in turn, two chains at a time; every chain must end
as the uninterrupted run of its method does. Writes results/crash-test/crash-test.json.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import runs

OUT = Path(__file__).parent.parent / "results" / "crash-test"
KILLS_IN_A_CHAIN = 9


def main(kills: int) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        base = Path(folder)
        config, cache = runs.write_config(base / "config"), base / "cache"
        expected = {}
        for method, options in runs.METHODS.items():
            whole = runs.run(["train", config, *options, "--out", base / method, "--quiet"], cache)
            assert whole.returncode == 0, whole.stderr
            expected[method] = runs.result(base / method)

        def chain(number: int) -> dict:
            method = list(runs.METHODS)[number % len(runs.METHODS)]
            found = runs.kill_chain(base / f"chain{number}", config, method, KILLS_IN_A_CHAIN, 1000 + number, cache)
            same = found["result"] == expected[method]
            print(
                f"chain {number:3} {method:8} {len(found['killed'])} kills  {'same' if same else 'DIFFERS'}", flush=True
            )
            return {"method": method, "killed": found["killed"], "same": same, "leftovers": len(found["leftovers"])}

        chains: list[dict] = []
        while (left := kills - sum(len(c["killed"]) for c in chains)) > 0:  # a run may end before its ninth kill
            more = -(-left // KILLS_IN_A_CHAIN)
            chains += pool.map(chain, range(len(chains), len(chains) + more))
    places = Counter(kill.rsplit(":", 1)[0] for c in chains for kill in c["killed"] if ":" in kill)
    total = sum(len(c["killed"]) for c in chains)
    result = {
        "command": f"make crash-test N={kills}",
        "kills": total,
        "kills_by_method": dict(Counter(c["method"] for c in chains for _ in c["killed"])),
        "kills_at_failpoints": dict(sorted(places.items())),
        "kills_at_random_times": total - sum(places.values()),
        "chains": len(chains),
        "chains_that_differ": sum(not c["same"] for c in chains),
        "leftover_files": sum(c["leftovers"] for c in chains),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "crash-test.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{total} kills in {len(chains)} chains, {result['chains_that_differ']} of them differ")
    return int(result["chains_that_differ"] + result["leftover_files"] > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
