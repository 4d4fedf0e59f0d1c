"""What must hold after a power cut or a kill: the next start tells, and it is the real one."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, Optional, Sequence, Set, Tuple

from paddle_resume.checkpoint.layout import parse_folder_name
from paddle_resume.errors import ResumeError

from .model import Content, Tree
from .run import KEPT, Run, assert_exact
from .scenarios import SAVE_DIR, Scenario, save_dir_in

__all__ = ["LOADED_WRONG", "LOST", "Fault", "Judge", "check_visible", "checkpoints_in", "lay_out"]

LOST, LOADED_WRONG, UNCLEAN = "lost", "loaded wrong", "not clean"
_NAMED = ("latest", "best", "best.json", "finished.json")
_SET_ASIDE = (".bad-", ".before-")
_MAY_STAY = {".lock", "events.jsonl", *_NAMED}

Files = FrozenSet[Tuple[str, Content]]


class Fault(AssertionError):
    """The promise is broken.

    Args:
        kind: `LOST`, `LOADED_WRONG` or `UNCLEAN`.
        what: a sentence.
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


def lay_out(tree: Tree, root: Path) -> None:
    """Puts a tree onto the real disk, in place of what is there."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path in sorted(tree):
        content, place = tree[path], root / path
        if content is None:
            place.mkdir()
        elif isinstance(content, str):
            place.symlink_to(content)
        else:
            place.write_bytes(content)


@dataclass(frozen=True)
class Answer:
    """What a start goes on from.

    Attributes:
        files: of the checkpoint; None for a start from nothing.
        rejected: names of the checkpoints that it found damaged.
    """

    files: Optional[Files]
    rejected: FrozenSet[str]


class Judge:
    """Tells whether what a crash has left is the old or the new.

    Args:
        scenario: what was going on.
        views: what the folder held, whole, before it and at each of its marks.
        root: a folder to try starts in; it does not exist yet.
    """

    def __init__(self, scenario: Scenario, views: Sequence[Tree], root: Path) -> None:
        self._scenario = scenario
        self._views = views
        self._root = root
        self._answers: Dict[int, Answer] = {}

    def after_crash(self, tree: Tree, marks: int) -> None:
        """Checks a state, and goes on from it.

        Args:
            tree: what a crash has left.
            marks: how many marks had been passed.

        Raises:
            Fault: the old or the new was to be there, all of it.
        """
        around = [marks, min(marks + 1, len(self._views) - 1)]
        check_visible(tree, [self._views[number] for number in around])
        answers = [self._answer_at(number) for number in around]
        lay_out(tree, self._root)
        answer = self._start_and_go_on(tree)
        if answer.files not in [known.files for known in answers]:
            raise Fault(LOST, "it goes on from neither the old nor the new")
        bad = answer.rejected - answers[0].rejected - answers[1].rejected
        if bad:
            raise Fault(LOST, f"{', '.join(sorted(bad))} could be seen and was not good")

    def after_lie(self, tree: Tree) -> None:
        """Checks a folder whose newest checkpoint a lying disk has damaged, and goes on from it.

        Args:
            tree: the folder at the last mark, damaged.

        Raises:
            Fault: something else than a good checkpoint was loaded, or none.
        """
        lay_out(tree, self._root)
        answer = self._start_and_go_on(tree)
        if answer.files is None:
            raise Fault(LOST, "the run starts from nothing")
        if answer.files not in checkpoints_in(self._views[-1]).values():
            raise Fault(LOADED_WRONG, "it goes on from what nobody wrote")

    def _answer_at(self, number: int) -> Answer:
        if number not in self._answers:
            lay_out(self._views[number], self._root)
            run = self._start()
            self._answers[number] = _answer(run, self._views[number])
            run.close()
        return self._answers[number]

    def _start_and_go_on(self, tree: Tree) -> Answer:
        run = self._start()
        try:
            answer = _answer(run, tree)
            _go_on(run, self._scenario)
        finally:
            run.close()
        _check_clean(save_dir_in(self._root))
        return answer

    def _start(self) -> Run:
        how = self._scenario
        try:
            return Run(save_dir_in(self._root), resume_from=how.resume_from, best=how.best)
        except ResumeError as error:
            raise Fault(LOST, f"the next start fails: {error}") from error
        except Exception as error:
            raise Fault(LOADED_WRONG, f"the next start breaks: {error!r}") from error


def _answer(run: Run, tree: Tree) -> Answer:
    plan = run.session.plan
    assert plan is not None
    rejected = frozenset(path.name for path, _ in plan.rejected)
    if run.state is None or plan.source is None:
        return Answer(None, rejected)
    try:
        assert_exact(run.state)
    except AssertionError as error:
        raise Fault(LOADED_WRONG, f"step {run.step} is not what was saved: {error}") from error
    return Answer(checkpoints_in(tree)[f"{SAVE_DIR}/{plan.source.name}"], rejected)


def check_visible(found: Tree, around: Sequence[Tree]) -> None:
    """Whatever can be seen is whole: as it was at the last mark, or as it is at the next."""
    old, new = (set(checkpoints_in(tree).values()) for tree in around)
    here = checkpoints_in(found)
    for path, files in here.items():
        if parse_folder_name(os.path.basename(path)) is not None and files not in old | new:
            raise Fault(LOST, f"{path} can be seen and is not as it was written")
    if (old & new) - set(here.values()):
        raise Fault(LOST, "an older checkpoint is gone, or was harmed")
    for name in _NAMED:
        path = f"{SAVE_DIR}/{name}"
        if found.get(path) not in [tree.get(path) for tree in around]:
            raise Fault(LOST, f"{name} is {found.get(path)!r:.80}: neither the old nor the new")


def checkpoints_in(tree: Tree) -> Dict[str, Files]:
    """Each checkpoint, wherever it was moved to, and its files; what is being written is none."""
    found: Dict[str, Set[Tuple[str, Content]]] = {}
    for path, content in tree.items():
        folder, name = os.path.split(path)
        if content is None and "step_" in name and "/.tmp-" not in path:
            found.setdefault(path, set())
        elif folder in found and not name.startswith("."):
            found[folder].add((name, content))
    return {path: frozenset(files) for path, files in found.items()}


def _go_on(run: Run, scenario: Scenario) -> None:
    run.begin()
    step = run.step + 1
    if run.save(0.1 if scenario.best else None) != step:
        raise Fault(UNCLEAN, f"step {step} cannot be saved")
    store = run.session.store
    assert_exact(store.load(store.path_of(step))[1])
    if store.read_link("latest") != store.path_of(step):
        raise Fault(UNCLEAN, f"latest does not name step {step}")
    run_id = store.read_manifest(store.path_of(step)).run_id
    own = [path for path in store.checkpoints() if store.read_manifest(path).run_id == run_id]
    if len(own) > KEPT + scenario.best:
        raise Fault(UNCLEAN, f"{len(own)} checkpoints are kept")


def _check_clean(folder: Path) -> None:
    names = set(os.listdir(folder))
    other = {
        name
        for name in names - _MAY_STAY
        if parse_folder_name(name) is None and not name.startswith(_SET_ASIDE)
    }
    if other:
        raise Fault(UNCLEAN, f"{', '.join(sorted(other))} stays behind")
