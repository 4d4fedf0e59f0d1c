"""list, show and verify: what they say of a folder, without Paddle, and changing nothing."""

from __future__ import annotations

import json
import os
import pty
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from .conftest import REPO, damage, run

STEPS = [2, 3, 4, 6, 8, 9]


def snapshot(folder: Path) -> Dict[str, Any]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(folder.rglob("*"))
    }


def test_list_shows_every_checkpoint_and_what_names_it(save_dir: Path) -> None:
    before = snapshot(save_dir)
    found = run("list", save_dir, "--json", process=True).json
    assert found["save_dir"] == str(save_dir)
    assert [entry["step"] for entry in found["checkpoints"]] == STEPS
    last = found["checkpoints"][-1]
    assert last["marks"] == ["latest", "finished"] and last["reasons"] == ["epoch", "final"]
    assert (last["epoch"], last["batch"], last["fault"]) == (3, 0, None)
    assert set(last["metrics"]) == {"loss", "acc"} and last["size_bytes"] > 1000
    table = run("list", save_dir).out
    assert "latest finished" in table and "6 in " in table
    assert snapshot(save_dir) == before


def test_list_says_what_is_damaged_set_aside_and_left_over(save_dir: Path) -> None:
    (save_dir / "step_00000004" / "manifest.json").write_bytes(b"{")
    (save_dir / ".tmp-5-abc").mkdir()
    bad = save_dir / ".bad-step_00000003-1"
    (save_dir / "step_00000003").rename(bad)
    (bad / ".why.txt").write_text("a bit was \x1b[31mflipped\n")
    found = run("list", save_dir, "--json").json
    assert [bool(entry["fault"]) for entry in found["checkpoints"]] == [False, True] + 3 * [False]
    assert [item["why"] for item in found["aside"]] == ["a bit was \x1b[31mflipped"]
    assert found["leftovers"] == [str(save_dir / ".tmp-5-abc")]
    shown = run("list", save_dir).out
    assert "damaged" in shown and "1 leftover(s)" in shown
    assert "\\x1b[31mflipped" in shown and "\x1b" not in shown


def test_a_thousand_checkpoints_are_listed_in_no_time(trained: Path, tmp_path: Path) -> None:
    """Against the time that plainly reading the same manifests takes, in the same process."""
    template = trained / "step_00000009"
    for step in range(1000):
        folder = tmp_path / "run" / f"step_{step:08d}"
        folder.mkdir(parents=True)
        manifest = json.loads((template / "manifest.json").read_bytes())
        manifest["position"]["step"] = step
        (folder / "manifest.json").write_bytes(_resealed(manifest))
    from paddle_resume.checkpoint.store import Store
    from paddle_resume.cli.contents import read_contents

    def plainly() -> List[Any]:
        return [
            json.loads(path.read_bytes()) for path in (tmp_path / "run").glob("*/manifest.json")
        ]

    plainly()
    ours, peer = [], []
    for _ in range(5):
        begun = time.process_time()
        assert len(plainly()) == 1000
        peer.append(time.process_time() - begun)
        begun = time.process_time()
        contents = read_contents(Store(tmp_path / "run"))
        ours.append(time.process_time() - begun)
        assert not any(found.fault for found in contents.checkpoints)
    assert min(ours) < 12 * min(peer), (min(ours), min(peer))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert len(run("list", tmp_path / "run", "--json", process=True).json["checkpoints"]) == 1000
    print("list of 1,000:", resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, "s CPU")


def _resealed(manifest: Dict[str, Any]) -> bytes:
    from paddle_resume.checkpoint import manifest as manifests

    del manifest["checksum"]
    manifest["checksum"] = manifests._checksum(manifest)
    return manifests.dump_json(manifest, "manifest.json")


def test_show_tells_origin_parts_tensors_and_values(save_dir: Path) -> None:
    path = save_dir / "step_00000008"
    found = run("show", path, "--json", "--tensors", "--state", process=True).json
    assert found["position"]["step"] == 8 and found["parent"][1] == 6
    assert set(found["files"]) == {"model.pdparams", "model.pdopt", "extra.pdparams", "state.json"}
    names = found["parts"]["model"]["names"]
    assert all(entry["dtype"] == "float32" for entry in names.values())
    assert found["parts"]["loop"]["state"]["step"] == 8
    shown = run("show", save_dir / "latest", "--tensors", "--state").out
    assert "3 completed, 0 batches" in shown and next(iter(names)) in shown and "loop.step" in shown
    for way in (path / "model", path / "model.pdparams", f"{path}/"):
        assert run("show", way, "--json").json["path"] == str(path)


def test_show_refuses_a_damaged_one(save_dir: Path) -> None:
    damage(save_dir / "step_00000008" / "model.pdopt")
    assert "model.pdopt is damaged" in run("show", save_dir / "step_00000008", code=1).err


def test_verify_is_content_with_a_good_folder_and_changes_nothing(save_dir: Path) -> None:
    before = snapshot(save_dir)
    assert "6 good, 0 damaged (every byte read)" in run("verify", save_dir, process=True).out
    assert "1 good" in run("verify", save_dir / "latest").out
    assert snapshot(save_dir) == before


