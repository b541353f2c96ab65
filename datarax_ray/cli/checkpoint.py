"""`datarax-ray checkpoint`: what the saved states of pipelines say, and whether they fit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from etils import epath
from rich import box
from rich.console import RenderableType
from rich.table import Table

from datarax_ray.cli.screen import Screen
from datarax_ray.cli.target import names_a_pipeline, pipeline_of
from datarax_ray.pipeline.checkpoint import FILE, read_state
from datarax_ray.plan.amendments import Amendments, saved_amendments
from datarax_ray.plan.fingerprint import MISSING, DriftError, changes, flattened, listed

_MAX_SHOWN = 60
_STEP = re.compile(r"(?:.*_)?(\d+)")  # Orbax: 12, or step_12 with a step_prefix


class Saved(NamedTuple):
    """A saved state, and the folder that it lies in."""

    directory: epath.Path
    state: dict[str, Any]


def find(directory: str) -> Saved:
    """The state in a folder: of the data alone, of a step, or of a manager, whose latest step with one counts.

    Raises: FileNotFoundError where there is none; ValueError as read_state, and where that step has several.
    """
    root, found = _folders(directory)
    latest = max(_step(root, path) for path in found)
    return _only(directory, [path for path in found if _step(root, path) == latest])


def find_all(directory: str) -> list[Saved]:
    """Every state in a folder, as `find`, by step. directory: RUN/*/NAME for one of several pipelines of each step.

    Raises: as find.
    """
    root, found = _folders(directory)
    steps: dict[int, list[epath.Path]] = {}
    for path in sorted(found):
        steps.setdefault(_step(root, path), []).append(path)
    return [_only(directory, steps[step]) for step in sorted(steps)]


def _folders(directory: str) -> tuple[epath.Path, list[epath.Path]]:
    """The folder that holds steps, and those below it with a state."""
    parts = directory.rstrip("/").split("/")
    number = next((number for number, part in enumerate(parts) if "*" in part), len(parts))
    root = epath.Path("/".join(parts[:number]) or ("/" if number else "."))
    below = "".join(f"{part}/" for part in parts[number:])
    for pattern in [below + FILE] if below else [FILE, f"*/{FILE}", f"*/*/{FILE}"]:
        if root.exists() and (found := [path.parent for path in root.glob(pattern)]):
            return root, found
    raise FileNotFoundError(f"{directory}: there is no saved pipeline here; give the folder of a run or of a step")


def _only(directory: str, found: list[epath.Path]) -> Saved:
    if len(found) > 1:
        said = ", ".join(str(path) for path in sorted(found))
        raise ValueError(
            f"a step has the states of {len(found)} pipelines: {said}. Name one of these folders, or, of all steps, "
            f"'{directory.rstrip('/')}/*/{sorted(found)[0].name}'"
        )
    return Saved(found[0], read_state(found[0]))


def show(directory: str, screen: Screen) -> None:
    """Print a state: where the stream goes on, and which stream it is."""
    saved = find(directory)
    screen.answer({"directory": str(saved.directory), "state": saved.state}, _lines(saved))


def _lines(saved: Saved) -> Iterator[RenderableType]:
    yield f"{saved.directory}: goes on at position {_position(saved.state)}"
    for each in amendments_in(saved.state):
        yield f"amended {each}"
    table = Table("setting", "value", box=box.SIMPLE)
    for name, value in flattened(saved.state).items():
        table.add_row(name, _shown(value))
    yield table


def diff(first: str, second: str, screen: Screen) -> int:
    """Print what differs between two states; 1 where anything does, as `diff` has it."""
    left, right = find(first), find(second)
    changed = changes(left.state, right.state)
    screen.answer(changed, _lines_of_two(left, right, changed))
    return 1 if changed else 0


def _lines_of_two(left: Saved, right: Saved, changed: Mapping[str, Sequence[Any]]) -> Iterator[RenderableType]:
    if not changed:
        yield "no difference"
        return
    table = Table("", str(left.directory), str(right.directory), box=box.SIMPLE)
    for name, values in changed.items():
        table.add_row(name, *map(_shown, values))
    yield table
    one, other = (amendments_in(each.state) for each in (left, right))
    if any(name.startswith("settings.") for name in changed):
        yield "two streams: one cannot go on from the other's state"
    elif one == other:
        yield "the same stream, at another place"
    else:
        at = min(each.at for each in {*one} ^ {*other})
        yield f"the same stream up to position {at:,}, from which on they are amended in other ways"


def fits(target: str, directory: str, screen: Screen) -> int:
    """Print whether a pipeline can go on from a state, or all settings that differ; 1 where not, as `diff` has it."""
    if names_a_pipeline(directory) and not names_a_pipeline(target):
        target, directory = directory, target  # whoever has them the other way round means the same
    saved = find(directory)
    found: dict[str, Any] = {"directory": str(saved.directory)}
    with pipeline_of(target) as pipeline:
        try:
            pipeline.set_state(saved.state)
            found |= {"fits": True, "position": pipeline.position}
        except DriftError as error:
            found |= {"fits": False, "differences": [asdict(each) for each in error.differences]}
    if found["fits"]:
        line = f"{saved.directory} fits: {target} goes on at position {found['position']}"
    else:
        differences = [each["said"] for each in found["differences"]]
        line = f"{saved.directory} does not fit {target}:{listed(differences, len(differences))}"
    screen.answer(found, [line])
    return int(not found["fits"])


def _step(root: epath.Path, path: epath.Path) -> int:
    """The number of a state's step; -1 where the folder is no manager's."""
    numbers = [int(found[1]) for part in path.relative_to(root).parts if (found := _STEP.fullmatch(part))]
    return (numbers or [-1])[0]


def amendments_in(state: Mapping[str, Any]) -> Amendments:
    """What the state says was changed of its stream. Raises: ValueError for what is no such log."""
    rest = state.get("rest")
    said = rest.get("amendments") if isinstance(rest, Mapping) else None
    return () if said is None else saved_amendments(said)


def _position(state: Mapping[str, Any]) -> str:
    return f"{state['position']:,}" if isinstance(state.get("position"), int) else repr(state.get("position"))


def value_text(value: Any) -> str:
    """A setting as JSON, or that it is missing."""
    return repr(value) if value is MISSING else json.dumps(value)


def _shown(value: Any) -> str:
    text = value_text(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
