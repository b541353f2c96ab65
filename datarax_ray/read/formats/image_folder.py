"""Images in a folder for each class, as torchvision's ImageFolder and the Hugging Face `imagefolder` take them."""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import Any

import numpy as np

from datarax_ray.plan.arguments import NamedArguments
from datarax_ray.plan.plain_values import digest
from datarax_ray.read.decode.image import DecodeImage
from datarax_ray.read.elements.row_digests import evenly_spaced
from datarax_ray.read.errors import StorageError
from datarax_ray.read.file_contents import head_and_content

logger = logging.getLogger("datarax_ray")

# Source: torchvision.datasets.folder.IMG_EXTENSIONS
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_NOTES = (".txt", ".md", ".json", ".csv", ".xml", ".html", ".yaml", ".db")  # beside images, and none
_MAX_LOOKED_AT = 1000  # files whose beginning is read, one by one, to tell a folder from another one


class ImageFolder(NamedArguments):
    """The images of directory/CLASS/**/NAME by index, class by class in the order of their names, decoded.

    An element is {"image": uint8 (height, width, 3), "label": int}. class_names: by label, sorted. A class is a folder
    with images in it; images beside the folders, and files of other names in them, are skipped, and a warning counts
    them, but for notes (.txt, .json, ...). Folders and files whose names begin with "." are skipped, which torchvision
    takes: `.ipynb_checkpoints` would be the first class.

    Its repr identifies a folder by all names, and by sizes and bytes of 1,000 images.

    Raises: FileNotFoundError where there is no such directory; ValueError where it has no folders of images, one has
    none, or a link in it leads to a folder that it is in.

    Source: torchvision.datasets.ImageFolder, whose order and labels these are.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        if "://" in os.fspath(directory):
            raise ValueError(
                f"an image folder is a directory of this machine, got {directory!r}; mount the bucket, or write the "
                "images to Parquet, tar or ArrayRecord files, which are read behind URLs"
            )
        self.directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        with os.scandir(self.directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        entries = [entry for entry in entries if entry.name[:1] != "."]
        self.class_names = tuple(entry.name for entry in entries if entry.is_dir())
        if not self.class_names:
            raise ValueError(
                f"{self.directory} has no folders; images are in one for each class, directory/CLASS/NAME.jpg"
            )
        names: list[bytes] = []
        labels: list[int] = []
        loose = [entry.name for entry in entries if entry.is_file() and entry.name.lower().endswith(SUFFIXES)]
        skipped = Counter("beside the folders" for _ in loose)
        for label, name in enumerate(self.class_names):
            mine = _images_in(os.path.join(self.directory, name), skipped)
            if not mine:
                raise ValueError(
                    f"{os.path.join(self.directory, name)} has no images ({', '.join(SUFFIXES)}), and would be the "
                    f"class {label}; take the folder away, or put its images there"
                )
            names += (os.fsencode(os.path.relpath(path, self.directory)) for path in mine)
            labels += [label] * len(mine)
        if skipped:
            logger.warning(
                "%s: skipped %d files (%s); it reads %s in folders. Rename, convert or move the images among them",
                self.directory,
                skipped.total(),
                ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common(8)),
                ", ".join(SUFFIXES),
            )
        self._names = np.array(names, "S")  # a few MB for a million, where they travel to the actors
        self._labels = np.array(labels, np.int32)
        looked_at = [self.path(index) for index in evenly_spaced(len(names), _MAX_LOOKED_AT).tolist()]
        contents = [[os.path.getsize(path), *head_and_content(path)] for path in looked_at]
        self._digest = digest([os.fsdecode(b"\n".join(names)), contents])

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> str:
        """The file of this image."""
        return os.path.join(self.directory, os.fsdecode(bytes(self._names[index])))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Raises: ValueError with the file's path for what is no image; StorageError where its folder is not there."""
        encoded, label = self.encoded(index)
        try:
            return DecodeImage().map(encoded) | {"label": label}
        except ValueError as error:
            raise ValueError(f"{self.path(index)}: {error}") from None

    def encoded(self, index: int) -> tuple[bytes, int]:
        """The file of an image, and its label. Raises: StorageError where the folder is gone."""
        path = self.path(index)
        try:
            with open(path, "rb") as file:
                return file.read(), int(self._labels[index])
        except FileNotFoundError as error:
            if os.path.isdir(os.path.dirname(path)):  # this image alone was taken away
                raise
            raise StorageError(
                f"{path}: its folder was there when the source was made, and is not here: a mount is missing, or the "
                "folder was moved. No image is broken by that, so none is skipped"
            ) from error

    def __repr__(self) -> str:  # without the directory: the folder may move
        return f"ImageFolder(num_images={len(self)}, num_classes={len(self.class_names)}, digest={self._digest!r})"


class EncodedImages(ImageFolder):
    """The images as their files store them: {"image": bytes, "label": int}."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        encoded, label = self.encoded(index)
        return {"image": encoded, "label": label}


def _images_in(folder: str, skipped: Counter[str]) -> list[str]:
    """The paths of the images, in order. skipped: counts the other files, but for notes, by suffix."""
    images = []
    # of each folder, itself and those that it is in, wherever links lead
    above: dict[str, tuple[str, ...]] = {folder: (os.path.realpath(folder),)}
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name[:1] != "."]
        for path in (os.path.join(root, name) for name in folders):
            real = os.path.realpath(path)
            if any(each == real or each.startswith(real + os.sep) for each in above[root]):
                raise ValueError(f"{path} is a link to a folder that it is in, so its images would come without end")
            above[path] = *above[root], real
        mine = sorted(name for name in names if name[:1] != ".")
        images.append((root, [name for name in mine if name.lower().endswith(SUFFIXES)]))
        suffixes = (os.path.splitext(name)[1].lower() for name in mine)
        skipped.update(suffix or "without a suffix" for suffix in suffixes if suffix not in SUFFIXES + _NOTES)
    return [os.path.join(root, name) for root, names in sorted(images) for name in names]
