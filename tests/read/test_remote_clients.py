"""What is known of the client of each scheme."""

import pytest

from datarax_ray.read.formats.remote.clients import filesystem, scheme_of


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
