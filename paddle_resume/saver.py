"""The one save in flight: write, commit, retain."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from paddle_resume.checkpoint import layout
from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import CheckpointError
from paddle_resume.observe.events import EventLog
from paddle_resume.observe.log import human_duration, human_size, log
from paddle_resume.retention import Kept, RetentionPolicy, select_for_deletion
from paddle_resume.runtime import versions
from paddle_resume.state.finite import Health
from paddle_resume.triggers import Trigger
from paddle_resume.types import Origin, Position, ResumePlan, SaveResult, Snapshot

__all__ = ["SavePolicy", "Saver"]


@dataclasses.dataclass(frozen=True)
class SavePolicy:
    """When a run saves, how, and what it keeps.

    Attributes:
        triggers: any of them asks for a save.
        retention: what any of them names is kept.
        in_background: whether the training goes on while the disk is written.
    """

    triggers: Tuple[Trigger, ...]
    retention: Tuple[RetentionPolicy, ...]
    in_background: bool


class Saver:
    """Writes snapshots to a store, one at a time.

    Args:
        store: where to.
        plan: under which run, and after which checkpoint.
        policy: how, and what to keep.
        events: where each save is noted.
    """

    def __init__(
        self, store: Store, plan: ResumePlan, policy: SavePolicy, events: EventLog
    ) -> None:
        self._store = store
        self._run_id = plan.run_id
        self._origin: Optional[Origin] = plan.origin
        self._parent = plan.parent
        self._policy = policy
        self._events = events
        self._thread: Optional[threading.Thread] = None
        self._finite: Dict[Path, bool] = {}
        self.results: List[SaveResult] = []
        self.failures = 0
        self.last_commit = time.monotonic()
        self.last_step: Optional[int] = plan.parent[1] if plan.parent else None
        if plan.action == "fresh":
            self.last_step = None

    def save(self, snapshot: Snapshot) -> None:
        """Starts to write a snapshot, after the one before it is done.

        Never raises for what the disk does: a failed save is logged and counted.

        Args:
            snapshot: host copies that nobody changes any more.
        """
        self.wait()
        if not self._policy.in_background:
            self._write(snapshot)
            return
        # Not a daemon: a script that ends now still finishes its save.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="paddle_resume-writer", daemon=False
        )
        self._thread.start()

    def wait(self) -> None:
        """Waits until no save is in flight."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def note(self, position: Position, reasons: Sequence[str]) -> None:
        """Adds reasons to a step that is saved already."""
        self._events.append("reason", step=position.step, reasons=list(reasons))

    def _write(self, snapshot: Snapshot) -> None:
        position = snapshot.state.position
        try:
            snapshot = _with_health(snapshot)
            path, size = self._store.save(
                snapshot, self._run_id, self._parent, self._origin, 1, versions()
            )
        except Exception as error:  # whatever it is, the training must go on
            self._failed(snapshot, error)
            return
        durable_s = time.time() - snapshot.taken_at
        self._parent = (self._run_id, position.step)
        self.last_step, self.last_commit = position.step, time.monotonic()
        self.results.append(SaveResult(path, position, size, snapshot.blocked_s, durable_s))
        log.info(
            "saved step %d (epoch %d, %s): %s in %s, of which the training waited %s: %s",
            position.step,
            position.epoch + (position.batch > 0),
            "+".join(snapshot.reasons),
            human_size(size),
            human_duration(durable_s),
            human_duration(snapshot.blocked_s),
            path,
        )
        self._events.append(
            "save",
            step=position.step,
            epoch=position.epoch,
            reasons=list(snapshot.reasons),
            path=path.name,
            run_id=self._run_id,
            size_bytes=size,
            blocked_s=round(snapshot.blocked_s, 6),
            durable_s=round(durable_s, 6),
            metrics=snapshot.metrics,
        )
        self._warn_if_not_finite(path, snapshot)
        self._after_commit(path)

    def _failed(self, snapshot: Snapshot, error: Exception) -> None:
        self.failures += 1
        position = snapshot.state.position
        self.results.append(SaveResult(None, position, 0, snapshot.blocked_s, 0.0, error))
        log.warning(
            "step %d could not be saved: %s: %s. Older checkpoints are untouched; training goes "
            "on and the next trigger tries again (%d failed so far).",
            position.step,
            type(error).__name__,
            error,
            self.failures,
        )
        self._events.append(
            "failure",
            step=position.step,
            reasons=list(snapshot.reasons),
            error=f"{type(error).__name__}: {error}",
            failures=self.failures,
        )

    def _warn_if_not_finite(self, path: Path, snapshot: Snapshot) -> None:
        broken = Health.read(snapshot.state.parts)
        self._finite[path] = not broken
        if broken:
            log.warning(
                "%s holds NaN or infinity in %d weight(s), the first is %s. The newest checkpoint "
                'without any is kept: resume_from="finite" starts from it.',
                path,
                len(broken),
                broken[0],
            )

    def _after_commit(self, path: Path) -> None:
        """Links and retention: conveniences, whose failure is not the save's."""
        try:
            self._store.link("latest", path)
            self._retain()
        except (OSError, CheckpointError) as error:
            log.warning("after the save of %s: %s", path.name, error)

    def _retain(self) -> None:
        kept = []
        for path in self._store.checkpoints():
            try:
                manifest = self._store.read_manifest(path)
            except CheckpointError:
                continue  # damaged: never ours to delete
            position = manifest.position
            completed = position.epoch if position.batch == 0 else None
            kept.append(Kept(path, position.step, completed, manifest.run_id))
        protected = {
            path
            for path in (self._store.read_link("best"), self._newest_finite(kept))
            if path is not None
        }
        for path in select_for_deletion(kept, self._policy.retention, protected, self._run_id):
            error = self._store.delete(path)
            if error is not None:
                log.warning("%s could not be deleted: %s", path, error)
                continue
            self._finite.pop(path, None)
            self._events.append("prune", step=layout.parse_folder_name(path.name))

    def _newest_finite(self, kept: Sequence[Kept]) -> Optional[Path]:
        for item in sorted(kept, key=lambda one: -one.step):
            if item.path not in self._finite:
                self._finite[item.path] = self._is_finite(item.path)
            if self._finite[item.path]:
                return item.path
        return None

    def _is_finite(self, path: Path) -> bool:
        """Looks into a checkpoint from before this process started."""
        try:
            state: Any = self._store.load(path, "none")[1]
        except CheckpointError:
            return False
        return not Health.read(state.parts)


def _with_health(snapshot: Snapshot) -> Snapshot:
    state = snapshot.state
    parts = {**state.parts, Health.name: Health.of(state)}
    return dataclasses.replace(snapshot, state=dataclasses.replace(state, parts=parts))
