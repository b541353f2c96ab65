"""What is known of the client of each scheme."""

import pytest

from datarax_ray.read.formats.remote.clients import filesystem, scheme_of

LISTED = {"ETag": '"6c8e"', "generation": "17", "mtime": 5.0, "name": "a", "size": 3}


@pytest.mark.parametrize(
    ("url", "version"),
    [
        ("https://host/a", ""),
        ("s3://bucket/a", '"6c8e"'),
        ("gs://bucket/a", "17"),
        ("abfs://box/a", 'ETag "6c8e", generation 17, mtime 5.0'),
        ("memory://bucket/a", 'ETag "6c8e", generation 17, mtime 5.0'),
    ],
)
def test_a_listing_tells_the_version_that_an_answer_will_tell(url, version):
    assert scheme_of(url).listed_version(LISTED) == version
    assert scheme_of(url).listed_version({"name": "a", "size": 3}) == ""


def test_a_folder_that_is_named_like_a_scheme_is_none():
    assert scheme_of("s3/a") == scheme_of("s3") == scheme_of("memory://a") != scheme_of("s3://a")


def test_a_client_that_is_not_there_is_named_with_the_extra_that_installs_it(monkeypatch):
    def missing(url):
        raise ImportError("no module")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    message = r"abfs://box: the client for abfs:// is not installed \(no module\); pip install 'datarax-ray\[azure\]'"
    with pytest.raises(ImportError, match=message):
        filesystem("abfs://box")
    with pytest.raises(ImportError, match=r"the client for odd:// is not installed \(no module\); install it"):
        filesystem("odd://box")
