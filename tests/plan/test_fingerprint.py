"""A state is refused wherever the stream that it came from differs, with both values."""

import copy
import json
import re

import pytest

from datarax_ray.plan.fingerprint import DriftError, check_drift, code_changes
from datarax_ray.plan.plain_values import digest

SETTINGS = {
    "files": {"num_files": 4, "num_records": 120, "nbytes": 9000, "digest": "aa"}
    | dict.fromkeys(["schema", "columns", "lists", "on_null"], "cc"),
    "order": {"shuffle": "global", "seed": 42, "num_epochs": 3, "rounds": 8},
    "transforms": {"names": ["decode"], "code": ["bb"], "fingerprints": {"0 decode": "v1"}},
    "on_error": "raise",
    "batch_size": 32,
    "drop_remainder": False,
}
_SKIP = "resuming would skip or repeat records. Point the source to the original files"
_FIELDS = (
    "other fields, or fields of other types. Set the old columns=, .*allow_drift=\\('files.{}',\\) if the change is"
)
CHANGES = [
    ("files.schema", "cd", _FIELDS.format("schema")),
    ("files.columns", "cd", _FIELDS.format("columns")),
    ("files.lists", "cd", _FIELDS.format("lists")),
    ("files.on_null", "cd", "in place of nulls. Set the old value, or pass allow_drift=\\('files.on_null',\\)"),
    ("files.num_files", 5, _SKIP),
    ("files.digest", "ab", _SKIP),
    ("order.shuffle", "none", "records would be repeated and others never seen"),
    ("order.seed", 43, "records would be repeated and others never seen"),
    ("order.num_epochs", -1, "the stream would end elsewhere"),
    ("transforms.fingerprints", {"0 decode": "v2"}, "fingerprint\\(\\) says .*allow_drift=\\('transforms',\\)"),
    ("on_error", "skip", "broken records would be treated differently"),
    ("batch_size", 64, "every later batch would hold other rows"),
    ("drop_remainder", True, "the last batch would be another"),
]


def changed(path, value):
    settings = copy.deepcopy(SETTINGS)
    *parents, last = path.split(".")
    place = settings
    for parent in parents:
        place = place[parent]
    place[last] = value
    return settings


def value_at(path):
    place = SETTINGS
    for key in path.split("."):
        place = place[key]
    return place


def test_equal_settings_pass_also_after_json():
    check_drift(SETTINGS, copy.deepcopy(SETTINGS))
    check_drift(json.loads(json.dumps(SETTINGS)), SETTINGS)


@pytest.mark.parametrize(("path", "value", "consequence"), CHANGES)
def test_each_change_is_refused_with_both_values_and_the_consequence(path, value, consequence):
    with pytest.raises(DriftError) as caught:
        check_drift(SETTINGS, changed(path, value))
    lines = str(caught.value).splitlines()
    assert lines[0] == "the checkpoint belongs to another stream:"
    assert len(lines) == 2
    values = f"the checkpoint was written with {value_at(path)!r}, this pipeline has {value!r}"
    if path == "transforms.fingerprints":
        path, values = (
            f"{path}.0 decode",
            values.replace("{'0 decode': 'v1'}", "'v1'").replace("{'0 decode': 'v2'}", "'v2'"),
        )
    assert lines[1].startswith(f"  {path}: {values}; ")
    assert re.search(consequence, lines[1])


@pytest.mark.parametrize(("path", "value", "consequence"), CHANGES)
def test_a_change_passes_only_where_it_is_allowed(path, value, consequence):
    check_drift(SETTINGS, changed(path, value), allow=(path,))
    check_drift(SETTINGS, changed(path, value), allow=(path.split(".")[0],))
    other = "batch_size" if path != "batch_size" else "order.seed"
    with pytest.raises(DriftError):
        check_drift(SETTINGS, changed(path, value), allow=(other,))


def test_all_changes_are_listed_and_the_allowed_ones_left_out():
    new = changed("order.seed", 1) | {"batch_size": 1, "drop_remainder": True}
    with pytest.raises(DriftError) as caught:
        check_drift(SETTINGS, new, allow=("batch_size",))
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "drop_remainder",
        "order.seed",
    ]


def test_a_setting_that_appeared_or_went_is_a_change():
    missing = copy.deepcopy(SETTINGS)
    del missing["order"]["rounds"]
    with pytest.raises(
        DriftError, match=r"order\.rounds: the checkpoint was written with 8, this pipeline has no such"
    ):
        check_drift(SETTINGS, missing)
    with pytest.raises(DriftError, match=r"order\.rounds: the checkpoint was written with no such setting, this pi"):
        check_drift(missing, SETTINGS)


def test_a_setting_of_none_is_not_a_missing_one():
    with pytest.raises(DriftError, match="block"):
        check_drift(SETTINGS | {"block": None}, SETTINGS)
    with pytest.raises(DriftError, match="block"):
        check_drift(SETTINGS, SETTINGS | {"block": None})


