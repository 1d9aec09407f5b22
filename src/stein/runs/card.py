"""The model card of a run: what the ensemble is, what it was trained on, how good it is, what it is not good for."""

import json
import math
from pathlib import Path
from typing import Any

from stein import __version__, rules
from stein.runs.build import Parts, resolved
from stein.runs.schema import IMAGES, Config


def card(config: Config, parts: Parts, numbers: dict[str, Any], alive: list[int]) -> str:
    """The text of card.md; ``numbers`` are those of the last logged step."""
    config = resolved(config, parts.data.kind, parts.data.rows)
    method = rules.lookup(config.method.name)
    source = config.data.name or config.data.file or config.data.inputs
    table = "\n".join(f"| {name} | {value:.6g} |" for name, value in numbers.items())
    stochastic = " with noise" if config.method.stochastic else ""
    members = str(config.method.particles)
    if config.method.draws:
        members = f"the last {config.method.draws} draws of each of {members} chains"
    return f"""{_front_matter(config, parts, numbers)}
# An ensemble of {len(alive)} networks

| | |
|---|---|
| method | {method.name}{stochastic}: {method.summary} |
| data | {source}, {parts.data.rows} training points |
| model | {config.model.name}, likelihood {parts.likelihood.name}, prior {config.prior.name}({config.prior.scale}) |
| training | {numbers.get("step", 0)} steps, seed {config.train.seed}, {config.train.precision} |
| members | {members}, of which alive: {len(alive)} |
| written by | stein {__version__} |

## Numbers at the last step

| metric | value |
|---|---|
{table}

`log_likelihood` and `log_prior` are means over members and the last logged chunk; `test_*` are on held-out data, and
`validation_*` on the part that early stopping and the best checkpoint go by. All are in the units of the targets.

## Limits

- The spread of the members is an estimate of what the data leave open under this model and prior, not a guarantee;
  far from the data it follows the prior.
- Trained on the data above only: inputs of another kind, scale or preprocessing are out of distribution.
- Are the members draws from the posterior? For {method.name}: "{method.posterior}" (`stein methods` explains).

`ensemble.safetensors` holds the weights, members along the first axis of every array, and the whole config as metadata.
"""


def _front_matter(config: Config, parts: Parts, numbers: dict[str, Any]) -> str:
    """The head of the card, which model hubs read: the task, and the numbers on the test points.

    Values are written as JSON, which is YAML too. The licence is not ours to choose: who publishes the model adds it.
    """
    source = Path(config.data.name or config.data.file or config.data.inputs).name
    what = "image" if config.data.name in IMAGES or parts.data.train.x.ndim > 2 else "tabular"
    task = f"{what}-{'classification' if parts.data.kind == 'categorical' else 'regression'}"
    metrics = [
        {"type": name.removeprefix("test_"), "value": value}
        for name, value in numbers.items()
        if name.startswith("test_") and math.isfinite(value)
    ]
    data = {"name": source, "type": what, "split": "test"}
    head = {
        "library_name": "stein",
        "pipeline_tag": task,
        "tags": ["stein", "ensemble", "uncertainty", task],
        "model-index": [
            {
                "name": parts.data.target or source,
                "results": [{"task": {"type": task}, "dataset": data, "metrics": metrics}],
            }
        ],
    }
    if not metrics:
        del head["model-index"]
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    return "\n".join(["---", *lines, "---"])
