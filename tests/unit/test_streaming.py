"""The columns of predictions."""

from typing import Any

import numpy as np
import pytest

from stein.predictions import ClassPrediction, RegressionPrediction
from stein.runs import streaming
from stein.runs.calibrated import Calibration
from stein.runs.exported import Exported

CLASSES = ClassPrediction(np.log([[[0.9, 0.1]]]), ("a", "b"))
NUMBERS = RegressionPrediction(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))


def written(folder: Any, target: str, prediction: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines for one row with an id column called ``name``."""
    finished: Any = object.__new__(Exported)
    finished.__dict__.update(labels=("a", "b"), target=target, calibration=None, units=None)
    finished.inputs, finished.predict_prepared = (lambda x: x), (lambda x: prediction)
    rows = streaming._Rows({name: ["K1"]}, np.zeros((1, 1)), [""], 1.0)
    monkeypatch.setattr(streaming, "_rows", lambda *_: iter([rows]))
    streaming.write_predictions(finished, folder / "t.csv", folder / "p.csv")
    return (folder / "p.csv").read_text().splitlines()


@pytest.mark.parametrize("taken", ["entropy", "notes", "unusual", "p(a)", "set_90"])
def test_a_target_of_our_own_names_is_written_all_the_same(taken, tmp_path, monkeypatch):
    """Catches the class replaced by a number or a note."""
    header, row = written(tmp_path, taken, CLASSES, "id", monkeypatch)
    assert header == f"id,{taken} (class),p(a),p(b),set_90,entropy,epistemic,notes"
    assert row.startswith("K1,a,0.9")
    assert written(tmp_path, "kind", CLASSES, "id", monkeypatch)[0].startswith("id,kind,p(a)")


@pytest.mark.parametrize("taken", ["mean", "notes"])
def test_an_id_column_of_our_own_names_is_written_all_the_same(taken, tmp_path, monkeypatch):
    """Catches ids replaced by predictions."""
    header, row = written(tmp_path, "y", NUMBERS, taken, monkeypatch)
    assert header.startswith(f"{taken} (id),mean,std,")
    assert row.startswith("K1,0.0,1.0,")


def test_a_row_far_outside_is_unusual_however_sure_the_members_are():
    """Networks are certain far away. Catches a flag by the epistemic part alone."""
    finished: Any = object.__new__(Exported)
    finished.__dict__.update(labels=("a", "b"), target="y", units=None, calibration=Calibration(9, [[1.0]], 0.5))
    three = ClassPrediction(np.log(np.tile([0.9, 0.1], (1, 3, 1))), ("a", "b"))
    columns = streaming.answers(finished, three, 0.9, None, np.array([False, True]))  # the third row fills the block
    assert columns["unusual"] == ["false", "true", "false"]
