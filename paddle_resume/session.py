"""The wiring of one run: store, plan, saver and events behind four calls."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import (
    Any,
    Callable,
    Collection,
    ContextManager,
    Mapping,
    Optional,
    Sequence,
    Set,
)

from paddle_resume import notices
from paddle_resume.best import BestScores
from paddle_resume.boundaries import Boundaries
from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.lock import Holder
from paddle_resume.checkpoint.store import BEST_JSON, EVENTS_FILE, FINISHED_JSON, Store
from paddle_resume.observe.events import EventLog
from paddle_resume.observe.log import console, log
from paddle_resume.observe.progress import progress_after
from paddle_resume.restore import restore
from paddle_resume.resumer import ResumePolicy, start
from paddle_resume.saver import SavePolicy, Saver
from paddle_resume.types import (
    Captures,
    Component,
    Position,
    ResumePlan,
    TrainingState,
)

__all__ = ["Session"]

_SHOW_PROGRESS_AFTER_S = 2.0
_MOST_NAMED = 10


class Session:
    """One run in one save_dir.

    Args:
        save_dir: where its checkpoints are.
        given: the same as the script gave it.
        resume: what to start from; None where nobody asked to resume.
        saving: when to save; None where nobody asked to save.
        sign_key: that signs the checkpoints; None for no signatures.
    """

    def __init__(
        self,
        save_dir: Path,
        given: str,
        resume: Optional[ResumePolicy],
        saving: Optional[SavePolicy],
        sign_key: Optional[bytes] = None,
    ) -> None:
        self.store = Store(save_dir, sign_key)
        self.events = EventLog(save_dir / EVENTS_FILE)
        self.plan: Optional[ResumePlan] = None
        self.boundaries: Optional[Boundaries] = None
        self._given = given
        self._resume = resume
        self._saving = saving
        self._saver: Optional[Saver] = None
        self._expected_bytes = 0
        self._said: Set[str] = set()
        self._exit = contextlib.ExitStack()

    def open(self, expected_bytes: int, holder: Holder) -> Optional[TrainingState]:
        """Takes the folder, decides what the run starts from, and loads it.

        Args:
            expected_bytes: about how large a checkpoint will be, as long as none is there to tell.
            holder: the run that the folder is taken for.

        Returns:
            The state to restore; None for a fresh start.

        Raises:
            ResumeError: the folder cannot be used, is taken, or holds nothing good.
        """
        self.store.create()
        self.store.lock(holder)
        self._exit.callback(self.store.unlock)
        self._exit.enter_context(console())  # after a dead run's, which lock() may have closed
        notices.refuse_shared(self.events, self._given)
        self.store.clean_leftovers()
        self.store.prove_writable()
        self.plan, state = start(self.store, self._start_policy(), _reading)
        notices.say_start(self.store, self.plan, state)
        self._said.update(state.inexact if state is not None else ())
        self._expected_bytes = expected_bytes
        return state

    def begin(
        self,
        start: Position,
        parts: Callable[[], Sequence[Captures]],
        before_commit: Callable[[], None],
        scores: Optional[BestScores] = None,
        every: bool = False,
    ) -> None:
        """Lets the run begin, once all of its state is restored: from here on it may write.

        Args:
            start: where it begins.
            parts: see `Boundaries`.
            before_commit: see `Saver`.
            scores: see `Boundaries`.
            every: see `Boundaries`.

        Raises:
            OSError: what is in its way could not be moved.
        """
        plan = self.plan
        assert plan is not None
        behind = self.store.leave_behind(plan.leave_behind, plan.run_id)
        if behind is not None:
            log.warning(
                "%d newer checkpoint(s) of another line are moved to %s, which nothing deletes. To "
                'go back to one of them: resume_from="%s"',
                len(plan.leave_behind),
                behind,
                behind / plan.leave_behind[0].name,
            )
        notices.note_start(self.events, plan, start.step, self._given)
        if plan.action != "finished":
            notices.say_sizes(self.store, plan, self._saving, self._expected_bytes)
        if self._saving is not None:
            self._saver = Saver(self.store, plan, self._saving, self.events, before_commit)
            self._exit.callback(self._saver.wait)
            seconds = self.events.last_number("save", "durable_s")
            if seconds is not None:
                self._saver.expect(seconds)
            if scores is not None and plan.source is not None:
                keeps = self._saver.keeps
                # Also what the newest had pushed out, where that could not be saved; or all, from
                # before BestSaver was among the callbacks.
                scores.recall(
                    self.store.read_json(BEST_JSON), lambda s: s <= start.step and keeps(s)
                )
            self.boundaries = Boundaries(
                self._saver, self._saving, parts, self.events, start, scores, every, self._said
            )

    def wait_for_saved_step(self) -> Optional[int]:
        """Waits for the save in flight, and returns the newest step of this run on disk."""
        if self._saver is None:
            return None
        self._saver.wait()
        return self._saver.last_step

    def restore(
        self,
        state: TrainingState,
        components: Sequence[Component],
        known: Collection[str],
        optional: Collection[str],
    ) -> None:
        """Puts back what `open` returned; see `restore.restore`."""
        partial = self._resume is not None and self._resume.partial
        source = str(self.plan.source) if self.plan is not None else "the checkpoint"
        restore(state, components, known, optional, partial, source)

    def finish(self, step: int, why: str, **facts: Any) -> None:
        """Marks the run as finished, once its last save is on disk.

        Args:
            step: the last step.
            why: `"epochs"`, `"num_iters"` or `"stopped"`.
            **facts: what else the next start must know.
        """
        if self._saver is None or self.plan is None:
            return
        if self.wait_for_saved_step() != step:
            log.warning(
                "the run ended at step %d, which could not be saved: the next start goes on from "
                "the newest checkpoint",
                step,
            )
            return
        finished = {"step": step, "why": why, "run_id": self.plan.run_id, **facts}
        try:
            self.store.write_json(FINISHED_JSON, finished)
        except OSError as error:
            log.warning("%s could not be written: %s", FINISHED_JSON, error)
        self.events.append("finished", step=step, why=why)

    def finished(self) -> Optional[Mapping[str, Any]]:
        """Returns what `finish` wrote about the checkpoint that this run starts from."""
        found = self.store.read_json(FINISHED_JSON)
        if found is None or self.plan is None or self.plan.parent is None:
            return None
        if (found.get("run_id"), found.get("step")) != self.plan.parent:
            return None
        if not isinstance(found.get("why"), str) or type(found.get("epochs")) is not int:
            log.warning("%s is damaged and counts as absent", FINISHED_JSON)
            return None
        return found

    def say_finished(self, position: Position, why: str, epochs: int) -> None:
        """Changes the plan: there is nothing left to train.

        Args:
            position: of the final state.
            why: as given to `finish`.
            epochs: of this run.
        """
        assert self.plan is not None
        self.plan = dataclasses.replace(self.plan, action="finished")
        notices.say_finished(position.step, why, epochs)

    def newest(self) -> str:
        """Names the newest checkpoint, for a message; from memory, for the disk may hang."""
        step = None if self._saver is None else self._saver.last_step
        path = None if self.plan is None else self.plan.source
        if step is not None:
            path = self.store.path_of(step)
        return "there is no checkpoint" if path is None else f"the newest checkpoint is {path}"

    def close(self) -> None:
        """Waits for the save in flight and gives everything back; may be called twice."""
        self._exit.close()

    def _start_policy(self) -> ResumePolicy:
        if self._resume is not None:
            return self._resume
        if self.store.checkpoints():
            log.warning(
                "%s holds checkpoints, and no AutoResume is among the callbacks: this run starts "
                "from nothing. Add AutoResume(save_dir) to go on where the last run stopped.",
                self.store.save_dir,
            )
        return ResumePolicy(parse_resume_from("never"), goes_on=False)


def _reading(path: Path) -> ContextManager[Callable[[int, int], None]]:
    return progress_after(_SHOW_PROGRESS_AFTER_S, f"reading {path.name}")
