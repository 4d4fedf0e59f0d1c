"""The wiring of one run: store, plan, saver and events behind four calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Sequence

from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.store import EVENTS_FILE, FINISHED_JSON, Store
from paddle_resume.errors import MismatchError
from paddle_resume.observe.events import EventLog
from paddle_resume.observe.log import console, human_size, log
from paddle_resume.observe.progress import progress_after
from paddle_resume.resumer import ResumePolicy, start
from paddle_resume.saver import SavePolicy, Saver
from paddle_resume.state.finite import Health
from paddle_resume.triggers import Moment
from paddle_resume.types import (
    Component,
    Position,
    ResumePlan,
    Snapshot,
    TrainingState,
)

__all__ = ["Session"]

_SHOW_PROGRESS_AFTER_S = 2.0
_MOST_NAMED = 10
_NOT_METRICS = ("step", "batch_size")


class Session:
    """One run in one save_dir.

    Args:
        save_dir: where its checkpoints are.
        resume: what to start from; None where nobody asked to resume.
        saving: when to save; None where nobody asked to save.
    """

    def __init__(
        self, save_dir: Path, resume: Optional[ResumePolicy], saving: Optional[SavePolicy]
    ) -> None:
        self.store = Store(save_dir)
        self.events = EventLog(save_dir / EVENTS_FILE)
        self.plan: Optional[ResumePlan] = None
        self._resume = resume
        self._saving = saving
        self._saver: Optional[Saver] = None
        self._exit = contextlib.ExitStack()

    def open(self, expected_bytes: int) -> Optional[TrainingState]:
        """Takes the folder, decides what the run starts from, and loads it.

        Args:
            expected_bytes: about how large a checkpoint will be, as long as none is there to tell.

        Returns:
            The state to restore; None for a fresh start.

        Raises:
            ResumeError: the folder cannot be used, is taken, or holds nothing good.
        """
        self._exit.enter_context(console())
        self.store.prepare()
        self.store.lock()
        self._exit.callback(self.store.unlock)
        self.store.clean_leftovers()
        plan, state = start(self.store, self._start_policy(), _reading)
        behind = self.store.leave_behind(plan.leave_behind, plan.run_id)
        if behind is not None:
            log.warning(
                "%d checkpoint(s) newer than the start and not of its line are now in %s, which "
                "nothing deletes",
                len(plan.leave_behind),
                behind,
            )
        self.plan = plan
        self._note_start(plan, state)
        if self._saving is not None:
            self._saver = Saver(self.store, plan, self._saving, self.events)
            self._exit.callback(self._saver.wait)
            self._say_sizes(expected_bytes, state)
        return state

    @property
    def saves(self) -> bool:
        """Whether this run saves at all."""
        return self._saver is not None

    @property
    def saved_step(self) -> Optional[int]:
        """The newest step that is safely on disk."""
        if self._saver is None:
            return None
        self._saver.wait()
        return self._saver.last_step

    def due(self, position: Position, epoch_ends: bool) -> List[str]:
        """Asks the triggers whether a boundary is to be saved.

        Args:
            position: the boundary.
            epoch_ends: whether its batch was the epoch's last.

        Returns:
            The reasons; empty where none is due.
        """
        if self._saver is None or self._saving is None:
            return []
        moment = Moment(position, epoch_ends, time.monotonic(), self._saver.last_commit)
        reasons = (trigger.due(moment) for trigger in self._saving.triggers)
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def save(
        self,
        position: Position,
        components: Sequence[Component],
        reasons: Sequence[str],
        metrics: Mapping[str, Any],
    ) -> None:
        """Copies the state and hands it to the writer.

        Args:
            position: the boundary.
            components: the training's parts.
            reasons: why.
            metrics: the training's logs at the boundary.
        """
        if self._saver is None:
            return
        started, taken_at = time.perf_counter(), time.time()
        self._saver.wait()
        if self._saver.last_step == position.step:
            self._saver.note(position, reasons)
            return
        state = capture(position, components)
        blocked_s = time.perf_counter() - started
        snapshot = Snapshot(state, tuple(reasons), taken_at, blocked_s, _metrics(metrics))
        self._saver.save(snapshot)

    def restore(self, state: TrainingState, components: Sequence[Component]) -> None:
        """Puts a state back, part by part.

        Args:
            state: what `open` returned.
            components: in the order to restore them.

        Raises:
            MismatchError: the checkpoint does not fit this run.
        """
        partial = self._resume is not None and self._resume.partial
        for component in components:
            captured = state.parts.get(component.name)
            if captured is None:
                problems = [f"the checkpoint has no part {component.name!r}"]
            else:
                problems = component.restore(captured)
            if not problems:
                continue
            text = _listed(problems)
            if not partial:
                raise MismatchError(
                    f"{self.plan.source if self.plan else 'the checkpoint'} does not fit this "
                    f"run:\n{text}\nBuild the same model and optimizer as the run that wrote it, "
                    "give another save_dir for a new run, or set partial=True to load what fits."
                )
            log.warning("partial=True: not restored:\n%s", text)

    def finish(self, step: int, why: str, **facts: Any) -> None:
        """Marks the run as finished, once its last save is on disk.

        Args:
            step: the last step.
            why: `"epochs"`, `"num_iters"` or `"stopped"`.
            **facts: what else the next start must know.
        """
        if self._saver is None or self.plan is None:
            return
        if self.saved_step != step:
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
        same = (found.get("run_id"), found.get("step")) == self.plan.parent
        return found if same else None

    def say_finished(self, position: Position, why: str, epochs: int) -> None:
        """Changes the plan: there is nothing left to train.

        Args:
            position: of the final state.
            why: as given to `finish`.
            epochs: of this run.
        """
        assert self.plan is not None
        self.plan = dataclasses.replace(self.plan, action="finished")
        reasons = {"num_iters": "all of num_iters are done", "stopped": "it was stopped early"}
        log.info(
            "this run is finished (step %d, %s): its final state is loaded and fit returns. To "
            "train longer, raise %s; for a new run, give another save_dir.",
            position.step,
            reasons.get(why, f"all of epochs={epochs} are done"),
            "num_iters" if why == "num_iters" else "epochs",
        )

    def note_evaluation(self, step: int, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Notes the metrics of an evaluation.

        Args:
            step: the step it stands at.
            epoch: epochs completed.
            metrics: as hapi's logs have them.
        """
        self.events.append("eval", step=step, epoch=epoch, metrics=_metrics(metrics))

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

    def _note_start(self, plan: ResumePlan, state: Optional[TrainingState]) -> None:
        step = state.position.step if state is not None else 0
        self.events.append(
            "start",
            action=plan.action,
            run_id=plan.run_id,
            step=step,
            pid=os.getpid(),
            host=socket.gethostname(),
            origin=dataclasses.asdict(plan.origin) if plan.origin else None,
        )
        for path, why in plan.rejected:
            self.events.append("fallback", rejected=path.name, why=why)
        if state is None:
            log.info("a fresh start in %s (run %s)", self.store.save_dir, plan.run_id)
            return
        self.events.append("resume", step=step, path=str(plan.source), run_id=plan.run_id)
        broken = Health.read(state.parts)
        if broken:
            log.warning(
                "%s holds NaN or infinity in %d weight(s), the first is %s. "
                'resume_from="finite" starts from the newest checkpoint without any.',
                plan.source,
                len(broken),
                broken[0],
            )
        for reason in state.inexact:
            log.warning("the resume is not exact: %s", reason)

    def _say_sizes(self, size: int, state: Optional[TrainingState]) -> None:
        if state is not None and self.plan is not None and self.plan.source is not None:
            files = self.store.read_manifest(self.plan.source).files.values()
            size = sum(size for size, _ in files)
        free = shutil.disk_usage(self.store.save_dir).free
        retention = self._saving.retention if self._saving is not None else ()
        kept = " and ".join(str(policy) for policy in retention)
        log.info(
            "a checkpoint takes about %s; kept: %s; %s free in %s",
            human_size(size),
            kept,
            human_size(free),
            self.store.save_dir,
        )


def capture(position: Position, components: Sequence[Component]) -> TrainingState:
    """Copies the state of every component.

    Args:
        position: the boundary.
        components: the training's parts.

    Returns:
        The state; each reason why it is not exact once.
    """
    parts = {component.name: component.capture() for component in components}
    unsaved = [reason for part in parts.values() for reason in part.values.get("unsaved", ())]
    return TrainingState(position, parts, inexact=tuple(dict.fromkeys(unsaved)))


def _metrics(logs: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in logs.items() if name not in _NOT_METRICS}


def _reading(path: Path) -> ContextManager[Callable[[int, int], None]]:
    return progress_after(_SHOW_PROGRESS_AFTER_S, f"reading {path.name}")


def _listed(problems: Sequence[str]) -> str:
    lines = [f"  {problem}" for problem in problems[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        lines.append(f"  and {len(problems) - _MOST_NAMED} more")
    return "\n".join(lines)
