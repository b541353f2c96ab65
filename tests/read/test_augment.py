"""Augmentations: pixels by plain NumPy formulas and cv2's own calls, distributions as torchvision documents them."""

import dataclasses
import functools
import math
import pickle
import re
import sys

import numpy as np
import pytest

from datarax_ray.read.augment import ColorJitter, RandomCrop, RandomFlip, RandomResizedCrop
from datarax_ray.read.elements.progress import element_rng

cv2 = pytest.importorskip("cv2")
# Every pixel says where it lies.
PLACES = np.stack([*np.mgrid[:240, :250], np.full((240, 250), 7)], axis=-1).astype(np.uint8)
PHOTO = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8), (0, 0), 3)
PHOTO = cv2.normalize(PHOTO, None, 0, 255, cv2.NORM_MINMAX)


def changed(transform, image, rng):
    given = image.copy()
    given.flags.writeable = False
    made = transform.random_map({"label": 3, "image": given}, rng)
    assert (list(made), made["label"], made["image"].dtype) == (["label", "image"], 3, np.uint8)
    assert (given == image).all()
    return made["image"]


def draws(transform, image, count):
    """As an actor makes them at the first positions."""
    rng_at = element_rng(seed=5, transform_index=1)
    return [changed(transform, image, rng_at(position)) for position in range(count)]


class Scripted:
    """Random numbers that a test has written down, in the order in which they are drawn."""

    def __init__(self, *numbers):
        self._numbers = list(numbers)

    def _next(self, *_):
        return self._numbers.pop(0)

    random = integers = uniform = permutation = _next


def is_uniform(values, low, high, of=np.asarray):
    """By Kolmogorov's distance, which few samples in 10,000 exceed. of: what is applied to values and limits first."""
    low, high = of(low), of(high)
    values = (np.sort(of(values)) - low) / (high - low)
    steps = np.arange(len(values) + 1) / len(values)
    distance = max((steps[1:] - values).max(), (values - steps[:-1]).max())
    return values[0] >= 0 and values[-1] <= 1 and distance < 2.2 / math.sqrt(len(values))


def test_the_distance_tells_what_is_not_uniform():
    values = np.random.default_rng(0).random(1000)
    assert is_uniform(values, 0, 1)
    assert not is_uniform(values**1.4, 0, 1)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("image", [PHOTO, PHOTO[..., :1], PHOTO[..., 0], np.dstack([PHOTO, PHOTO[..., 0]])])
def test_a_crop_is_a_window_of_the_padded_image(mode, image):
    crop = RandomCrop((50, 70), padding=(3, 5, 7, 9), padding_mode=mode)
    widths = [(5, 9), (3, 7), (0, 0)][: image.ndim]
    whole = np.pad(image, widths, mode)
    for y, x in ((0, 0), (24, 20), (3, 11)):  # the last, the ends of both
        made = changed(crop, image, Scripted(y, x))
        assert made.shape == (50, 70, *image.shape[2:])
        assert (made == whole[y : y + 50, x : x + 70]).all()


def test_a_small_image_is_padded_by_the_difference_on_both_sides():
    image = PHOTO[:10, :30]
    made = changed(RandomCrop((16, 20), pad_if_needed=True, fill=7), image, Scripted(5, 4))
    whole = np.full((22, 30, 3), 7, np.uint8)
    whole[6:16] = image
    assert (made == whole[5:21, 4:24]).all()
    with pytest.raises(ValueError, match=r"is 10 × 30 pixels .* than the crop of 16 × 20. Set pad_if_needed=True"):
        changed(RandomCrop((16, 20)), image, Scripted())


def test_every_place_of_a_crop_is_equally_likely():
    corners = np.array([made[0, 0, :2] for made in draws(RandomCrop((231, 246)), PLACES, 2500)])
    counts = np.histogram2d(*corners.T, bins=(np.arange(11), np.arange(6)))[0]
    assert counts.sum() == 2500
    assert ((counts - 50) ** 2 / 50).sum() < 90  # chi square with 49 degrees of freedom: one in 3,000


