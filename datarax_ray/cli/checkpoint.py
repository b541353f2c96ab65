"""`datarax-ray checkpoint`: shows a saved state, and checks whether a pipeline can go on from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from etils import epath
from rich import box
from rich.console import RenderableType
from rich.table import Table

from datarax_ray.cli.arguments import pipeline_of
from datarax_ray.cli.screen import Screen
from datarax_ray.pipeline.checkpoint import FILE, read_state
from datarax_ray.plan.amendments import Amendments, saved_amendments
from datarax_ray.plan.fingerprint import MISSING, DriftError, flattened, listed

_MAX_SHOWN = 60
_PROOFS = ("evidence.", "digest.", "rest_checksum")
_DIGEST = re.compile(r"[0-9a-f]{16}")
STEP = re.compile(r"(?:.*_)?(\d+)")  # Orbax: 12, or step_12 with a step_prefix


class Saved(NamedTuple):
    """A saved state, and its folder."""

    directory: epath.Path
    state: dict[str, Any]


def find(directory: str) -> Saved:
    """The state in a folder: of the data alone, of a step, or of a manager; then that of its latest step.

    Raises: FileNotFoundError where there is none; ValueError as read_state, and where that step has several.
    """
    *_, (_, latest) = _by_step(directory)
    return _only(directory, latest)


def find_all(directory: str) -> list[Saved]:
    """Every state in a folder, by step. directory: RUN/*/NAME for one of several pipelines of each step.

    Raises: as find.
    """
    return [_only(directory, found) for _, found in _by_step(directory)]


def _by_step(directory: str) -> list[tuple[int, list[epath.Path]]]:
    """The folders with a state, by step; the step is -1 for a folder that is not a manager's."""
    parts = directory.rstrip("/").split("/")
    number = next((number for number, part in enumerate(parts) if "*" in part), len(parts))
    root = epath.Path("/".join(parts[:number]) or ("/" if number else "."))
    below = "".join(f"{part}/" for part in parts[number:])
    for pattern in [below + FILE] if below else [FILE, f"*/{FILE}", f"*/*/{FILE}"]:
        if root.exists() and (found := sorted(path.parent for path in root.glob(pattern))):
            break
    else:
        raise FileNotFoundError(f"{directory}: there is no saved pipeline here; give the folder of a run or of a step")
    steps: dict[int, list[epath.Path]] = {}
    for path in found:
        numbers = [int(match[1]) for part in path.relative_to(root).parts if (match := STEP.fullmatch(part))]
        steps.setdefault((numbers or [-1])[0], []).append(path)
    return sorted(steps.items())


def _only(directory: str, found: list[epath.Path]) -> Saved:
    if len(found) > 1:
        raise ValueError(
            f"a step has the states of {len(found)} pipelines: {', '.join(map(str, found))}. Name one of these "
            f"folders, or, for all steps, '{directory.rstrip('/')}/*/{found[0].name}'"
        )
    return Saved(found[0], read_state(found[0]))


def show(directory: str, screen: Screen, *, all: bool = False) -> None:
    saved = find(directory)
    screen.answer({"directory": str(saved.directory), "state": saved.state}, _lines(saved, with_digests=all))


def _lines(saved: Saved, *, with_digests: bool) -> Iterator[RenderableType]:
    position, settings = saved.state.get("position"), flattened(saved.state)
    if not isinstance(position, int):
        yield f"{saved.directory}: goes on at position {position!r}"
    else:
        yield f"{saved.directory}: goes on at position {position:,}{''.join(_reached(position, settings))}"
    for each in amendments_in(saved.state):
        yield f"amended {each}"
    table = Table("setting", "value", box=box.SIMPLE)
    for name, value in settings.items():
        if with_digests or not (name.startswith(_PROOFS) or name.endswith(".code") or _DIGEST.fullmatch(str(value))):
            table.add_row(name, _shown(value))
    yield table


def _reached(position: int, settings: Mapping[str, Any]) -> Iterator[str]:
    """The epoch, the first of which is 1, and the batches before this position, as far as the state tells."""
    num_records, epoch = settings.get("settings.files.num_records"), settings.get("rest.epoch")
    if num_records:
        epoch, record = divmod(position, num_records)
    if epoch is not None:
        num_epochs = settings.get("settings.order.num_epochs", -1)
        yield f", in epoch {epoch + 1}{'' if num_epochs == -1 else f' of {num_epochs}'}"
    if num_records:
        yield f" at record {record:,} of {num_records:,}"
    if batch_size := settings.get("settings.batch_size"):
        yield f"; {position // batch_size:,} batches of {batch_size:,}, if each position gave a row"


def fits(target: str, directory: str, screen: Screen) -> int:
    saved = find(directory)
    found: dict[str, Any] = {"directory": str(saved.directory)}
    with pipeline_of(target) as pipeline:
        try:
            pipeline.set_state(saved.state)
        except DriftError as error:
            found |= {"fits": False, "differences": [asdict(each) for each in error.differences]}
            lines = [each.line for each in error.differences]
            line = f"{saved.directory} does not fit {target}:{listed(lines, len(lines))}"
        else:
            found |= {"fits": True, "position": pipeline.position}
            line = f"{saved.directory} fits: {target} goes on at position {pipeline.position}"
    screen.answer(found, [line])
    return int(not found["fits"])


def amendments_in(state: Mapping[str, Any]) -> Amendments:
    """The amendments of the state's stream. Raises: ValueError for what is no such log."""
    saved = state.get("rest", {}).get("amendments")
    return () if saved is None else saved_amendments(saved)


def value_text(value: Any) -> str:
    return repr(value) if value is MISSING else json.dumps(value)


def _shown(value: Any) -> str:
    text = value_text(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
