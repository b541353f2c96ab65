"""Threads that read one source at once: each element is given once, in the order of the stream to each of them."""

import signal
import threading

import datasets
import numpy as np
import pytest

from datarax_ray.feed.source import Source
from datarax_ray.sources import (
    HFEagerConfig,
    HFEagerSource,
    HFStreamingConfig,
    HFStreamingSource,
    MixtureSource,
    RandomAccessSource,
    RandomAccessSourceConfig,
)
from tests.data import Squares, in_memory

N = 600
NUM_THREADS = 4


def random_access(num_epochs=1):
    return in_memory(Squares(N), num_epochs=num_epochs, shuffle=True)


def rows():
    return datasets.Dataset.from_dict({"index": range(N)})


def streaming():
    return HFStreamingSource(HFStreamingConfig(num_epochs=1), dataset=rows().to_iterable_dataset(num_shards=3))


SOURCES = {
    "plain": lambda: Source(random_access().describe()),
    "random access": random_access,
    "mixture": lambda: MixtureSource([random_access(-1)], [1], length=N),
    "Hugging Face": lambda: HFEagerSource(HFEagerConfig(num_epochs=1, shuffle=True), dataset=rows()),
    "Hugging Face stream": streaming,
}


def by_one(source, give):
    for element in source:
        give([int(element["index"])])


def by_next(source, give):
    """Of one iterator that the threads share."""
    while (element := next(source, None)) is not None:
        give([int(element["index"])])


def in_batches(source, give):
    while batch := source.get_batch(7):
        give(np.asarray(batch["index"]).tolist())


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("read", [by_one, by_next, in_batches])
def test_each_element_is_given_once_whichever_thread_asks(kind, read):
    source = SOURCES[kind]()
    shared = iter(source) if read is by_next else source
    given = [[] for _ in range(NUM_THREADS)]
    errors = []

    def work(number):
        try:
            read(shared, given[number].extend)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    want = [int(element["index"]) for element in SOURCES[kind]()]
    assert sorted(index for one in given for index in one) == sorted(want)
    place = {index: number for number, index in enumerate(want)}
    for one in given:
        assert [place[index] for index in one] == sorted(place[index] for index in one)
    if kind != "plain":
        assert source.get_operation_stats()["applied_count"] == N


@pytest.mark.usefixtures("switching")
def test_a_state_holds_that_is_set_while_another_thread_takes():
    source = random_access(-1)
    far = random_access(-1)
    far.current_epoch.set_value(500)
    states = [random_access(-1).get_state(), far.get_state()]
    is_over = threading.Event()

    def take():
        while not is_over.is_set():
            try:
                next(source)
            except RuntimeError:  # it was moved while it read
                continue

    thread = threading.Thread(target=take)
    thread.start()
    try:
        for count in range(100):
            source.set_state(states[count % 2])
            next(source)
            assert source.get_state()["position"] // (500 * N) == count % 2
    finally:
        is_over.set()
        thread.join()


class Interrupting(Squares):
    """Sends this thread a signal in the middle of a read."""

    def __getitem__(self, index):
        if index == 20:
            signal.raise_signal(signal.SIGUSR2)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [RandomAccessSource, lambda *given: Source(RandomAccessSource(*given).describe())])
def test_a_handler_that_reads_a_source_in_the_middle_of_reading_it_is_refused_and_that_goes_on(kind):
    source = kind(RandomAccessSourceConfig(num_epochs=1), Interrupting(40))
    said = []

    def handle(*_):
        try:
            next(iter(source))
        except RuntimeError as error:
            said.append(str(error))

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        assert [int(element["index"]) for element in source] == list(range(40))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert "a signal's handler asked for a batch" in said[0]