@pytest.mark.parametrize("vertical", [False, True])
@pytest.mark.parametrize("image", [PHOTO, PHOTO[..., :1], PHOTO[..., 0]])
def test_an_image_is_flipped_as_often_as_said(vertical, image):
    mirrored = image[::-1] if vertical else image[:, ::-1]
    found = draws(RandomFlip(0.3, vertical=vertical), image, 2000)
    is_flipped = [(made == mirrored).all() for made in found]
    assert all(flipped or (made == image).all() for made, flipped in zip(found, is_flipped, strict=True))
    assert abs(sum(is_flipped) - 600) < 4 * math.sqrt(2000 * 0.3 * 0.7)
    assert all((made == image).all() for made in draws(RandomFlip(0, vertical), image, 20))
    assert all((made == mirrored).all() for made in draws(RandomFlip(1, vertical), image, 20))


@pytest.mark.parametrize("image", [PHOTO, PHOTO[..., :1], PHOTO[..., 0]])
def test_a_part_of_the_scripted_area_and_ratio_is_resized(image):
    crop = RandomResizedCrop((20, 30))
    too_high, fits = (1.0, math.log(0.75)), (0.25, math.log(0.75))
    made = changed(crop, image, Scripted(*too_high, *fits, 7, 11))
    height, width = round(math.sqrt(1200 / 0.75)), round(math.sqrt(1200 * 0.75))  # of 60 x 80 = 4,800 pixels
    part = np.ascontiguousarray(image[7 : 7 + height, 11 : 11 + width])
    assert (height, width) == (40, 30)
    expected = cv2.resize(part, (30, 20), interpolation=cv2.INTER_AREA)
    assert (made == expected.reshape(20, 30, *image.shape[2:])).all()
    sampled = changed(RandomResizedCrop((20, 30), antialias=False), image, Scripted(*fits, 7, 11))
    assert (sampled == cv2.resize(part, (30, 20)).reshape(20, 30, *image.shape[2:])).all()
    larger = changed(RandomResizedCrop(64), image, Scripted(*fits, 7, 11))
    expected = cv2.resize(part, (64, 64), interpolation=cv2.INTER_LINEAR)
    assert (larger == expected.reshape(64, 64, *image.shape[2:])).all()


@pytest.mark.parametrize(
    ("shape", "ratio", "box"),
    [((10, 100), (0.5, 2), (0, 40, 10, 20)), ((100, 10), (0.5, 2), (40, 0, 20, 10)), ((9, 9), (2, 3), (2, 0, 4, 9))],
)
def test_without_a_part_that_fits_the_middle_is_taken(shape, ratio, box):
    never = [1.0, math.log(ratio[0]), 1.0, math.log(ratio[1])] * 5
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    y, x, height, width = box
    made = changed(RandomResizedCrop((height, width), (1, 1), ratio), image, Scripted(*never, 0, 0))
    assert (made == image[y : y + height, x : x + width]).all()


def test_areas_ratios_and_places_of_parts_are_uniform():
    """Read off the pixels: an image of places stays one when it is resized."""
    side, shift = 16, (240 - 1) / 2
    found = np.array(draws(RandomResizedCrop(side, (0.1, 0.4), (0.75, 1.5)), PLACES[:, :240], 3000))[..., :2]
    first, last = found[:, 0, 0].astype(float), found[:, -1, -1].astype(float)
    sizes = (last - first) * side / (side - 1)
    assert is_uniform((sizes.prod(axis=1) / 240**2).clip(0.1, 0.4), 0.1, 0.4)
    assert is_uniform((sizes[:, 1] / sizes[:, 0]).clip(0.75, 1.5), 0.75, 1.5, np.log)
    middles = (first + last) / 2
    parts = (middles - sizes / 2) / (240 - sizes)  # of the way that a part of this size can go
    for axis in (0, 1):
        assert is_uniform(parts[:, axis].clip(0, 1), 0, 1)
    assert np.abs(middles.mean(axis=0) - shift).max() < 5