@pytest.mark.parametrize("name", ["seed", "order.see", "order.seed.x", "", "Files", "file"])
def test_allowing_what_is_no_setting_is_a_mistake(name):
    with pytest.raises(ValueError, match="allow_drift names no setting") as caught:
        check_drift(SETTINGS, SETTINGS, allow=("batch_size", name))
    assert not isinstance(caught.value, DriftError)
    assert "order.seed" in str(caught.value)
    assert name != "file" or "Did you mean 'files'?" in str(caught.value)


def test_a_prefix_of_a_name_is_not_its_parent():
    old, new = {"order": 1, "order_by": 1}, {"order": 1, "order_by": 2}
    with pytest.raises(DriftError, match="order_by"):
        check_drift(old, new, allow=("order",))


def test_a_string_is_one_allowed_name_not_its_letters():
    check_drift(SETTINGS, changed("batch_size", 1), allow="batch_size")


def test_an_unknown_setting_that_changed_says_so():
    with pytest.raises(
        DriftError, match=r"something\.new: .* 1, this pipeline has 2; the stream would not be the same"
    ):
        check_drift(SETTINGS | {"something": {"new": 1}}, SETTINGS | {"something": {"new": 2}})


def test_a_digest_depends_on_values_and_not_on_the_order_of_keys():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert digest([1, 2]) != digest([2, 1])
    assert digest([]) == "4f53cda18c2baa0c"  # pinned: digests are in saved states


def test_files_of_which_the_names_alone_differ_are_told_as_that():
    def settings(**files):
        return {"components": {"0": {"files": {"num_files": 2, "digest": "aa", "content": "cc"} | files}}}

    with pytest.raises(DriftError, match="only their names differ") as caught:
        check_drift(settings(), settings(digest="ab"))
    (allowed,) = re.findall(r"allow_drift=\('(.*?)',\)", str(caught.value))
    check_drift(settings(), settings(digest="ab"), [allowed])
    for others in ({"content": "cd"}, {"num_files": 3}):
        with pytest.raises(DriftError, match="resuming would skip or repeat records"):
            check_drift(settings(), settings(digest="ab", **others))


def test_blocks_that_are_groups_of_files_go_with_these():
    def settings(files, blocks):
        return {"files": {"digest": files}, "order": {"shuffle": "block", "block_size": blocks}}

    with pytest.raises(DriftError) as caught:
        check_drift(settings("aa", "a8"), settings("ab", "55"))
    assert [each.setting for each in caught.value.differences] == ["files.digest"]
    check_drift(settings("aa", "a8"), settings("ab", "55"), ["files"])
    for files, blocks in (("aa", "55"), ("ab", 7)):
        with pytest.raises(DriftError, match="order.block_size"):
            check_drift(settings("aa", "a8"), settings(files, blocks))


def test_code_that_changed_is_named_and_never_refused():
    one = {"names": ["T", "R"], "code": ["aa", "bb"]}
    for other, changed_names in (
        (one, []),
        ({"names": ["T", "R"], "code": ["aa", "cc"]}, ["R"]),
        ({"names": ["N"], "code": ["dd"]}, ["N"]),
    ):
        for wrap in (lambda x: {"transforms": x}, lambda x: {"components": {"1": {"transforms": x}}}):
            check_drift(wrap(one), wrap(other))
            assert code_changes(wrap(one), wrap(other)) == changed_names


def test_the_remedy_for_a_component_of_a_mixture_names_its_setting_whole():
    def settings(num_epochs):
        return {"components": {"0": {"components": {"1": {"order": {"num_epochs": num_epochs}}}}}}

    with pytest.raises(DriftError) as caught:
        check_drift(settings(1), settings(2))
    (allowed,) = re.findall(r"allow_drift=\('(.*?)',\)", str(caught.value))
    check_drift(settings(1), settings(2), [allowed])


@pytest.mark.parametrize(
    ("one", "other", "path", "said"),
    [
        (
            1,
            2,
            "",
            "one source, this pipeline has a mixture of 2 sources; a component of the mixture would not continue",
        ),
        (2, 1, "", "a mixture of 2 sources, this pipeline has one source"),
        (3, 2, "", "a mixture of 3 sources, this pipeline has a mixture of 2 sources"),
        (2, 1, "components.0.", "a mixture of 2 sources, this pipeline has one source"),
    ],
)
def test_another_number_of_sources_is_one_line(one, other, path, said):
    """It was up to 52, and some of them "None ... None"."""

    def settings(num_sources):
        source = {"files": {"digest": "aa", "columns": None}, "order": {"seed": 1, "window": None}}
        mixture = {"components": {str(index): source for index in range(num_sources)}, "mixture": {"weights": [1] * 3}}
        found = source if num_sources == 1 else mixture
        return {"batch_size": 4} | ({"components": {"0": found, "1": source}} if path else found)

    with pytest.raises(
        DriftError, match=re.escape(f"{path}components: the checkpoint was written with {said}")
    ) as caught:
        check_drift(settings(one), settings(other))
    assert [each.setting for each in caught.value.differences] == [f"{path}components"]
    check_drift(settings(one), settings(other), {*settings(one), *settings(other)})
