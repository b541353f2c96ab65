"""Requests that stick are asked a second time: nobody waits for them, and no more are asked twice than a share."""

import asyncio

import numpy as np
import pytest

from datarax_ray.read.formats.array_record.reader import ArrayRecordReader
from datarax_ray.read.formats.remote import hedging, ranges
from datarax_ray.read.formats.remote.hedging import Peers, hedged
from datarax_ray.read.formats.remote.ranges import Remote
from tests.data import write_file
from tests.http_files import HttpFiles

ENDLESS = Remote(nbytes=0, gap_nbytes=0, timeout_s=3600.0, least_rate=1, waits_s=())  # what sticks is there for good


def noise(seed):
    """A record that does not compress."""
    return np.random.default_rng(seed).bytes(4000)


@pytest.fixture(autouse=True)
def asked_once():
    """Not here."""


@pytest.fixture
def served(tmp_path):
    found = HttpFiles(tmp_path)
    yield found
    found.close()


def peers_of(*seconds, nbytes=4096):
    peers = Peers()
    for each in seconds:
        peers.took(nbytes, each)
    return peers


def test_a_request_is_late_by_what_nine_in_ten_of_its_size_took_lately():
    assert peers_of(*[0.5] * 7).late_s(4096) is None
    assert peers_of(*[0.5] * 20, 60.0).late_s(4096) == pytest.approx(1.5)
    assert peers_of(*[0.001] * 20).late_s(4096) == 1.0
    assert peers_of(*[0.5] * 20).late_s(2**23) is None
    assert peers_of(*[0.5] * 200, *[1.0] * 64).late_s(4096) == pytest.approx(3.0)


def test_no_more_than_a_share_is_asked_twice():
    peers = Peers()
    taken = sum(peers.take() for _ in range(100))
    for _ in range(1600):
        peers.took(4096, 0.1)
        taken += peers.take()
    assert taken == 2 + 1600 // 16
    for _ in range(10_000):
        peers.took(4096, 0.1)
    assert sum(peers.take() for _ in range(100)) == 8


NEVER = 99


@pytest.mark.parametrize(
    ("outcomes", "want"),
    [
        ([(1, "first")], "first"),
        ([(NEVER, "first"), (2, "second")], "second"),
        ([(NEVER, "first"), (NEVER, "second"), (3, "third")], "third"),
        ([(2, ConnectionError("cut")), (2, "second")], "second"),
        ([(1, ConnectionError("cut")), (1, "second")], ConnectionError),
        ([(2, ConnectionError("cut")), (2, ValueError("other"))], (ConnectionError, ValueError)),
    ],
)
def test_the_first_answer_counts_and_an_error_only_where_no_other_answer_comes(outcomes, want):
    """outcomes: of each request, once so many were asked."""
    asked = []

    async def ask():
        needed, outcome = outcomes[len(asked)]
        asked.append(outcome)
        while len(asked) < needed:
            await asyncio.sleep(0.001)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    peers = Peers()
    peers._saved = float(len(outcomes) - 1)
    if isinstance(want, str):
        assert asyncio.run(hedged(ask, peers, 4096, 0.05)) == want
    else:
        with pytest.raises(want):
            asyncio.run(hedged(ask, peers, 4096, 0.05))
    assert len(asked) == (1 if outcomes[0][0] == 1 else len(outcomes))


def test_requests_that_stick_for_ever_keep_nobody_waiting(tmp_path, served, monkeypatch):
    monkeypatch.setattr(ranges, "_peers", type(ranges._peers)(Peers))
    for name in ("_SAVED_FIRST", "_MOST_SAVED"):  # on a busy machine others are late as well
        monkeypatch.setattr(hedging, name, 1e9)
    write_file(tmp_path / "a.array_record", map(noise, range(1000)))
    reader = ArrayRecordReader.of(f"{served.url}/a.array_record", remote=ENDLESS)
    reader.read(np.arange(0, 100, 2))
    served.count()
    served.what = lambda number: ("stall", "stick")[number // 250 % 2] if number % 250 == 200 else ""
    for records in np.split(np.random.default_rng(0).permutation(1000), 20):
        assert reader.read(records) == [noise(i) for i in records.tolist()]
    assert served.num_broken >= 3
    served.what = lambda number: ""
    reader.close()
