"""`stein reproduce uci`: its rows on a real table at a small size, and what it writes about them."""

import json
import os
import shutil

import numpy as np
import pytest
from scipy.stats import betabinom

from stein import datasets, defaults
from stein.paper import uci
from stein.sklearn import SteinRegressor

real = pytest.mark.skipif(
    not os.environ.get("STEIN_DATA"), reason="needs the real data sets: set STEIN_DATA to a directory that has them"
)


@pytest.fixture
def small(monkeypatch):
    """Two splits of one table, and a setting that trains in a second."""
    setting = defaults.for_table("regression", 300)._replace(particles=2, hidden=(8,), steps=100)
    monkeypatch.setattr(defaults, "for_table", lambda *size: setting)
    monkeypatch.setattr(uci, "SPLITS", 2)
    monkeypatch.setattr(uci, "SETS", ("yacht",))


def lines(folder, row):
    return [json.loads(line) for line in uci.Cell(row, "yacht").place(folder).read_text().splitlines()]


@pytest.mark.long
@real
def test_rows_share_trials_and_are_those_of_the_estimator(tmp_path, small):
    """A deep ensemble with the prior and spread of the default's trials is the one that tries for itself, to the byte.
    Catches another seed, the training rows for the test rows, and numbers that are not in the target's units."""
    (tmp_path / "cells").mkdir()
    for row in (uci.OURS, "de", uci.CONFORMAL, "sklearn MLP", "gradient boosting"):
        uci.compute(tmp_path, uci.Cell(row, "yacht"))
    train, test = datasets.load_uci("yacht", 1)
    alone = SteinRegressor(method="de", random_state=1).fit(train.x, train.y)
    found = lines(tmp_path, "de")[1]
    assert found["nll"] == alone.prediction(test.x).scores(test.y)["nll"]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((alone.predict(test.x) - test.y) ** 2)))
    assert lines(tmp_path, uci.OURS)[1]["prior"] == found["prior"] == alone.config_.prior.scale
    conformal = lines(tmp_path, uci.CONFORMAL)[0]
    assert (conformal["test"], conformal["calibration"]) == (len(test.y), round(0.15 * len(train.y)))
    before = (tmp_path / "cells").stat().st_mtime_ns, [path.read_bytes() for path in (tmp_path / "cells").iterdir()]
    uci.compute(tmp_path, uci.Cell("de", "yacht"))  # nothing is left to do
    assert ((tmp_path / "cells").stat().st_mtime_ns, [p.read_bytes() for p in (tmp_path / "cells").iterdir()]) == before
    uci.write(tmp_path, "stein reproduce uci")
    table = (tmp_path / "table.md").read_text()
    assert (
        f"| gradient boosting | 2 | {np.mean([r['nll'] for r in lines(tmp_path, 'gradient boosting')]):.3f} ±" in table
    )
    assert "| *NUTS, published* | | -0.4 | 0.7 |" in table
    assert "of 2 splits outside the central 99.9 %" in table
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_words_about_differences(tmp_path, monkeypatch):
    """Ours is 0.1 better than one row and 0.2 worse than another, on every split. Catches the wrong sign, and the bar
    that is missed and called reached."""
    monkeypatch.setattr(uci, "SETS", ("yacht",))
    (tmp_path / "cells").mkdir()
    noise = np.random.default_rng(0).normal(scale=0.3, size=20)
    for row, shift in ((uci.OURS, 0.0), ("de", 0.1), ("random forest", -0.2), ("sghmc", 0.4)):
        with uci.Cell(row, "yacht").place(tmp_path).open("w") as file:
            for split in range(20):
                numbers = dict.fromkeys(uci.COLUMNS, 0.8) | {"nll": 0.5 + shift + noise[split] + 0.01 * (split % 2)}
                file.write(json.dumps({"split": split} | numbers) + "\n")
    uci.write(tmp_path, "stein reproduce uci")
    table = (tmp_path / "table.md").read_text()
    assert "| yacht | de | -0.100 ± 0.000 | better | 0.000 |" in table
    assert "| yacht | random forest | +0.200 ± 0.000 | worse | 1.000 |" in table
    assert "| yacht | sghmc | de | 0.300 ± 0.000 | 0.000 ± 0.000 |" in table
    assert "| yacht | RMSE | 0.800 | 0.65 | missed |" in table
    assert "| yacht | NLL | " in table
    shutil.rmtree(tmp_path / "cells")  # as in a new checkout, which has the table alone
    uci._restore(tmp_path)
    uci.write(tmp_path, "stein reproduce uci")
    assert (tmp_path / "table.md").read_text() == table


def test_coverage_is_judged_by_its_law():
    """48 rows to calibrate for 90 %: k = 45. Catches n for n + 1, and one tail for two."""
    law = betabinom(100, 45, 4)
    for covered in range(101):
        inside = uci._is_central({"covered": covered, "test": 100, "calibration": 48})
        assert inside == (law.cdf(covered) > 0.0005 and law.sf(covered - 1) > 0.0005)
    assert not uci._is_central({"covered": 60, "test": 100, "calibration": 48})
    assert uci._is_central({"covered": 92, "test": 100, "calibration": 48})
    assert not uci._is_central({"covered": 400, "test": 400, "calibration": 800})


def test_an_unknown_row_is_named():
    with pytest.raises(ValueError, match="--methods w-svg: must be one of fw-svgd, de"):
        uci.check(["w-svg"])
