"""Real trainings on damaged checkpoints: the older one is used, and the end is the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, List, NamedTuple

import pytest

from damage import damages, places

TRAINING = Path(__file__).resolve().parents[1] / "smoke" / "training.py"
ROOT = TRAINING.parents[2]
SEED = 4


class Killed(NamedTuple):
    """A training that was killed, and what an uninterrupted one ends with."""

    save_dir: Path
    lines: Path
    truth: List[Any]


def train(out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(TRAINING), str(out), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def lines(path: Path) -> List[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    assert train(folder / "whole").returncode == 0
    # From the first epoch on each third step is saved: the newest two are steps 12 and 15.
    save_dir = folder / "run"
    assert train(folder / "lines", "--save-dir", str(save_dir), "--die-at", "17").returncode == -9
    return Killed(save_dir, folder / "lines", lines(folder / "whole"))


def resume(killed: Killed, folder: Path, spoil: Any) -> "subprocess.CompletedProcess[str]":
    shutil.copytree(killed.save_dir, folder / "run", symlinks=True)
    shutil.copy(killed.lines, folder / "lines")
    spoil(checkpoints(folder / "run"))
    return train(folder / "lines", "--save-dir", str(folder / "run"))


def checkpoints(save_dir: Path) -> List[Path]:
    return sorted(save_dir.glob("step_*"))


def assert_as_if_nothing_had_happened(killed: Killed, folder: Path) -> None:
    found = lines(folder / "lines")
    assert found[-1] == killed.truth[-1], "other final weights"
    truth = {tuple(line[:-1]): line[-1] for line in killed.truth}
    assert {tuple(line[:-1]): line[-1] for line in found} == truth
    assert len(found) > len(truth), "the start was from nothing"


def flip(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def flip_a_weight(found: List[Path]) -> None:
    path = found[-1] / "model.pdparams"
    flip(path, places.classes(path)["tensor data"][0][0])


def test_a_flipped_bit_of_a_weight_costs_one_checkpoint(killed: Killed, tmp_path: Path) -> None:
    done = resume(killed, tmp_path, flip_a_weight)
    assert done.returncode == 0, done.stderr
    assert_as_if_nothing_had_happened(killed, tmp_path)
    (bad,) = (tmp_path / "run").glob(".bad-*")
    why = (bad / ".why.txt").read_text()
    assert "model.pdparams is damaged: its content has the checksum" in why
    assert f"not used: {why.strip()}" in done.stderr
    assert f"is kept as {bad.name}" in done.stderr


def say_newer(found: List[Path]) -> None:
    path = found[-1] / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))


def cut_all(found: List[Path]) -> None:
    for path in found:
        os.truncate(path / "state.json", 100)


@pytest.mark.long(3)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [(say_newer, "upgrade paddle_resume"), (cut_all, "state.json has 100 bytes")],
)
def test_what_cannot_be_gone_round_fails_at_every_start(
    killed: Killed, tmp_path: Path, spoil: Any, said: str
) -> None:
    first = resume(killed, tmp_path, spoil)
    run = tmp_path / "run"
    before = sorted(path.name for path in run.iterdir())
    assert checkpoints(run) == [run / path.name for path in checkpoints(killed.save_dir)]
    second = train(tmp_path / "lines", "--save-dir", str(run))
    for done in (first, second):
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1] or "CheckpointError: every" in done.stderr
        assert said in done.stderr
    assert sorted(path.name for path in run.iterdir()) == before
    assert lines(tmp_path / "lines") == lines(killed.lines), "something was trained"


@pytest.mark.long(3)
def test_a_sample_of_all_damages_costs_one_checkpoint(killed: Killed, tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    newest = checkpoints(killed.save_dir)[-1]
    tried = 0
    for path in sorted(newest.iterdir()):
        every = sorted(places.classes(path).items())
        for kind, ranges in rnd.sample(every, min(4, len(every))):
            at, bit = rnd.randrange(*rnd.choice(ranges)), rnd.randrange(8)
            if "space" in kind or kind == "tail" and path.suffix == ".json":
                continue
            folder = tmp_path / str(tried)
            done = resume(killed, folder, lambda f, p=path, a=at, b=bit: flip(f[-1] / p.name, a, b))
            assert done.returncode == 0, (path, kind, at, bit, done.stderr)
            assert_as_if_nothing_had_happened(killed, folder)
            assert len(list((folder / "run").glob(".bad-*"))) == 1, (path, kind, at, bit)
            shutil.rmtree(folder)
            tried += 1
    for what, action in damages._KINDS.items():
        folder = tmp_path / str(tried)
        name = rnd.choice(sorted(path.name for path in newest.iterdir()))
        if "older" in what:
            continue
        done = resume(killed, folder, lambda f, n=name, act=action: act(f[-1] / n))
        assert done.returncode == 0, (what, name, done.stderr)
        assert_as_if_nothing_had_happened(killed, folder)
        assert len(list((folder / "run").glob(".bad-*"))) == 1, (what, name)
        shutil.rmtree(folder)
        tried += 1
    print(
        f"\nreal trainings on damaged checkpoints: {tried} tried, seed {SEED}, all to the same end"
    )
