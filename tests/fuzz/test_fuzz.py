"""Mutants of every format, two hundred always and many with --run-slow; and that the harness notices what it must."""

import functools
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data import record, write_file
from tests.fuzz import outcomes, riegeli, run, supervisor
from tests.fuzz.decoder_target import DecoderTarget
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.targets import NAMES


def check(seeds, directory):
    report = supervisor.run(supervisor.jobs(NAMES, seeds, directory / "kinds"), directory)
    assert report.total >= 100 * len(seeds)
    assert not report.broken, run.table(report)
    seen = {outcome for _, _, outcome in report.counts}
    assert seen >= {outcomes.UNHARMED, outcomes.REFUSED, outcomes.PARTIAL}


def test_a_mutant_of_any_format_is_refused_by_name_or_changes_nothing(tmp_path):
    check(range(1), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutants_of_any_format_are_refused_by_name_or_change_nothing(tmp_path):
    check(range(1000, 1250), tmp_path)


def test_the_harness_blames_a_crash_on_its_mutant_and_goes_on(tmp_path):
    kinds = ["good", "crash", "wrong", "exit", "good", "memory", "good"]
    report = supervisor.run((("misbehaving", kind, 0) for kind in kinds), tmp_path)
    assert {(kind, outcome): n for (_, kind, outcome), n in report.counts.items()} == {
        ("good", outcomes.UNHARMED): 3,
        ("crash", outcomes.CRASH): 1,
        ("exit", outcomes.CRASH): 1,
        ("memory", outcomes.MEMORY): 1,
        ("wrong", outcomes.WRONG): 1,
    }
    assert "exit code -11" in next(detail for job, _, detail in report.broken if job[1] == "crash")
    assert '--job \'["misbehaving", "exit", 0]\'' in run.table(report)


def test_the_harness_ends_a_hang_and_goes_on(tmp_path):
    report = supervisor.run((("misbehaving", "hang", seed) for seed in range(2)), tmp_path, hang_s=1)
    assert [(job[2], outcome) for job, outcome, _ in report.broken] == [(0, outcomes.HANG), (1, outcomes.HANG)]


def test_forged_chunks_carry_checksums_that_hold(tmp_path):
    file = write_file(tmp_path / "x", map(record, range(100)), group_size=16).read_bytes()
    forged = riegeli.forge(file, random.Random(1))
    assert forged != file
    found = list(riegeli.chunks(file))
    assert len(found) >= 100 // 16 + 3  # the signature, the groups, the footers
    for some in (file, forged):
        for _, offsets in found:
            header = bytes(some[i] for i in offsets[:40])
            assert struct.unpack("<Q", header[:8])[0] == riegeli.highway_hash(header[8:])


@pytest.mark.parametrize("kind", sorted(MUTATIONS))
def test_a_seed_is_one_mutant(kind):
    file = bytes(range(256)) * 4
    made = [MUTATIONS[kind](file, random.Random(seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert made[0] == made[1]
    assert len(set(made)) > 2


@pytest.mark.parametrize("decoder", [name.removeprefix("decoder ") for name in NAMES if name.startswith("decoder")])
@given(noise=st.binary(max_size=200))
def test_noise_is_an_element_or_that_records_error(decoder, noise):
    assert _target(decoder).check_record(noise)[0] in (outcomes.UNHARMED, outcomes.REFUSED)


@functools.cache
def _target(decoder):
    return DecoderTarget(Path(), decoder)
