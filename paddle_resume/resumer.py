"""The start of a run: discover, verify, load; the plan of what to restore."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Callable, ContextManager, Iterator, List, Optional, Sequence, Tuple

from paddle_resume.checkpoint import layout, lineage, links
from paddle_resume.checkpoint.faults import NotDamaged
from paddle_resume.checkpoint.lineage import Entry, ResumeFrom
from paddle_resume.checkpoint.reader import LEVELS
from paddle_resume.checkpoint.store import Store
from paddle_resume.errors import CheckpointError, ConfigError
from paddle_resume.observe.log import log
from paddle_resume.state.finite import Health
from paddle_resume.types import ResumePlan, TrainingState, values_of

__all__ = ["Loaded", "ResumePolicy", "checkpoint_folder", "start"]

Loaded = Tuple[ResumePlan, Optional[TrainingState]]
Progress = Callable[[int, int], None]

_MOST_NAMED = 10


@dataclasses.dataclass(frozen=True)
class ResumePolicy:
    """What a run starts from.

    Attributes:
        resume_from: see `AutoResume`.
        lr_policy: `"restore"` or `"override"`.
        partial: whether a checkpoint of another model gives what fits.
        verify: `"full"`, `"size"` or `"none"`.
        goes_on: whether a named start, made again, goes on with the run that it made.
    """

    resume_from: ResumeFrom
    lr_policy: str = "restore"
    partial: bool = False
    verify: str = "full"
    goes_on: bool = True

    def __post_init__(self) -> None:
        if self.lr_policy not in ("restore", "override"):
            raise ConfigError(f'lr_policy={self.lr_policy!r}: "restore" or "override" expected')
        if self.verify not in LEVELS:
            allowed = ", ".join(f'"{level}"' for level in LEVELS)
            raise ConfigError(f"verify={self.verify!r}: one of {allowed} expected")
        if type(self.partial) is not bool:
            raise ConfigError(f"partial={self.partial!r}: True or False expected")


def start(
    store: Store,
    policy: ResumePolicy,
    reading: "Callable[[Path], ContextManager[Progress]]",
) -> Loaded:
    """Finds what a run goes on from, verifies and loads it.

    Damaged checkpoints are named in the plan and, once an older one has loaded, set aside.

    Args:
        store: the locked save_dir.
        policy: what to start from.
        reading: called with a checkpoint that is about to be read; a context that yields where to
            report the bytes done and in total.

    Returns:
        The plan, and the state to restore; no state for a fresh start.

    Raises:
        CheckpointError: what was named does not exist or is damaged, or nothing here is good.
    """
    search = _Search(store, policy, reading)
    wanted = policy.resume_from
    if wanted.kind == "auto":
        found = search.first_good(search.newest_first())
        entries = search.read
        if found is None:
            search.refuse_if_not_new()
        goes_on = True
    else:
        entries = list(search.newest_first())
        own = lineage.descendants(wanted.text, entries) if policy.goes_on else []
        found = search.first_good(own)
        goes_on = found is not None
        if goes_on:
            log.info(
                "resume_from=%r has been followed by this run's first start: it goes on from its "
                "own newest checkpoint",
                wanted.text,
            )
        if found is None and wanted.kind == "never" and policy.goes_on:
            if own or store.has_saved_since(wanted.text):
                search.refuse_if_not_new()
        if found is None and wanted.kind != "never":
            found = search.named(wanted, entries)
    plan = lineage.plan(
        wanted, goes_on, found[0] if found else None, entries, tuple(search.rejected)
    )
    if found is None:
        # Damaged or not, what is here is in the way of the steps to come.
        damaged = tuple(path for path, _ in search.rejected)
        plan = dataclasses.replace(plan, leave_behind=plan.leave_behind + damaged)
    else:
        for path, why in search.rejected:
            aside = store.set_aside_bad(path, why)
            log.warning("%s is kept as %s", path.name, aside.name)
    return plan, found[1] if found else None


def checkpoint_folder(path: "str | os.PathLike[str]") -> Path:
    """Finds the folder that a path to a checkpoint means.

    Args:
        path: its folder, a link to it, a `…/model` prefix, or a `.pdparams` file in it.

    Returns:
        The folder.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    given = Path(path)
    folder = given
    try:
        if not given.is_dir():
            stem = given.with_suffix("") if given.suffix in (".pdparams", ".pdopt") else given
            if stem.with_name(stem.name + ".pdparams").is_file():
                folder = stem.parent
    except (OSError, ValueError) as error:  # too long, no permission, no path at all
        raise CheckpointError(f"{str(path)!r:.300} cannot be looked at: {error}") from error
    if folder.name in links.LINKS:
        # Ours lead to their neighbours; one that leads elsewhere was put there by someone else.
        folder = links.follow(folder.parent, folder.name) or folder
        if folder.is_symlink():
            raise CheckpointError(f"{folder} leads to {os.readlink(folder)}, not to a neighbour")
    if not folder.is_dir():
        raise CheckpointError(
            f"{given} does not exist. Expected: a checkpoint's folder (…/step_00000500), the "
            "…/model prefix or the .pdparams file in it."
        )
    folder = folder.resolve()
    if layout.parse_folder_name(folder.name) is None:
        inside = [p.name for p in Store(folder).checkpoints()][-3:]
        hint = f" It holds {', '.join(inside)}: name one of these." if inside else ""
        raise CheckpointError(
            f"{given} is not a checkpoint of paddle_resume (a folder named step_…).{hint}"
        )
    return folder


