"""`datarax-ray diff`: whether two runs saw the same data, and where they first differ.

A run is a folder of checkpoints, compared by their digests, or a pipeline, which makes its batches again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from datarax_ray.cli.arguments import names_a_pipeline, pipeline_of
from datarax_ray.cli.checkpoint import amendments_in, find_all, value_text
from datarax_ray.cli.screen import Screen
from datarax_ray.feed.origins import NoBatchError
from datarax_ray.plan.amendments import Apart, apart
from datarax_ray.plan.fingerprint import DriftError, changes
from datarax_ray.read.elements.row_digests import first_difference

if TYPE_CHECKING:
    from datarax_ray.pipeline import Pipeline

Place = tuple[int, int, int, int]  # position and offset where a digest begins, and where it ends


class Verdict(NamedTuple):
    """The result of a comparison. is_equal: None if the digests cannot tell. lines: for people; found: for programs."""

    is_equal: bool | None
    lines: list[str]
    found: dict[str, Any]


def diff(first: str, second: str, steps: tuple[int, int] | None, screen: Screen) -> int:
    runs = [name for name in (first, second) if not names_a_pipeline(name)]
    if steps is not None and runs:
        raise ValueError(f"--steps needs two pipelines; {runs[0]} is a folder of checkpoints")
    if len(runs) == 2:
        verdict = _of_runs(first, second)
    elif runs:
        with pipeline_of(second if runs == [first] else first) as pipeline:
            verdict = _of_run(runs[0], pipeline)
    else:
        with pipeline_of(first) as one, pipeline_of(second) as other:
            verdict = _of_pipelines(one, other, steps)
    reason = {"reason": " ".join(verdict.lines)} if verdict.is_equal is None else {}
    screen.answer({"equal": verdict.is_equal} | reason | verdict.found, verdict.lines)
    return 2 if verdict.is_equal is None else int(not verdict.is_equal)


def _of_runs(first: str, second: str) -> Verdict:
    one, other = _digests(first), _digests(second)
    both = sorted(one.keys() & other.keys())
    last = [find_all(name)[-1].state for name in (first, second)]
    changed = _changed(*last)
    wrong = next((place for place in both if one[place] != other[place]), None)
    if wrong is None:  # after the last digests, the amendments of positions that both consumed may still differ
        since = max((place[2] for place in both), default=0)
        end = min(state["position"] for state in last)
        if differs := apart(amendments_in(last[0]), amendments_in(last[1]), since, end):
            return _amended_apart(both, differs, changed)
    if not both:
        line = "no state of one run is at the position of a state of the other, with a digest"
        return Verdict(None, [line, *_lines(changed)], changed)
    return _at_places([place for place in both if wrong is None or place < wrong], wrong, changed)


def _amended_apart(equal: list[Place], where: Apart, changed: dict[str, Any]) -> Verdict:
    known = [*([_up_to(equal)] if equal else []), *_lines(changed)]
    if where.is_sure:
        line = f"the amendments of positions [{where.start}, {where.stop}), which both consumed, differ"
        return Verdict(False, [line, *known], {"start": where.start, "stop": where.stop} | changed)
    line = (
        f"from position {where.start:,} on they skip different records, and one of these may come before position "
        f"{where.stop:,}: no state of one run after it is at the position of a state of the other"
    )
    return Verdict(None, [line, *known], changed)


def _of_run(name: str, pipeline: Pipeline) -> Verdict:
    places = _digests(name)
    if not places:
        return Verdict(None, [f"no state in {name} has a digest of all rows: Pipeline(digest=True) keeps one"], {})
    state = next(saved.state for saved in reversed(find_all(name)) if _place(saved.state) in places)
    since = _place(state)[:2]
    left = sorted(place for place in places if place[:2] == since)
    seen: list[Place] = []
    try:
        for position, offset, digest in pipeline.digests(state):
            if (place := (*since, position, offset)) == left[0]:
                if digest != places[place]:
                    return _at_places(seen, place, {})
                seen.append(left.pop(0))
            if not left or (position, offset) > left[0][2:]:
                break
    except DriftError as error:
        return Verdict(False, [str(error)], {"drift": str(error)})
    if left:
        return Verdict(None, [f"no batch of the pipeline ends where the run saved a state: {_end_of(left[0])}"], {})
    return _at_places(seen, None, {})


def _of_pipelines(one: Pipeline, other: Pipeline, steps: tuple[int, int] | None) -> Verdict:
    if steps is None and None in (one.source.describe().stop, other.source.describe().stop):
        raise ValueError("a stream without an end is compared for ever; choose the batches: --steps 0:1000")
    first, stop = steps or (0, 2**62)
    changed = _changed(one.get_state(), other.get_state())
    missing: list[str] = []

    def batches(pipeline: Pipeline) -> Iterator[Any]:
        try:
            yield from pipeline.replay(first, stop)
        except NoBatchError as error:  # the stream ends before the first
            missing.append(str(error))

    found = first_difference(batches(one), batches(other), first)
    if len(missing) == 2:
        return Verdict(None, [f"there is nothing to compare: {missing[0]}"], changed)
    if found is None:
        return Verdict(True, ["the same batches"], changed)
    records = [_records(pipeline, found.step, found.row, found.place) for pipeline in (one, other)]
    where = f"step {found.step}, row {found.row}"
    lines = [f"{where}: {', '.join(found.fields) or 'only one of them has it'}"]
    lines += [f"  {', '.join(names) or 'the stream has no such row'}" for names in records]
    if records[0] != records[1]:
        lines.append("the row is made of different records: the order, the files or the skipped records differ")
    else:
        lines.append("the same record gives different rows: a transform, a library or the contents of a file differ")
    return Verdict(False, [*lines, *_lines(changed)], {**found._asdict(), "records": records} | changed)


def _records(pipeline: Pipeline, step: int, row: int, place: int | None) -> list[str]:
    """The records of a row; of a packed row, the one at this place."""
    try:
        origins = [origin for origin in pipeline.locate(step) if origin.row == row]
    except NoBatchError:
        return []
    if place is not None:
        at = [origin for origin in origins if origin.places and origin.places[0] <= place < origin.places[1]]
        origins = at or origins
    return [origin.record for origin in origins]


def _digests(name: str) -> dict[Place, str]:
    states = [saved.state for saved in find_all(name)]
    whole = [state for state in states if "digest" in state and "parts" not in state["digest"]]
    return {_place(state): state["digest"]["sum"] for state in whole}


def _place(state: Mapping[str, Any]) -> Place:
    rest = state.get("rest", {})
    offset = next((value for key, value in rest.items() if key.endswith("offset")), 0) + rest.get("pool", [0])[0]
    return *state.get("digest", {}).get("since", (0, 0)), state["position"], offset


def _at_places(equal: list[Place], wrong: Place | None, changed: dict[str, Any]) -> Verdict:
    """The verdict of digests that are equal at these places, and differ at `wrong`."""
    known = [_up_to(equal)] if equal else []
    if wrong is None:
        return Verdict(True, [*known, *_lines(changed)], changed)
    start, stop = equal[-1][2] if equal else wrong[0], wrong[2] + bool(wrong[3])
    lines = [f"the first difference is at positions [{start}, {stop})", *known, *_lines(changed)]
    lines.append("compare two pipelines, FILE.py:NAME, to find the step and row")
    return Verdict(False, lines, {"start": start, "stop": stop} | changed)


def _up_to(equal: list[Place]) -> str:
    return f"the same up to {_end_of(equal[-1])}, by {len(equal)} digests"


def _end_of(place: Place) -> str:
    return f"position {place[2]:,}" + (f" and {place[3]} in its record" if place[3] else "")


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    logs = [[str(each) for each in amendments_in(state)] for state in (one, other)]
    amended = {"amendments": logs} if logs[0] != logs[1] else {}
    return {"settings": changes(one["settings"], other["settings"])} | amended


def _lines(changed: dict[str, Any]) -> list[str]:
    settings = changed.get("settings", {}).items()
    lines = [f"  {name}: {value_text(one)} and {value_text(other)}" for name, (one, other) in settings]
    if "amendments" in changed:
        one, other = ("; ".join(log) or "nothing" for log in changed["amendments"])
        lines.append(f"  amended: {one} and {other}")
    return lines