def by_formula(image, order, brightness, contrast, saturation):
    """torchvision's blends in floats, without rounding in between."""
    values = image.astype(float)

    def grey():
        return values @ [0.299, 0.587, 0.114]

    for change in order:
        if change == 0:
            values = values * brightness
        elif change == 1:
            values = values * contrast + grey().mean() * (1 - contrast)
        elif change == 2:
            values = values * saturation + grey()[..., None] * (1 - saturation)
        values = values.clip(0, 255)
    return values


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
@pytest.mark.parametrize("factors", [(1.3, 0.6, 1.4), (0.5, 1.5, 0.2), (1.0, 1.0, 0.0), (0.0, 1.0, 1.0)])
def test_colours_change_as_by_the_formulas(order, factors):
    jitter = ColorJitter(*[(factor, factor) for factor in factors])
    made = changed(jitter, PHOTO, Scripted(*factors, 0.0, np.array(order)))
    assert np.abs(made - by_formula(PHOTO, order, *factors)).max() <= 2.5  # rounded three times
    one = changed(ColorJitter(brightness=0.5), PHOTO, Scripted(1.3, 1.0, 1.0, 0.0, np.array(order)))
    assert np.abs(one - by_formula(PHOTO, [0], 1.3, 1, 1)).max() <= 0.5


@pytest.mark.parametrize("part", [-0.5, -0.2, 1 / 3, 0.5])
def test_hue_turns_the_circle_of_colours(part):
    import colorsys

    made = changed(ColorJitter(hue=0.5), PHOTO, Scripted(1.0, 1.0, 1.0, part, np.arange(4)))
    for y, x in np.random.default_rng(1).integers(0, 60, (200, 2)):
        hue, saturation, value = colorsys.rgb_to_hsv(*PHOTO[y, x] / 255)
        expected = np.array(colorsys.hsv_to_rgb((hue + part) % 1, saturation, value)) * 255
        assert np.abs(made[y, x] - expected).max() <= 6  # hue has 256 steps


def test_grey_images_keep_saturation_and_hue_and_take_the_rest():
    jitter = ColorJitter(0.5, 0.5, 0.5, 0.5)
    for image in (PHOTO[..., 0], PHOTO[..., :1]):
        made = changed(jitter, image, Scripted(1.2, 0.8, 1.4, 0.3, np.arange(4)))
        values = (image * 1.2).clip(0, 255)
        assert np.abs(made - (values * 0.8 + values.mean() * 0.2)).max() <= 1
    with pytest.raises(ValueError, match="has 4 channels; ColorJitter takes 3"):
        changed(jitter, np.dstack([PHOTO, PHOTO[..., 0]]), Scripted())


def test_factors_are_uniform_and_orders_equally_likely():
    flat = np.full((1, 1, 3), 100, np.uint8)
    lights = [made[0, 0, 0] / 100 for made in draws(ColorJitter(brightness=0.4), flat, 3000)]
    assert is_uniform(lights, 0.595, 1.405)
    turned = [made[0, 0] for made in draws(ColorJitter(hue=(-0.1, 0.4)), np.uint8([[[250, 0, 0]]]), 3000)]
    hues = [cv2.cvtColor(np.uint8([[each]]), cv2.COLOR_RGB2HSV_FULL)[0, 0, 0] for each in turned]
    assert is_uniform([(hue + 128) % 256 - 128 for hue in np.int64(hues)], -26.5, 103.5)
    # black is raised by the contrast if this comes first, and is then made brighter
    both = ColorJitter(brightness=(2, 2), contrast=(0.5, 0.5))
    image = np.uint8([[[0, 0, 0], [100, 100, 100]]])
    first = [int(made[0, 0, 0]) for made in draws(both, image, 2000)]
    assert set(first) == {50}  # 2 * 25, and 0.5 * 100: the mean is doubled, too
    clipped = [int(made[0, 1, 0]) for made in draws(both, np.uint8([[[0] * 3, [200] * 3]]), 2000)]
    assert set(clipped) == {255, 191}  # 2 * 150 and cut; cut to 255, then 0.5 * 255 + 0.5 * 127.5
    assert abs(clipped.count(191) - 1000) < 90