class _Search:
    """Reads checkpoints until one is good, and remembers those that were not."""

    def __init__(
        self,
        store: Store,
        policy: ResumePolicy,
        reading: Callable[[Path], ContextManager[Progress]],
    ) -> None:
        self._store = store
        self._policy = policy
        self._reading = reading
        self.rejected: List[Tuple[Path, str]] = []
        self.read: List[Entry] = []

    def newest_first(self) -> Iterator[Entry]:
        """Yields the checkpoints whose manifest can be read."""
        for path in reversed(self._store.checkpoints()):
            try:
                entry = (path, self._store.read_manifest(path))
            except NotDamaged:
                raise  # going round it would lose it
            except CheckpointError as error:
                self._reject(path, error)
                continue
            self.read.append(entry)
            yield entry

    def first_good(
        self, entries: "Iterator[Entry] | Sequence[Entry]"
    ) -> Optional[Tuple[Entry, TrainingState]]:
        """Returns the first of the candidates that loads."""
        for path, _ in entries:
            try:
                return self.load(path)
            except NotDamaged:
                raise
            except CheckpointError as error:
                self._reject(path, error)
        return None

    def named(self, wanted: ResumeFrom, entries: Sequence[Entry]) -> Tuple[Entry, TrainingState]:
        """Loads what the user named; a fault in it is the user's to decide about."""
        if wanted.kind == "finite":
            return self._newest_finite(entries)
        if wanted.kind == "best":
            best = self._store.read_link("best")
            if best is None:
                raise CheckpointError(
                    f'resume_from="best": {self._store.save_dir} has no link `best` to a checkpoint'
                )
            return self.load(best)
        if wanted.kind == "path":
            try:
                folder = checkpoint_folder(wanted.text)
            except CheckpointError as error:
                allowed = f"Allowed are {lineage.FORMS}."
                raise CheckpointError(f"resume_from={wanted.text!r}: {error} {allowed}") from error
            return self.load(folder)
        return self.load(lineage.select(wanted, entries)[0][0])

    def load(self, path: Path) -> Tuple[Entry, TrainingState]:
        """Verifies and reads one."""
        with self._reading(path) as report:
            manifest, state = self._store.load(path, self._policy.verify, report)
        return (path, manifest), state

    def refuse_if_not_new(self) -> None:
        """A run that had a checkpoint never starts from nothing silently (rule 2)."""
        save_dir = self._store.save_dir
        if self.rejected:
            named = "\n".join(f"  {path}: {why}" for path, why in self.rejected[:_MOST_NAMED])
            rest = len(self.rejected) - _MOST_NAMED
            more = f"\n  and {rest} more" if rest > 0 else ""
            raise CheckpointError(
                f"every checkpoint in {save_dir} is damaged:\n{named}{more}\n"
                "Nothing was changed. Restore one from a backup, or start from nothing on "
                'purpose: another save_dir, or resume_from="never".'
            )
        signs = self._store.signs_of_earlier_run()
        if signs is not None:
            raise CheckpointError(
                f"{save_dir} holds no good checkpoint, but {signs}. To start from nothing on "
                'purpose, use another save_dir, or resume_from="never".'
            )

    def _newest_finite(self, entries: Sequence[Entry]) -> Tuple[Entry, TrainingState]:
        for path, _ in entries:
            found = self.load(path)
            if not Health.read(values_of(found[1])):
                return found
        if not entries:
            raise CheckpointError(
                f'resume_from="finite": {self._store.save_dir} holds no checkpoint at all'
            )
        raise CheckpointError(
            f'resume_from="finite": no checkpoint in {self._store.save_dir} is free of NaN and '
            "infinity. Begin anew in another save_dir, with what let it diverge changed (often the "
            "learning rate)"
        )

    def _reject(self, path: Path, error: CheckpointError) -> None:
        why = str(error)
        log.warning("not used: %s", why)
        self.rejected.append((path, why))
