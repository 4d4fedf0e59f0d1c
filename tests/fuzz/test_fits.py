"""Real fits on states that say anything, with checksums that fit: an error for people, or a fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage.damages import forge
from fit.models import fit, make
from hypothesis import given
from hypothesis import strategies as st

import paddle_resume as pr
from fuzz.inputs import changed_json
from fuzz.profiles import examples
from paddle_resume.checkpoint.store import Store


def savers(save_dir: Path) -> Any:
    return pr.AutoResume(save_dir), pr.PeriodicSaver(save_dir, snapshot_step=2, async_save=False)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A save_dir whose only checkpoint is in the middle of an epoch."""
    store = Store(tmp_path_factory.mktemp("unfinished") / "run")
    fit(make(), list(savers(store.save_dir)))
    for path in store.checkpoints()[1:]:
        shutil.rmtree(path)
    (store.save_dir / "finished.json").unlink()
    return store.save_dir


@examples(12)
@given(data=st.data())
def test_a_fit_on_a_state_that_says_anything(
    unfinished: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    save_dir = tmp_path_factory.mktemp("changed") / "run"
    shutil.copytree(unfinished, save_dir, symlinks=True)
    (checkpoint,) = Store(save_dir).checkpoints()
    state = json.loads((checkpoint / "state.json").read_bytes())
    forge(checkpoint, "state.json", json.dumps(data.draw(changed_json(state))).encode())
    try:
        fit(make(), list(savers(save_dir)))
    except pr.ResumeError:
        assert checkpoint.is_dir(), "it is the only one, and it is gone"
    shutil.rmtree(save_dir)