TRANSFORMS = [
    RandomCrop(224),
    RandomCrop([20, 30], padding=[1, 2], fill=3, padding_mode="edge", field="x"),
    RandomFlip(),
    RandomResizedCrop([20, 30]),
    ColorJitter(0.4, 1.5, (0.5, 1), 0.1),
]
REPRS = [
    "RandomCrop(size=(224, 224), padding=(0, 0, 0, 0), pad_if_needed=False, fill=0, padding_mode='constant', "
    "field='image')",
    "RandomCrop(size=(20, 30), padding=(1, 2, 1, 2), pad_if_needed=False, fill=3, padding_mode='edge', field='x')",
    "RandomFlip(p=0.5, vertical=False, field='image')",
    "RandomResizedCrop(size=(20, 30), scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), antialias=True, "
    "field='image')",
    "ColorJitter(brightness=(0.6, 1.4), contrast=(0.0, 2.5), saturation=(0.5, 1.0), hue=(-0.1, 0.1), field='image')",
]


@pytest.mark.parametrize(("transform", "text"), list(zip(TRANSFORMS, REPRS, strict=True)), ids=REPRS)
def test_augmentations_are_plain_values(transform, text):
    assert repr(transform) == text
    again = [pickle.loads(pickle.dumps(transform)), eval(text), dataclasses.replace(transform)]
    assert [(value, hash(value)) for value in again] == [(transform, hash(transform))] * 3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RandomCrop(0), ValueError, "size must be at least 1, got 0"),
        (lambda: RandomCrop((1, 2, 3)), ValueError, r"size is one int, or \(height, width\)"),
        (lambda: RandomCrop(3, padding=(1, 2, 3)), ValueError, "padding has 1, 2 or 4 values"),
        (lambda: RandomCrop(3, padding=-1), ValueError, "padding must be at least 0"),
        (lambda: RandomCrop(3, fill=256), ValueError, "fill is 0 to 255, and padding_mode one of"),
        (lambda: RandomCrop(3, padding_mode="wrap"), ValueError, "padding_mode one of constant, edge"),
        (lambda: RandomFlip(1.5), ValueError, r"p is a probability from 0 to 1, got 1\.5"),
        (lambda: RandomFlip("vertical"), ValueError, "p is a probability"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 1.5)), ValueError, "scale is .* from 1e-06 to 1, got"),
        (lambda: RandomResizedCrop(8, scale=0.5), ValueError, r"scale is \(least, most\)"),
        (lambda: RandomResizedCrop(8, ratio=(2, 1)), ValueError, "ratio is .* in order"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), ValueError, r"ratio is .* from 0\.001 to"),
        (lambda: ColorJitter(-0.1), ValueError, "brightness is a number of at least 0, or"),
        (lambda: ColorJitter(contrast=(-1, 1)), ValueError, "contrast is .* from 0 to inf"),
        (lambda: ColorJitter(hue=0.6), ValueError, r"hue is .* from -0\.5 to 0\.5"),
        (lambda: ColorJitter(hues=0.1), TypeError, "Did you mean 'hue'"),
    ],
)
def test_settings_that_make_no_augmentation_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"img": 1}, "there is no field 'image'; the element has 'img'"),
        ({"image": b"abc"}, r"is a bytes, and RandomFlip takes a decoded image.* DecodeImage\(field='image'\)"),
        ({"image": np.zeros((4, 4, 3), "float32")}, r"'image' is float32 \(4, 4, 3\), and RandomFlip takes"),
        ({"image": np.zeros((2, 4, 4, 3), "uint8")}, r"is uint8 \(2, 4, 4, 3\)"),
        ({"image": np.zeros((3, 8, 8), "uint8")}, r"is uint8 \(3, 8, 8\), .* 1 to 4 channels"),
        ({"image": np.zeros((0, 4, 3), "uint8")}, r"is uint8 \(0, 4, 3\)"),
        ({"image": [[1]]}, "is a list, and"),
        (PHOTO, "there is no field 'image'; the element has no fields"),
    ],
)
def test_what_is_no_image_is_refused(element, message):
    with pytest.raises(ValueError, match=message):
        RandomFlip().random_map(element, np.random.default_rng(0))


def test_without_opencv_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    for transform in map(functools.partial(dataclasses.replace, field="image"), TRANSFORMS):
        said = re.escape(f"{type(transform).__name__} needs OpenCV: pip install 'datarax-ray[images]'")
        with pytest.raises(ImportError, match=said):
            transform.random_map({"image": PHOTO}, np.random.default_rng(0))
