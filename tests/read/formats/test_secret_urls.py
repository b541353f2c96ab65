"""Files behind presigned URLs, and URLs with a password: read as any, and the secret is in nothing that is said."""

import json
import logging
import pickle
import traceback

import pytest

from datarax_ray import Pipeline, load
from datarax_ray.feed.source import Source
from datarax_ray.read.files.filesystems import find_on, stamp_of
from datarax_ray.read.retry import is_transient
from datarax_ray.sources import (
    CSVSource,
    CSVSourceConfig,
    ParquetSource,
    ParquetSourceConfig,
    WebDatasetSource,
    WebDatasetSourceConfig,
)
from tests.test_loading import write
from tests.tfrecords import write_tfrecord

FILES = ("parquet/x.parquet", "tar/x.tar", "csv/x.csv", "jsonl/x.jsonl", "tfrecord/x.tfrecord")
QUERY = "?X-Amz-Credential=me&X-Amz-Signature=hush42"


@pytest.fixture
def server(tmp_path, served):
    write(tmp_path)
    (tmp_path / "tfrecord").mkdir()
    write_tfrecord(tmp_path / "tfrecord/x.tfrecord", [b"%d" % number for number in range(10)])
    return served


def told(error):
    """All that a person may see of it."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("name", FILES)
def test_a_presigned_url_reads_as_any_and_its_query_is_in_no_log_repr_state_or_error(server, tmp_path, name, caplog):
    caplog.set_level(logging.DEBUG, "datarax_ray")
    local = load(tmp_path / name)
    source = load(f"{server.url}/{name}{QUERY}")
    assert [str(element) for element in source] == [str(element) for element in local]
    pipeline = Pipeline(source=source, batch_size=2, on_host=True)
    pipeline.step()
    said = [repr(source), repr(pipeline), json.dumps(pipeline.get_state()), str(pipeline.locate(0)), caplog.text]
    assert f"{server.url}/{name}" in str(pipeline.locate(0))
    pipeline.close()
    source.close()
    server.what = lambda number: "403"  # it has expired
    with pytest.raises(OSError, match="403") as failed:
        list(load(f"{server.url}/{name}{QUERY}"))
    said.append(told(failed.value))
    again = Pipeline(source=source, batch_size=2, on_host=True)
    with pytest.raises(OSError, match="403") as failed:
        again.step()
    said.append(told(failed.value))
    server.what = lambda number: ""
    with pytest.raises(FileNotFoundError) as missing:
        load(f"{server.url}/{name}.not{QUERY}")
    for text in (*said, told(missing.value), caplog.text):
        assert "hush42" not in text
        assert "X-Amz" not in text


@pytest.mark.parametrize("name", FILES)
def test_a_state_goes_on_with_a_url_that_was_signed_anew(server, name):
    url = f"{server.url}/{name}?X-Amz-Signature="
    first, second = load(f"{url}secret"), load(f"{url}another")
    first.get_batch(4)
    second.set_state(first.get_state())
    sent = Source(pickle.loads(pickle.dumps(second.describe())))  # as to an actor
    sent.set_state(first.get_state())
    left = [str(element) for element in second]
    assert [str(element) for element in sent] == left
    assert left == [str(element) for element in load(f"{url}secret")][4:]


def test_urls_whose_query_alone_names_the_file_are_files_of_their_own(server, tmp_path):
    url = f"{server.url}/csv/x.csv"
    source = CSVSource(CSVSourceConfig(num_epochs=1), [f"{url}?id=1", f"{url}?id=2"])
    assert [element["x"] for element in source] == [*range(10), *range(10)]
    assert source.describe().locate(12) != source.describe().locate(2)


def test_of_a_file_that_is_not_there_the_url_is_told(server):
    url = f"{server.url}/tar/none.tar"
    for make in (load, lambda url: WebDatasetSource(WebDatasetSourceConfig(), url)):
        with pytest.raises(FileNotFoundError) as missing:
            make(url)
        assert str(missing.value) == f"{url}: no such file or directory on http"


def test_of_a_file_that_is_gone_later_the_answer_is_told_too(server):
    source = load(f"{server.url}/csv/x.csv")
    server.what = lambda number: "404"
    with pytest.raises(FileNotFoundError, match=r"/csv/x\.csv: no such file.*404"):
        source.get_batch(1)


def test_a_password_is_in_nothing_that_is_said_and_is_given_to_the_server(server):
    url = server.url.replace("//", "//me:hush42@")
    source = ParquetSource(ParquetSourceConfig(num_epochs=1), f"{url}/parquet/x.parquet")
    assert source.get_batch(10)["x"].tolist() == list(range(10))
    with pytest.raises(FileNotFoundError) as missing:
        ParquetSource(ParquetSourceConfig(), [f"{url}/parquet/none.parquet"])
    two = [f"{url}/parquet/x.parquet", "s3://me:hush42@bucket/x.parquet"]
    with pytest.raises(ValueError, match="2 filesystems") as several:
        ParquetSource(ParquetSourceConfig(), two)
    for text in (repr(source), str(source.describe().locate(0)), told(missing.value), told(several.value)):
        assert "hush42" not in text


@pytest.mark.parametrize(("what", "asks_again"), [("503", True), ("403", False)])
def test_what_a_server_answers_is_asked_for_again_as_it_was(server, what, asks_again):
    filesystem, (path,) = find_on(f"{server.url}/csv/x.csv{QUERY}", None, ("",))
    with filesystem.open_input_file(path) as file:
        server.what = lambda number: what
        with pytest.raises(OSError, match=what) as reading:
            file.read_at(10, 0)
    with pytest.raises(OSError, match=what) as looking:
        stamp_of(filesystem, path)
    for failed in (reading, looking):
        assert is_transient(failed.value) == asks_again
        assert "hush42" not in told(failed.value)
