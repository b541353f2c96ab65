"""`datarax-ray inspect`: the contents of a dataset, before anybody writes a line to read it; and sheets of pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from datarax_ray import DecodeImage
from datarax_ray.checking import decoder_of
from datarax_ray.cli.arguments import source_at
from datarax_ray.cli.screen import Screen
from datarax_ray.plan.plain_values import shown
from datarax_ray.read.elements.columns import leaves
from datarax_ray.read.files.sniff import picture_in
from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.lines import written_whole
from datarax_ray.read.streams.indexed import IndexedStream

_MAX_VALUES = 4
_MAX_PICTURES, _LINE = 64, 8  # of a sheet, and side by side
_MAX_SIDE, _THUMB = 2048, 128  # of a sheet and of a picture in it, in pixels
_STRIP, _GAP, _LETTERS = 12, 4, 0.8  # of a caption and beside it, in pixels; the scale of OpenCV's font
_LABELS, _MAX_CAPTION = ("label", "cls", "class", "target", "category"), 20  # fields, and letters


def inspect(
    paths: list[str],
    num_elements: int,
    screen: Screen,
    *,
    sheet: Path | None = None,
    decoder: tuple[Any, ...] | None = None,
    split: str | None = None,
) -> None:
    if sheet is not None and sheet.suffix != ".png":
        raise ValueError(f"{sheet} does not end with .png, and a sheet of pictures is one")
    if sheet is not None and not sheet.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {sheet.parent} to write {sheet.name} to; create it first")
    # what a sample of a tar file lacks is None, as this is a look
    with contextlib.closing(source_at(paths, split, decoder, missing="none")) as source:
        facts = _facts(source)
        most = num_elements if sheet is None else max(num_elements, _MAX_PICTURES)
        elements = list(islice(iter(source), most))
    if decoder is None:
        elements, guess = _decoded(elements)
        facts |= {"decoder": f"{guess}()"} if guess else {}
    if sheet is not None:
        facts["pictures"] = f"the first {_write_sheet(elements[:_MAX_PICTURES], sheet)} in {sheet}"
    elements = elements[:num_elements]
    fields = [(name, type_of(values), list(map(_value, values))) for name, values in _fields(elements).items()]
    plain = [dict(zip(("field", "type", "values"), field, strict=True)) for field in fields]
    lines = [f"{name}: {fact:,}" if isinstance(fact, int) else f"{name}: {fact}" for name, fact in facts.items()]
    table = Table("field", "type", *(f"element {n}" for n in range(len(elements))), box=box.SIMPLE)
    for name, kind, values in fields:
        table.add_row(name, kind, *values)
    screen.answer(facts | {"fields": plain}, [*lines, table])


def _facts(source: Any) -> dict[str, Any]:
    stream = source.describe()
    reader, files = stream.reader, stream.settings().get("files", {})
    facts: dict[str, Any] = {"source": type(source).__name__}
    facts |= {name.removeprefix("num_"): files[name] for name in ("num_files", "num_shards") if name in files}
    if isinstance(stream, IndexedStream):
        facts |= {"records": reader.num_records, "stored bytes a record": int(reader.mean_nbytes)}
    if isinstance(reader, ArrayRecordReader):
        facts["group size"] = reader.group_size
    return facts


def _decoded(elements: list[Any]) -> tuple[list[Any], str]:
    """The elements, decoded by the encoding of the first one, and the decoder's name; "" where none fits."""
    decoder = decoder_of(next(iter(elements), None))
    if decoder is None:
        return elements, ""
    try:
        return [decoder.map(element) for element in elements], type(decoder).__name__
    except (ValueError, ImportError):  # a guess: a list in JSON is no element, and OpenCV may be missing
        return elements, ""


def _fields(elements: list[Any]) -> dict[str, list[Any]]:
    if not all(isinstance(element, dict) for element in elements):
        return {"": elements}
    names = dict.fromkeys(name for element in elements for name in element)
    return {str(name): [element.get(name) for element in elements] for name in names}


