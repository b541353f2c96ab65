"""NumPy's text scalars that end in NULs, in pickles and in what tells one constant from another."""

import copy
import pickle

import numpy as np
import pytest
from ray import cloudpickle

from datarax_ray.read.elements.owning import copied
from datarax_ray.read.elements.text_scalars import exact

VALUES = [kind(text) for text in (b"", b"a", b"a\0", b"\0\0\0", b"\0a") for kind in (np.bytes_, bytes)]
TEXTS = [kind(text) for text in ("", "a", "a\0", "\0\0", "\0é\0", "\ud800\0") for kind in (np.str_, str)]


class Key(np.bytes_):
    def number(self):
        return int.from_bytes(exact(self), "little")


class Named(np.str_):
    def __new__(cls, text, note):
        made = super().__new__(cls, text)
        made.note = note
        return made


class OfItsOwn(np.bytes_):
    def __reduce_ex__(self, protocol):
        return OfItsOwn, (b"its own",)


def same(one, other):
    return type(one) is type(other) and len(one) == len(other) and [*one] == [*other]


@pytest.mark.parametrize("module", [pickle, cloudpickle])
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_keep_all_bytes_and_characters(module, protocol):
    for value in VALUES + TEXTS:
        box = [value, {"x": (value,)}, np.array([value, None], object), np.array([(value,)], [("x", object)])]
        one, two, three, four = module.loads(module.dumps(box, protocol))
        assert all(same(found, value) for found in (one, two["x"][0], three[0], four["x"][0])), value


def test_pickles_can_be_read_without_this_package():
    assert b"datarax" not in pickle.dumps([np.bytes_(b"a\0"), np.str_("a\0")])


def test_a_users_class_is_kept_with_its_attributes_once_it_is_seen():
    key, named = copied([Key(b"\1\0"), Named("a\0", "why")])
    found, text = pickle.loads(pickle.dumps([key, named]))
    assert same(found, key)
    assert same(text, named)
    assert (found.number(), text.note) == (1, "why")
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":  # its own deepcopy dropped them before
        assert same(copy.deepcopy(key), key)


def test_a_class_that_says_itself_how_it_is_pickled_is_believed():
    assert exact(pickle.loads(pickle.dumps(copied(OfItsOwn(b"a"))))) == b"its own"
