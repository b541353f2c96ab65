"""The story of one record, at the head of feed/stream.py, names functions that there are, where it says."""

import functools
import importlib
import re

from datarax_ray.feed import stream


def test_every_function_of_the_story_is_where_it_says():
    story = stream.__doc__ or ""
    named = re.findall(r"`([\w.]+)`[^`(]* \(([\w.]+)\)", story)
    assert len(named) >= 12
    for name, module in named:
        home = importlib.import_module(f"datarax_ray.{module}")
        if not hasattr(home, "__path__"):  # a folder holds several
            functools.reduce(getattr, name.split("."), home)
    assert len(re.findall(r"^ ?\d+\. ", story, re.M)) <= 12
