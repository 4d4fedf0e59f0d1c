"""diff tells what differs and by how much; prune deletes nothing that is needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import List

import numpy as np
import paddle
import pytest

import paddle_resume as pr
from paddle_resume.cli.tensors import differences
from paddle_resume.cli.values import changes

from .conftest import REPO, damage, run


def steps(save_dir: Path) -> List[int]:
    return [int(path.name[5:]) for path in sorted(save_dir.glob("step_*"))]


def test_a_checkpoint_does_not_differ_from_itself(save_dir: Path) -> None:
    assert "nothing differs" in run("diff", save_dir / "latest", save_dir / "step_00000009").out


def test_diff_tells_which_and_by_how_much(save_dir: Path) -> None:
    a, b = save_dir / "step_00000008", save_dir / "step_00000009"
    found = run("diff", a, b, "--json", code=1, process=True).json
    mine, other = (paddle.load(str(path / "model.pdparams")) for path in (a, b))
    by_name = {entry["tensor"]: entry for entry in found["tensors"]}
    for name in mine:
        one, two = mine[name].numpy().astype("float64"), other[name].numpy().astype("float64")
        entry = by_name[f"model/{name}"]
        assert entry["differ"] == int((one != two).sum()) and entry["size"] == one.size
        assert entry["max_abs"] == np.abs(one - two).max()
    values = {entry["value"]: (entry["a"], entry["b"]) for entry in found["state"]}
    assert values["position.step"] == ("8", "9")
    shown = run("diff", a, b, code=1).out
    assert "position.step" in shown and "differ" in shown


def test_tensors_of_every_kind_are_compared() -> None:
    one = {
        "same": np.float32([1, np.nan]),
        "zeros": np.float32([0.0, 1.0]),
        "nan": np.float32([1.0, 2.0]),
        "half": np.uint16([0x3F80, 0x4000]),  # bfloat16 1 and 2
        "ints": np.int64([2**62, 5]),
        "flags": np.array([True, False]),
        "complex": np.complex64([1 + 1j]),
        "shape": np.zeros((2, 3)),
        "gone": np.zeros(2),
        "text": np.array(["a", "b"]),
        "far": np.float64([1e308]),
        "empty": np.zeros((0, 3)),
    }
    other = {
        "same": np.float32([1, np.nan]),
        "zeros": np.float32([-0.0, 1.0]),
        "nan": np.float32([np.nan, 2.5]),
        "half": np.uint16([0x3F80, 0x4040]),
        "ints": np.int64([2**62, 7]),
        "flags": np.array([True, True]),
        "complex": np.complex64([1 + 2j]),
        "shape": np.zeros((3, 2)),
        "new": np.zeros(2),
        "text": np.array(["a", "c"]),
        "far": np.float64([-1e308]),
        "empty": np.zeros((0, 3)),
    }
    found = {entry["tensor"]: entry for entry in differences(one, other)}
    assert set(found) == set(one) - {"same", "empty"} | {"new"}
    assert (found["zeros"]["differ"], found["zeros"]["max_abs"]) == (1, 0.0)
    assert found["nan"]["max_abs"] == 0.5 and found["nan"]["what"].endswith("0 in A, 1 in B")
    assert (found["half"]["max_abs"], found["half"]["max_rel"]) == (1.0, 0.5)
    assert found["ints"]["max_abs"] == 2 and found["flags"]["max_abs"] == 1
    assert found["complex"]["max_abs"] == 1.0
    assert "[2, 3], then float64 [3, 2]" in found["shape"]["what"]
    assert found["gone"]["what"].startswith("only in A") and "only in B" in found["new"]["what"]
    assert found["text"]["differ"] == 1 and found["far"]["max_abs"] is None
    json.dumps(list(found.values()), allow_nan=False)


def test_values_of_every_kind_are_compared() -> None:
    one = {
        "a": 1,
        "b": {"c": True},
        "list": list(range(20)),
        "gone": None,
        "deep": [{"x": 1}],
        "t": "x" * 500,
    }
    other = {
        "a": 1.0,
        "b": {"c": 1},
        "list": [5, *range(1, 20)],
        "new": {},
        "deep": [{"x": 2}],
        "t": "y" * 500,
    }
    found = {entry["value"]: (entry["a"], entry["b"]) for entry in changes(one, other)}
    assert found == {
        "a": ("1", "1.0"),
        "b.c": ("True", "1"),
        "list": ("20 values", "20 values, 1 of them others"),
        "gone": ("None", "(missing)"),
        "deep[0].x": ("1", "2"),
        "t": ("500 characters", "500 characters, others"),
        "new": ("(missing)", "{}"),
    }
    assert changes(one, one) == []


def test_prune_keeps_the_newest_and_tells_why(save_dir: Path) -> None:
    (save_dir / ".tmp-7-abc").mkdir()
    planned = run("prune", save_dir, "--keep", 2, "--dry-run", "--json").json
    assert steps(save_dir) == [2, 3, 4, 6, 8, 9] and (save_dir / ".tmp-7-abc").exists()
    assert planned["deleted"] == [] and len(planned["delete"]) == 4
    done = run("prune", save_dir, "--keep", 2, "--json").json
    assert done["deleted"] == planned["delete"] and steps(save_dir) == [8, 9]
    assert not (save_dir / ".tmp-7-abc").exists()
    lines = [json.loads(line) for line in (save_dir / "events.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "prune"] == [2, 3, 4, 6]
    assert pr.load(save_dir / "latest")["model"]


def test_prune_keeps_milestones_the_best_and_the_damaged(save_dir: Path) -> None:
    (save_dir / "best").symlink_to("step_00000004")
    (save_dir / "step_00000002" / "manifest.json").write_bytes(b"{")
    kept = run("prune", save_dir, "--keep", 1, "--keep-every-epoch", 2, "--json").json["kept"]
    assert {Path(path).name: why for path, why in kept.items()} == {
        "step_00000002": "damaged",
        "step_00000004": "best",
        "step_00000006": "the end of every 2 epochs",
        "step_00000009": "one of the newest 1",
    }
    assert steps(save_dir) == [2, 4, 6, 9]


def test_prune_never_takes_the_only_good_one(save_dir: Path) -> None:
    for step in (4, 6, 8, 9):
        damage(save_dir / f"step_{step:08d}" / "model.pdparams")
    kept = run("prune", save_dir, "--keep", 2, "--json").json["kept"]
    assert kept[str(save_dir / "step_00000003")] == "the newest good one"
    assert steps(save_dir) == [3, 8, 9]


def test_prune_deletes_nothing_where_nothing_is_good(save_dir: Path) -> None:
    for path in save_dir.glob("step_*/model.pdparams"):
        damage(path)
    assert "nothing is deleted" in run("prune", save_dir, "--keep", 1, code=1).err
    assert steps(save_dir) == [2, 3, 4, 6, 8, 9]


def test_prune_keeps_the_newest_without_nan(save_dir: Path) -> None:
    from paddle_resume.checkpoint import manifest as manifests

    for step in (6, 8, 9):
        folder = save_dir / f"step_{step:08d}"
        state = json.loads((folder / "state.json").read_bytes())
        state["parts"]["health"]["not_finite"] = ["weight"]
        data = manifests.dump_json(state, "state.json")
        (folder / "state.json").write_bytes(data)
        sealed = json.loads((folder / "manifest.json").read_bytes())
        import xxhash

        sealed["files"]["state.json"] = {
            "size": len(data),
            "xxh3": xxhash.xxh3_128(data).hexdigest(),
        }
        del sealed["checksum"]
        sealed["checksum"] = manifests._checksum(sealed)
        (folder / "manifest.json").write_bytes(manifests.dump_json(sealed, "manifest.json"))
    kept = run("prune", save_dir, "--keep", 1, "--json").json["kept"]
    assert kept[str(save_dir / "step_00000004")] == "the newest without NaN"
    assert steps(save_dir) == [4, 9]


def test_prune_respects_the_lock(save_dir: Path) -> None:
    holds = textwrap.dedent(
        """
        import sys
        from paddle_resume.checkpoint.store import Store
        store = Store(sys.argv[1]); store.lock()
        print("in", flush=True); sys.stdin.readline(); store.unlock()
        """
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", holds, str(save_dir)],
        cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "in\n"
        err = run("prune", save_dir, "--keep", 1, code=1, process=True).err
        assert "is in use by" in err and f"pid {owner.pid}" in err
        assert steps(save_dir) == [2, 3, 4, 6, 8, 9]
        run("list", save_dir)
        run("verify", save_dir)
    finally:
        owner.communicate("\n", timeout=60)
    run("prune", save_dir, "--keep", 1)
    assert steps(save_dir) == [9]


@pytest.mark.parametrize("arguments", [("--keep", "0"), ("--keep", "two"), ()])
def test_prune_wants_a_number(save_dir: Path, arguments: "tuple[str, ...]") -> None:
    run("prune", save_dir, *arguments, code=2)
    assert steps(save_dir) == [2, 3, 4, 6, 8, 9]


def test_a_pruned_run_goes_on(save_dir: Path, tmp_path: Path) -> None:
    from fit.models import fit, make, weights

    for path in (save_dir / "latest", save_dir / "finished.json", save_dir / "step_00000009"):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    run("prune", save_dir, "--keep", 1)
    model = make()
    fit(model, pr.resume_callbacks(save_dir), epochs=4)
    straight = make()
    fit(straight, pr.resume_callbacks(tmp_path / "other"), epochs=4)
    assert weights(model) == weights(straight)