def type_of(values: list[Any]) -> str:
    value = _as_numpy(next((value for value in values if value is not None), None))
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape}" if value.shape else str(value.dtype)
    return type(value).__name__


def _value(value: Any) -> str:
    value = _as_numpy(value)
    if isinstance(value, np.ndarray) and value.size > _MAX_VALUES:
        first = ", ".join(map(str, value.reshape(-1)[:_MAX_VALUES].tolist()))
        return f"[{first}, ...]"
    return shown(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def _as_numpy(value: Any) -> Any:
    return np.asarray(value) if callable(getattr(value, "__array__", None)) else value


def _write_sheet(elements: list[Any], sheet: Path) -> int:
    """Write the first picture of each element. Returns how many there are. Raises: ValueError where there is none."""
    found = [(number, picture) for number, each in enumerate(elements) if (picture := _picture(each)) is not None]
    if not found:
        raise ValueError(
            f"none of the first {len(elements)} elements has a picture: uint8 (height, width, 1 or 3), or the "
            "bytes of a PNG or JPEG"
        )
    pictures, captions = [picture for _, picture in found], [caption_of(n, elements[n]) for n, _ in found]
    cuts = [slice(at, at + _LINE) for at in range(0, len(found), _LINE)]
    with written_whole(sheet) as part:
        part.write_bytes(png_of([line_of(pictures[cut], captions[cut]) for cut in cuts]))
    return len(found)


def _picture(element: Any) -> np.ndarray | None:
    for _, value in leaves(element):
        if picture_in(value) is not None:
            with contextlib.suppress(ValueError):  # it only begins as one
                value = DecodeImage().map(value)["image"]
        if is_picture(value):
            return value
    return None


def is_picture(value: Any) -> bool:
    """Whether a value is an array of pixels, uint8 (height, width, 1 or 3)."""
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3)


def caption_of(number: int, element: Any) -> str:
    """The caption of a picture: its number, and the label of its element where a field has the name of one."""
    fields = {path[-1]: value for path, value in leaves(element) if path}
    labels = [str(fields[name]) for name in _LABELS if name in fields]
    return ": ".join([str(number), *labels[:1]])[:_MAX_CAPTION]


def line_of(pictures: Iterable[np.ndarray], captions: Iterable[str]) -> np.ndarray:
    """As many pictures, RGB or grey, as fit beside one another, each over its caption: uint8 (height, width, 3)."""
    line: list[np.ndarray] = []
    for picture, caption in zip(pictures, captions, strict=False):
        tile = _tile(picture, caption)
        if sum(each.shape[1] for each in line) + tile.shape[1] > _MAX_SIDE:
            break
        line.append(tile)
    highest = max(map(len, line))
    return np.hstack([np.pad(each, ((0, highest - len(each)), (0, 0), (0, 0)), constant_values=255) for each in line])


def _tile(picture: np.ndarray, caption: str) -> np.ndarray:
    """A picture over its caption, with a gap to the right and below."""
    import cv2

    height, width = picture.shape[:2]
    scale = min(1.0, _THUMB / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    caption = caption.encode("ascii", "replace").decode()  # OpenCV writes no other letters
    (needed, _), _ = cv2.getTextSize(caption, cv2.FONT_HERSHEY_PLAIN, _LETTERS, 1)
    tile = np.full((size[1] + _STRIP + _GAP, max(size[0], needed) + _GAP, 3), 255, np.uint8)
    small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    tile[: size[1], : size[0]] = small.reshape(size[1], size[0], -1)
    cv2.putText(tile, caption, (0, size[1] + _STRIP), cv2.FONT_HERSHEY_PLAIN, _LETTERS, (0, 0, 0))
    return tile


def png_of(lines: Sequence[np.ndarray]) -> bytes:
    """A PNG of lines, one below another."""
    import cv2

    widest = max(line.shape[1] for line in lines)
    padded = [np.pad(line, ((0, 0), (0, widest - line.shape[1]), (0, 0)), constant_values=255) for line in lines]
    sheet = np.vstack(padded)
    return bytes(cv2.imencode(".png", sheet[:, :, ::-1])[1])
