"""`datarax-ray diff`: whether two runs saw the same, and where they first differ.

A run is the folder of its checkpoints, whose digests tell what it saw; or a pipeline, that makes its batches once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from datarax_ray.cli.checkpoint import amendments_in, find_all, value_text
from datarax_ray.cli.screen import Screen
from datarax_ray.cli.target import names_a_pipeline, pipeline_of
from datarax_ray.feed.origins import NoBatchError
from datarax_ray.plan.amendments import Apart, apart
from datarax_ray.plan.fingerprint import DriftError, changes
from datarax_ray.read.elements.differences import first_difference

if TYPE_CHECKING:
    from datarax_ray.pipeline import Pipeline


class Verdict(NamedTuple):
    """What is told. is_equal: None where nothing tells. said: for people; found: for programs."""

    is_equal: bool | None
    said: list[str]
    found: dict[str, Any]


def diff(first: str, second: str, steps: tuple[int, int] | None, screen: Screen) -> int:
    """Print whether two runs saw the same: 0 where they did, 1 where not, 2 where nothing tells."""
    runs = [name for name in (first, second) if not names_a_pipeline(name)]
    if steps is not None and runs:
        raise ValueError(f"--steps are of two pipelines; {runs[0]} is a folder of checkpoints")
    if len(runs) == 2:
        verdict = _of_runs(first, second)
    elif runs:
        with pipeline_of(second if runs == [first] else first) as pipeline:
            verdict = _of_run(runs[0], pipeline)
    else:
        with pipeline_of(first) as one, pipeline_of(second) as other:
            verdict = _of_pipelines(one, other, steps)
    reason = {"reason": " ".join(verdict.said)} if verdict.is_equal is None else {}
    screen.answer({"equal": verdict.is_equal} | reason | verdict.found, verdict.said)
    return 2 if verdict.is_equal is None else int(not verdict.is_equal)


def _of_runs(first: str, second: str) -> Verdict:
    one, other = (_digests(name) for name in (first, second))
    both = sorted(one.keys() & other.keys())
    last = [find_all(name)[-1].state for name in (first, second)]
    changed = _changed(*last)
    wrong = next((place for place in both if one[place] != other[place]), None)
    if wrong is None:  # behind the last of these places, what both went past may still be amended in other ways
        since = max((place[2] for place in both), default=0)
        end = min(state["position"] for state in last)
        if differs := apart(amendments_in(last[0]), amendments_in(last[1]), since, end):
            return _amended_apart(both, differs, changed)
    if not both:
        return Verdict(None, ["no state of one run stands where a state of the other does, with a digest"], changed)
    return _at_places([place for place in both if wrong is None or place < wrong], wrong, changed)


def _amended_apart(equal: list[Place], where: Apart, changed: dict[str, Any]) -> Verdict:
    """The verdict, where no digests are compared at positions that both went past, amended in other ways."""
    known = [_up_to(equal)] if equal else []
    if where.is_sure:
        said = [f"positions [{where.start}, {where.stop}), which both went past, are amended in other ways", *known]
        return Verdict(False, [*said, *_lines(changed)], {"start": where.start, "stop": where.stop} | changed)
    said = [
        f"from position {where.start:,} on they leave out other records, and nothing tells whether one of these came "
        f"before position {where.stop:,}: no state of one run stands behind it where a state of the other does",
        *known,
    ]
    return Verdict(None, [*said, *_lines(changed)], changed)


def _of_run(name: str, pipeline: Pipeline) -> Verdict:
    places = _digests(name)
    if not places:
        return Verdict(None, [f"no state in {name} has a digest of all rows: Pipeline(digest=True) keeps one"], {})
    state = next(saved.state for saved in reversed(find_all(name)) if _place(saved.state) in places)
    since = _place(state)[:2]
    left = sorted(place for place in places if place[:2] == since)
    seen: list[Any] = []
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
        return Verdict(None, [f"no batch of the pipeline ends where the run had a state: {_said(left[0])}"], {})
    return _at_places(seen, None, {})


def _of_pipelines(one: Pipeline, other: Pipeline, steps: tuple[int, int] | None) -> Verdict:
    if steps is None and None in (one.source.describe().stop, other.source.describe().stop):
        raise ValueError("a stream without an end is compared for ever; say which batches: --steps 0:1000")
    first, stop = steps or (0, 2**62)
    changed = _changed(one.get_state(), other.get_state())
    ended: list[str] = []

    def batches(pipeline: Pipeline) -> Iterator[Any]:
        try:
            yield from pipeline.replay(first, stop)
        except NoBatchError as error:  # before the first
            ended.append(str(error))

    found = first_difference(batches(one), batches(other), first)
    if len(ended) == 2:
        return Verdict(None, [f"there is nothing to compare: {ended[0]}"], changed)
    if found is None:
        return Verdict(True, ["the same batches"], changed)
    records = [_records(each, found.step, found.row, found.place) for each in (one, other)]
    where = f"step {found.step}, row {found.row}"
    said = [f"{where}: {', '.join(found.fields) or 'only one of them has it'}"]
    said += [f"  {', '.join(each) or 'the stream has no such row'}" for each in records]
    if records[0] != records[1]:
        said.append("the row is made of other records: another order, other files, or records that are left out")
    elif changed["settings"] or "amendments" in changed:
        said.append("the same record gives something else: another transform, or what the files hold")
    else:
        said.append(
            "the same record gives something else by the same settings: a transform that is no function of its "
            "element, or another version of a library"
        )
    said += _lines(changed)
    return Verdict(False, said, {**found._asdict(), "records": records} | changed)


def _records(pipeline: Pipeline, step: int, row: int, place: int | None) -> list[str]:
    """What a row is made of; of a packed one, at this place."""
    try:
        origins = [origin for origin in pipeline.locate(step) if origin.row == row]
    except NoBatchError:
        return []
    if place is not None:
        at = [origin for origin in origins if origin.places and origin.places[0] <= place < origin.places[1]]
        origins = at or origins
    return [origin.record for origin in origins]


Place = tuple[int, int, int, int]  # where a digest begins, as position and offset, and where it ends


def _digests(name: str) -> dict[Place, str]:
    """The digests of all rows that the states of a run have."""
    states = [saved.state for saved in find_all(name)]
    whole = [state for state in states if "digest" in state and "parts" not in state["digest"]]
    return {_place(state): state["digest"]["sum"] for state in whole}


def _place(state: Mapping[str, Any]) -> Place:
    offset = next((value for key, value in state.get("rest", {}).items() if key.endswith("offset")), 0)
    return *state.get("digest", {}).get("since", (0, 0)), state["position"], offset


def _at_places(equal: list[Place], wrong: Place | None, changed: dict[str, Any]) -> Verdict:
    """The verdict, where digests are equal at these places, and at `wrong` are not."""
    last = _up_to(equal) if equal else ""
    if wrong is None:
        return Verdict(True, [last, *_lines(changed)], changed)
    start, stop = equal[-1][2] if equal else wrong[0], wrong[2] + bool(wrong[3])
    said = [f"the first difference is at positions [{start}, {stop})", *filter(None, [last]), *_lines(changed)]
    said.append("compare two pipelines, FILE.py:NAME, for the step and row")
    return Verdict(False, said, {"start": start, "stop": stop} | changed)


def _up_to(equal: list[Place]) -> str:
    return f"the same up to {_said(equal[-1])}, by {len(equal)} digests"


def _said(place: Place) -> str:
    return f"position {place[2]:,}" + (f" and {place[3]} in its record" if place[3] else "")


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    logs = [[str(each) for each in amendments_in(state)] for state in (one, other)]
    return {"settings": changes(one["settings"], other["settings"])} | (
        {"amendments": logs} if logs[0] != logs[1] else {}
    )


def _lines(changed: dict[str, Any]) -> list[str]:
    settings = changed.get("settings", {}).items()
    said = [f"  {name}: {value_text(one)} and {value_text(other)}" for name, (one, other) in settings]
    if "amendments" in changed:
        one, other = ("; ".join(log) or "nothing" for log in changed["amendments"])
        said.append(f"  amended: {one} and {other}")
    return said
