"""The wiring of one run: store, plan, saver and events behind four calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import time
from pathlib import Path
from typing import (
    Any,
    Callable,
    Collection,
    ContextManager,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
)

from paddle_resume.checkpoint.lineage import parse_resume_from
from paddle_resume.checkpoint.lock import Holder
from paddle_resume.checkpoint.store import EVENTS_FILE, FINISHED_JSON, Store
from paddle_resume.errors import CheckpointError, MismatchError, ResumeError
from paddle_resume.observe.events import EventLog, plain
from paddle_resume.observe.log import console, human_size, log
from paddle_resume.observe.progress import progress_after
from paddle_resume.resumer import ResumePolicy, start
from paddle_resume.saver import SavePolicy, Saver
from paddle_resume.state.finite import Health
from paddle_resume.triggers import Moment
from paddle_resume.types import (
    Captures,
    Component,
    Position,
    ResumePlan,
    Snapshot,
    TrainingState,
    values_of,
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
        self.store.clean_leftovers()
        self.store.prove_writable()
        self.plan, state = start(self.store, self._start_policy(), _reading)
        self._say_start(self.plan, state)
        self._expected_bytes = expected_bytes
        return state

    def begin(self, step: int) -> None:
        """Lets the run begin, once all of its state is restored: from here on it may write.

        Args:
            step: where it begins.

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
        self._note_start(plan, step)
        if plan.action != "finished":
            self._say_sizes(self._expected_bytes)
        if self._saving is not None:
            self._saver = Saver(self.store, plan, self._saving, self.events)
            self._exit.callback(self._saver.wait)

    def wait_for_saved_step(self) -> Optional[int]:
        """Waits for the save in flight, and returns the newest step of this run on disk."""
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
        moment = Moment(position, epoch_ends, time.monotonic(), self._saver.last_attempt)
        reasons = (trigger.due(moment) for trigger in self._saving.triggers)
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def save(
        self,
        position: Position,
        components: Sequence[Captures],
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
        try:
            state = capture(position, components)
        except Exception as error:  # a part that cannot be copied must not end the training
            self._saver.failed(position, reasons, error)
            return
        for reason in state.inexact:
            if reason not in self._said:
                self._said.add(reason)
                log.warning("a resume from here would not be exact: %s", reason)
        blocked_s = time.perf_counter() - started
        snapshot = Snapshot(state, tuple(reasons), taken_at, blocked_s, _metrics(metrics))
        self._saver.save(snapshot)

    def restore(
        self, state: TrainingState, components: Sequence[Component], known: Collection[str]
    ) -> None:
        """Puts a state back, part by part.

        Args:
            state: what `open` returned.
            components: in the order to restore them.
            known: names of the parts that others restore.

        Raises:
            MismatchError: the checkpoint does not fit this run.
            CheckpointError: a part holds something else than was ever written.
        """
        names = {component.name for component in components}
        self._refuse_problems(
            [
                f"the checkpoint has a part {name!r}, which this run has not"
                for name in state.parts
                if name not in names and name not in known
            ]
        )
        for component in components:
            captured = state.parts.get(component.name)
            if captured is None:
                problems = [f"the checkpoint has no part {component.name!r}"]
            else:
                try:
                    problems = component.restore(captured)
                except ResumeError:
                    raise
                except Exception as error:  # odd content, or a set_state_dict() that fails
                    what = f"{type(error).__name__}: {error}"
                    raise CheckpointError(
                        f"{self._source()}: its part {component.name!r} cannot be restored: {what}"
                    ) from error
            self._refuse_problems(problems)

    def _refuse_problems(self, problems: Sequence[str]) -> None:
        if not problems:
            return
        text = _listed(problems)
        if self._resume is None or not self._resume.partial:
            raise MismatchError(
                f"{self._source()} does not fit this run:\n{text}\nMake these the same as in the "
                "run that wrote it, give another save_dir for a new run, or set partial=True to "
                "load what fits."
            )
        log.warning("partial=True: not restored:\n%s", text)

    def _source(self) -> str:
        return str(self.plan.source) if self.plan is not None else "the checkpoint"

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
        reason, remedy = {
            "num_iters": ("all of num_iters are done", "raise num_iters"),
            "stopped": (
                "it was stopped early",
                "raise epochs and relax what stopped it (EarlyStopping's patience)",
            ),
        }.get(why, (f"all of epochs={epochs} are done", "raise epochs"))
        log.info(
            "this run is finished (step %d, %s): its final state is loaded and fit returns. To "
            'train longer, %s (a schedule made for the old length needs lr_policy="override"); '
            "for a new run, give another save_dir.",
            position.step,
            reason,
            remedy,
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

    def _note_start(self, plan: ResumePlan, step: int) -> None:
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
        if plan.source is not None:
            self.events.append("resume", step=step, path=str(plan.source), run_id=plan.run_id)

    def _say_start(self, plan: ResumePlan, state: Optional[TrainingState]) -> None:
        if state is None:
            log.info("a fresh start in %s (run %s)", self.store.save_dir, plan.run_id)
            return
        broken = Health.read(values_of(state))
        if broken:
            log.warning(
                "%s holds NaN or infinity in %d weight(s), the first is %s. "
                'resume_from="finite" starts from the newest checkpoint without any.',
                plan.source,
                len(broken),
                broken[0],
            )
        for reason in state.inexact:
            self._said.add(reason)
            log.warning("the resume is not exact: %s", reason)

    def _say_sizes(self, size: int) -> None:
        if self._saving is None:
            log.warning("no PeriodicSaver is among the callbacks: this run saves nothing")
            return
        if self.plan is not None and self.plan.source is not None:
            files = self.store.read_manifest(self.plan.source).files.values()
            size = sum(size for size, _ in files)
        free = shutil.disk_usage(self.store.save_dir).free
        kept = " and ".join(str(policy) for policy in self._saving.retention)
        log.info(
            "a checkpoint takes about %s; kept: %s; %s free in %s",
            human_size(size),
            kept,
            human_size(free),
            self.store.save_dir,
        )


def capture(position: Position, components: Sequence[Captures]) -> TrainingState:
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
    """Plain values: the writer looks at them when the training has gone on."""
    return {name: plain(value) for name, value in logs.items() if name not in _NOT_METRICS}


def _reading(path: Path) -> ContextManager[Callable[[int, int], None]]:
    return progress_after(_SHOW_PROGRESS_AFTER_S, f"reading {path.name}")


def _listed(problems: Sequence[str]) -> str:
    lines = [f"  {problem}" for problem in problems[:_MOST_NAMED]]
    if len(problems) > _MOST_NAMED:
        lines.append(f"  and {len(problems) - _MOST_NAMED} more")
    return "\n".join(lines)