def test_verify_names_every_file_what_it_holds_and_why(save_dir: Path) -> None:
    four, six = save_dir / "step_00000004", save_dir / "step_00000006"
    damage(four / "model.pdparams")
    (four / "state.json").unlink()
    (four / "extra.txt").write_text("mine")
    (six / "manifest.json").write_bytes(b"")
    before = snapshot(save_dir)
    found = run("verify", save_dir, "--json", code=1).json["checkpoints"]
    assert [item["good"] for item in found] == [True, True, False, False, True, True]
    faults = {item["file"]: item for item in found[2]["faults"]}
    assert set(faults) == {"manifest.json", "model.pdparams", "state.json"}
    assert "extra.txt" in faults["manifest.json"]["why"]
    assert faults["model.pdparams"]["holds"] == "weights"
    assert "is damaged: its content has the checksum" in faults["model.pdparams"]["why"]
    assert "is missing" in faults["state.json"]["why"]
    assert found[3]["faults"][0]["file"] == "manifest.json"
    shown = run("verify", save_dir, code=1).out
    assert "4 good, 2 damaged" in shown and "model.pdparams (weights)" in shown
    assert snapshot(save_dir) == before


def test_verify_by_size_reads_no_contents(save_dir: Path) -> None:
    path = save_dir / "step_00000004" / "model.pdparams"
    damage(path)
    run("verify", save_dir, "--level", "size")
    path.write_bytes(path.read_bytes()[:-1])
    assert "bytes;" in run("verify", save_dir, "--level", "size", code=1).out
    assert "expected" in run("verify", save_dir, "--level", "all", code=2).err


def test_verify_draws_a_bar_on_a_terminal(save_dir: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "paddle_resume", "verify", str(save_dir)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    drawn = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        drawn += piece
    os.close(master)
    assert process.wait(60) == 0 and "━".encode() in drawn


def test_a_key_makes_the_unsigned_damaged(save_dir: Path) -> None:
    env = {"RUN_KEY": "0123456789abcdef0123"}
    err = run("verify", save_dir, "--sign-key", "RUN_KEY", code=2).err
    assert "--sign-key 'RUN_KEY': the environment variable RUN_KEY is not set" in err
    assert "no signature" in run("verify", save_dir, "--sign-key", "RUN_KEY", code=1, env=env).out
    listed = run("list", save_dir, "--sign-key", "RUN_KEY", "--json", env=env).json
    assert all("no signature" in entry["fault"] for entry in listed["checkpoints"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "rum1"), "Did you mean {0}/run1?"),
        (("list", "rum1/deeper"), "Did you mean {0}/run1?"),
        (("list", "run1/step_00000008"), "its folder is expected: run1"),
        (("list", "."), "Did you mean run1?"),
        (("list", "run1/events.jsonl"), "is no folder"),
        (("show", "run1"), "The newest is run1/step_00000009"),
        (("show", "run1/step_00000007"), "step_00000008"),
        (("diff", "run1/latest", "run1/step_0000008"), "Did you mean"),
        (("verify", "nothing-like-it"), "holds nothing of such a name"),
        (("prune", "rum1", "--keep", "2"), "Did you mean {0}/run1?"),
    ],
)
def test_a_wrong_path_is_told_what_was_meant(save_dir: Path, arguments: Any, said: str) -> None:
    folder = save_dir.parent
    result = run(*arguments, cwd=folder, code=2)
    assert said.format(folder) in result.err and not result.out


def test_an_empty_folder_lists_nothing_and_has_nothing_to_verify(tmp_path: Path) -> None:
    assert "holds no checkpoints" in run("list", tmp_path).out
    assert run("list", tmp_path, "--json").json["checkpoints"] == []
    assert "holds no checkpoints" in run("verify", tmp_path, code=2).err


def test_help_imports_nothing_that_is_slow() -> None:
    code = (
        "import sys, typer.testing as t; from paddle_resume.cli.main import app\n"
        "r = t.CliRunner().invoke(app, ['--help']); assert r.exit_code == 0, r\n"
        "assert not {'paddle', 'numpy', 'xxhash', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=60)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_folders(save_dir: Path, shell: str) -> None:
    env = {"_PADDLE_RESUME_COMPLETE": f"complete_{shell}"}
    env["_TYPER_COMPLETE_ARGS"] = f"paddle-resume show {save_dir}/step_0000000"
    env["COMP_WORDS"], env["COMP_CWORD"] = env["_TYPER_COMPLETE_ARGS"], "2"
    env["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    calls = "from paddle_resume.cli.main import app; app(prog_name='paddle-resume')"
    call = [sys.executable, "-c", f"import sys; sys.argv[0] = 'paddle-resume'; {calls}"]
    done = subprocess.run(
        call, cwd=REPO, env={**os.environ, **env, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    for step in STEPS:
        assert f"step_{step:08d}" in done.stdout
