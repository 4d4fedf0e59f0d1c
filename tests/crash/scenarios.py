"""What is done to a save_dir while strace looks on: a function from a folder to nothing.

Each says what it has reached: `mark("saved 3")` once nothing may take step 3 back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict

from paddle_resume.checkpoint.store import Store

from .run import Run

__all__ = ["SAVE_DIR", "SCENARIOS", "Scenario", "act", "save_dir_in"]

SAVE_DIR = "output/run1"
"""It has to be made with its parents."""

Marker = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """One thing to record.

    Attributes:
        prepare: makes the folder as it is before; all of that is on the disk for certain.
        act: what is recorded.
        resume_from: of the starts before and after the power cut.
        best: whether the run keeps the best.
    """

    prepare: Callable[[Path], None]
    act: Callable[[Path, Marker], None]
    resume_from: str = "auto"
    best: bool = False


def save_dir_in(root: Path) -> Path:
    """The save_dir in a folder that is there already."""
    return root / SAVE_DIR


def _nothing(root: Path) -> None:
    """A machine without a run."""


def _saved(count: int, best: bool = False) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        run = Run(save_dir_in(root), best=best)
        run.begin()
        for number in range(count):
            run.save(_accuracy(number) if best else None)
        run.close()

    return prepare


def _accuracy(number: int) -> float:
    return (0.5, 0.3, 0.2, 0.7, 0.6)[number % 5] + number // 5


def _save(count: int, **how: Any) -> Callable[[Path, Marker], None]:
    best = bool(how.get("best"))

    def act(root: Path, mark: Marker) -> None:
        run = Run(save_dir_in(root), **how)
        mark("opened")
        run.begin()
        mark("begun")
        for _ in range(count):
            run.save(_accuracy(run.step) if best else None)
            mark(f"done {run.step}")
        run.close()

    return act


def _finish(root: Path, mark: Marker) -> None:
    run = Run(save_dir_in(root))
    run.begin()
    run.session.finish(run.step, "epochs")
    mark("finished")
    run.save()
    mark(f"done {run.step}")
    run.session.finish(run.step, "epochs")
    run.close()


def _interrupted(root: Path) -> None:
    """Leftovers of a save, a deletion and a replacement."""
    _saved(3)(root)
    folder = save_dir_in(root)
    for name in (".tmp-4-1-aaaa", ".tmp-delete-step_00000001-1-bbbb"):
        (folder / name).mkdir()
        (folder / name / "model.pdparams").write_bytes(b"half")
    (folder / ".tmp-finished.json-1-cccc").write_bytes(b"{")


def _damaged(root: Path) -> None:
    _saved(3)(root)
    path = save_dir_in(root) / "step_00000003" / "model.pdopt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _finished(best: bool) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        _saved(3, best)(root)
        store = Store(save_dir_in(root))
        run_id = store.read_manifest(store.checkpoints()[-1]).run_id
        store.write_json("finished.json", {"step": 3, "why": "epochs", "run_id": run_id})

    return prepare


SCENARIOS: Dict[str, Scenario] = {
    "first save": Scenario(_nothing, _save(1)),
    "save and retention": Scenario(_saved(2), _save(2)),
    "save in the background": Scenario(_saved(2), _save(2, in_background=True)),
    "best": Scenario(_saved(3, best=True), _save(3, best=True), best=True),
    "end": Scenario(_saved(2), _finish),
    "leftovers": Scenario(_interrupted, _save(1)),
    "damaged newest": Scenario(_damaged, _save(1)),
    "from nothing on purpose": Scenario(_saved(2), _save(1, resume_from="never"), "never"),
    "another line": Scenario(_finished(False), _save(1, resume_from="step:2"), "step:2"),
    "another line with a best": Scenario(
        _finished(True), _save(1, resume_from="step:2", best=True), "step:2", best=True
    ),
}


def act(name: str, root: Path, marks: Path) -> None:
    """Plays a scenario; for the process that is traced."""
    handle = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def mark(text: str) -> None:
        os.write(handle, text.encode() + b"\n")

    save = Store.save

    def marked(self: Store, *args: Any, **kwargs: Any) -> Any:
        found = save(self, *args, **kwargs)
        mark(f"saved {found[0].name}")  # from here on it is promised
        return found

    Store.save = marked  # type: ignore[method-assign]
    SCENARIOS[name].act(root, mark)
    mark("over")
