"""A node with other code than the driver: another version of this package, or of the users' module of a transform."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import datarax_ray
from datarax_ray import RaySource
from datarax_ray.actors.description import boxed, pickled, unboxed
from datarax_ray.actors.lifecycle import Thresholds
from datarax_ray.feed.stream import StreamOptions
from datarax_ray.plan.orders.kinds import order_of
from datarax_ray.read.formats.random_access import RandomAccessReader
from datarax_ray.read.hazards.same_code import Code, OtherCodeError, code_of
from datarax_ray.read.hazards.watched import Watched
from datarax_ray.read.streams.indexed import IndexedStream
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.clusters import BARE
from tests.data import AddNoise, decode, write_files
from tests.waiting import until, until_all_run

REPOSITORY = Path(__file__).parents[2]
STORE_NBYTES = 80 * 2**20
MODULE = """
from users_factor import FACTOR

TIMES = 1

class Scale:
    def map(self, element):
        return element | {"scaled": element["index"] * FACTOR * TIMES}
"""


def write_code(directory: Path, factor: int) -> Path:
    directory.mkdir()
    (directory / "users_scale.py").write_text(MODULE)
    (directory / "users_factor.py").write_text(f"FACTOR = {factor}  # {directory}\n")
    return directory


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The users' transform, as the driver and the nodes that are started with it have it.

    Elsewhere than here: workers look in the driver's working directory before their own path.
    """
    code = write_code(tmp_path_factory.mktemp("code") / "driver", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(code)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), str(REPOSITORY)]))
        patch.chdir(code.parent)
        yield importlib.import_module("users_scale").Scale()


@pytest.fixture(scope="module")
def cluster(scale: Any) -> Iterator[Cluster]:
    head = {"num_cpus": 1, "object_store_memory": STORE_NBYTES} | BARE
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, resources={"host": 1}, object_store_memory=STORE_NBYTES)
    ray.init(cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@contextlib.contextmanager
def node(cluster: Cluster, path: list[Path], resource: str = "host") -> Iterator[str]:
    """The id of one more node, whose Python looks there first."""
    before = {found["NodeID"] for found in ray.nodes()}
    command = f"start --address {cluster.address} --num-cpus 1 --block --disable-usage-stats".split()
    options = ["--resources", f'{{"{resource}": 1}}', "--object-store-memory", str(STORE_NBYTES)]
    raylet = subprocess.Popen(
        [str(Path(sys.executable).parent / "ray"), *command, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
    )
    try:
        yield until(lambda: [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in before], 120)[0]
    finally:
        os.killpg(raylet.pid, signal.SIGTERM)
        raylet.wait(60)
        until(lambda: sum(found["Alive"] for found in ray.nodes()) == 2)


def told(batches: Any) -> list[Any]:
    return [
        (batch.positions.tolist(), batch.columns["noise"].tobytes(), batch.columns["scaled"].tolist())
        for batch in batches
    ]


@pytest.mark.slow  # a node more; of other code the next is, too
@pytest.mark.parametrize("whose", ["users", "package"])
def test_a_node_with_other_code_reads_nothing_and_is_named(
    cluster: Cluster, scale: Any, whose: str, tmp_path: Path, caplog: Any
) -> None:
    files = write_files(tmp_path, (40, 60))
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=4)
    source = ArrayRecordSourceModule(config, files, transforms=[decode, AddNoise(), scale])
    want = told(source.batches(0, StreamOptions(8)))
    if whose == "users":
        path = [write_code(tmp_path / "other", 3), REPOSITORY]
        wrong = "users_factor"
    else:
        shutil.copytree(Path(datarax_ray.__file__).parent, tmp_path / "copy" / "datarax_ray")
        transforms = tmp_path / "copy" / "datarax_ray" / "read" / "elements" / "transforms.py"
        text = transforms.read_text()
        transforms.write_text(text.replace("[seed, transform_index]", "[seed + 1, transform_index]"))
        assert transforms.read_text() != text
        path = [tmp_path / "copy", *map(Path, os.environ["PYTHONPATH"].split(os.pathsep))]
        wrong = "datarax_ray"
    with node(cluster, path) as other:
        with RaySource(source, num_actors=2, num_cpus=0.1, resources={"host": 1}, chunk_size=20) as distributed:
            stream = distributed.batches(0, StreamOptions(8))
            got = told([next(stream)])
            until(lambda: distributed._actors.actors() and "cannot start" in caplog.text, 120)
            assert got + told(stream) == want
            assert other not in {stats["node_id"] for stats in distributed.stats().values()}
        assert caplog.text.count(f"less and less often: {wrong} on node ") == 1
        assert f"is other code than in the driver ({sys.modules[wrong].__file__}, digest " in caplog.text


@pytest.mark.slow
def test_code_that_is_edited_while_it_is_in_use_changes_nothing(
    cluster: Cluster, scale: Any, tmp_path: Path, caplog: Any
) -> None:
    config = ArrayRecordSourceConfig(shuffle_files=True, num_epochs=4)
    source = ArrayRecordSourceModule(config, write_files(tmp_path, (100,)), transforms=[decode, AddNoise(), scale])
    want = told(source.batches(0, StreamOptions(8)))
    edited = Path(sys.modules["users_factor"].__file__ or "")
    text = edited.read_text()
    options: dict[str, Any] = {"num_cpus": 0.1, "resources": {"host": 0.4}, "chunk_size": 20}
    with RaySource(source, num_actors=2, thresholds=Thresholds(max_backoff_s=0.5), **options) as distributed:
        until_all_run(distributed)
        stream = distributed.batches(0, StreamOptions(8))
        got = told([next(stream)])
        edited.write_text("FACTOR = 3\n")
        try:
            os.kill(distributed.stats()[1]["pid"], signal.SIGKILL)
            got += told(itertools.islice(stream, 20))
            until(lambda: distributed._actors.actors() and "reader actor 1 cannot start" in caplog.text, 120)
        finally:
            edited.write_text(text)
        until_all_run(distributed)
        assert got + told(stream) == want


@pytest.mark.slow
def test_where_all_nodes_have_other_code_the_error_says_so(cluster: Cluster, scale: Any, tmp_path: Path) -> None:
    source = ArrayRecordSourceModule(ArrayRecordSourceConfig(), write_files(tmp_path, (9,)), transforms=[decode, scale])
    with (
        node(cluster, [write_code(tmp_path / "other", 3), REPOSITORY], "other"),
        RaySource(source, num_actors=1, num_cpus=0.1, resources={"other": 1}) as distributed,
        pytest.raises(RuntimeError, match="no reader actor can start.*users_factor on node "),
    ):
        next(distributed.batches(0, StreamOptions(4)))


GIVEN = """
import collections, functools, os, tempfile
from dataclasses import dataclass

HERE, SCRATCH = os.path.dirname(__file__), tempfile.mkdtemp()
FACTOR, SIZE, args, WORDS = 1, 8 * 1024, None, {}
TABLE, ROWS, FILES = {}, collections.defaultdict(int), {"data": HERE + "/data"}
IN_DRIVER = "USERS_DRIVER" in os.environ

@dataclass(frozen=True)
class Config:
    scale: int = 1
    names: tuple = ()

class Offset:
    by = 0
    def of(self, x):
        return x + self.by

def times(n):
    def multiply(x):
        return x * n
    return multiply

config, twice, partly = Config(), times(2), functools.partial(max, 1)

def shift(x):
    return x

class Scale:
    def map(self, element):
        x = element["index"] * FACTOR + SIZE + TABLE.get("k", 0) + ROWS["r"] + IN_DRIVER * 100 + args.plus
        x = partly(Offset().of(shift(twice(x)))) + config.scale
        x += WORDS.get(f"{element['index']:0100}", 0)
        is_own = FILES["data"].startswith(HERE) and os.path.isdir(SCRATCH)
        return element | {"scaled": x, "is_own": is_own, "scratch": SCRATCH}
"""


def test_actors_have_what_the_program_sets_in_modules_that_they_import_anew(
    cluster: Cluster, scale: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = Path(sys.modules["users_scale"].__file__ or "").parent
    (folder / "users_given.py").write_text(GIVEN)
    with monkeypatch.context() as patch:
        patch.setenv("USERS_DRIVER", "1")
        given: Any = importlib.import_module("users_given")
    config = ArrayRecordSourceConfig(num_epochs=1)
    given.FACTOR, given.SIZE = 7, 16 * 1024
    given.args = argparse.Namespace(plus=3)
    given.TABLE["k"] = 5
    given.ROWS.update(r=11)
    given.WORDS.update({f"{index:0100}": index for index in range(2_000)})  # more than Ray sends in a call
    object.__setattr__(given.config, "scale", 13)
    given.Offset.by = 17
    given.Offset.of = lambda self, x: x + 2 * self.by
    given.shift = lambda x: x + 1000 * given.FACTOR
    given.twice = given.times(3)
    given.partly = functools.partial(max, 20_000)
    source = ArrayRecordSourceModule(config, write_files(tmp_path, (9,)), transforms=[decode, given.Scale()])
    want = list(source.batches(0, StreamOptions(4)))
    with RaySource(source, num_actors=2, num_cpus=0.1, resources={"host": 0.1}, chunk_size=4) as distributed:
        got = list(distributed.batches(0, StreamOptions(4)))
    assert [batch.columns["scaled"].tolist() for batch in got] == [batch.columns["scaled"].tolist() for batch in want]
    assert all(batch.columns["is_own"].all() for batch in got)
    scratch = {folder for batch in got for folder in batch.columns["scratch"].tolist()}
    assert given.SCRATCH not in scratch, "what each process makes for itself stays its own"


SETTINGS = """
import os

SCALE, HERE, calls = 1, os.path.dirname(__file__), []
FACTOR = 1
table = {}
table["k"] = 1

class Config:
    size: int = 1
    count = 0

class Map:
    size = count = 1

    def map(self, x):
        calls.append(x)
        self.count += 1
        Config.count += 1
        return x * FACTOR * self.size * Config.size * table["k"] * bool(HERE)
"""


Users: TypeAlias = Callable[[str, str], Any]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: Any) -> Users:
    """Writes a module of a user's, "package.module" with its package, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(name: str, text: str) -> Any:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        if path.parent != tmp_path:
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
        path.write_text(text)
        return importlib.import_module(name)

    return written


def sent(*transforms: Any) -> Code:
    """What actors that are given these are to have."""
    return boxed(list(transforms))[1]  # type: ignore[arg-type]


def values_of(*transforms: Any) -> dict[str, Any]:
    """What travels beside transforms, by name, without the objects whose attributes do."""
    return {f"{value.module}.{value.name}": value for value in sent(*transforms).values if value.digest}


def anew(code: Any, *modules: str) -> None:
    """As in an actor, which has imported nothing."""
    for name in modules:
        sys.modules.pop(name)
    code.check("here")


def test_what_code_reads_travels_and_nothing_that_it_writes_to(users: Users, tmp_path: Path, monkeypatch: Any) -> None:
    settings = users("users_settings", SETTINGS)
    text = "import users_settings\n\ndef scale(x):\n    return users_settings.FACTOR * x\n"
    script = users("users_script", text)
    settings.Map().map(3)
    names = {"FACTOR", "HERE", "table", "Config", "Config.size", "Map.size"}
    assert values_of(settings.Map()).keys() == {f"users_settings.{name}" for name in names}
    assert values_of(script.scale).keys() == {"users_settings.FACTOR"}, "of another module than the function's own"
    with monkeypatch.context() as patch:
        patch.setattr(ray.cloudpickle, "list_registry_pickle_by_value", lambda: {"users_settings"})
        assert values_of(settings.Map()) == {}
    ray.cloudpickle.register_pickle_by_value(settings)
    try:
        code = sent(settings.Map())
    finally:
        ray.cloudpickle.unregister_pickle_by_value(settings)
    assert code.looks == {"users_settings.FACTOR": "1", "users_settings.HERE": repr(str(tmp_path))} | {
        f"users_settings.{name}": look
        for name, look in {"table": "{'k': 1}", "Config.size": "1", "Map.size": "1"}.items()
    }


PUT = """
import functools
import numpy as np

class Steps:
    least = staticmethod(np.max)

    @staticmethod
    def go(x): return x

    @classmethod
    def of(cls, x): return x

    @property
    def k(self): return 1

    def map(self, x):
        return [self.least([x, 5]), self.go(x), self.of(x), self.k]
"""


def test_functions_that_are_put_into_classes_travel_as_what_they_are(users: Users) -> None:
    put = users("users_put", PUT)
    steps = put.Steps
    steps.least = staticmethod(np.min)
    steps.go, steps.of = staticmethod(lambda x: x * 5), classmethod(lambda cls, x: x * 6)
    steps.k = property(lambda self: 7)
    assert steps().map(3) == [3, 15, 18, 7]
    code = sent(steps())
    anew(code, "users_put")
    assert sys.modules["users_put"].Steps().map(3) == [3, 15, 18, 7]
    anew(sent(sys.modules["users_put"].Steps()), "users_put")  # the same there


@pytest.mark.parametrize("name", ["FACTOR", "Config.size", "Map.size"])
def test_a_value_that_cannot_be_set_is_an_error_where_it_is_another(name: str, users: Users, monkeypatch: Any) -> None:
    settings = users("users_settings", SETTINGS)
    code = sent(settings.Map())
    anew(code, "users_settings")
    settings = importlib.import_module("users_settings")
    monkeypatch.setattr(f"users_settings.{name}", b"7" * 17 * 2**20)
    code = sent(settings.Map())
    message = (
        f"users_settings.{name} is 1 on node here, .* and b'7.* in the driver, .* set there .it takes more than 16 M"
    )
    with pytest.raises(OtherCodeError, match=message):
        anew(code, "users_settings")


OWN = """
import uuid

class Add:
    def __init__(self):
        self.mine = uuid.uuid4().hex
    def __setstate__(self, state):
        vars(self).update(state, mine=uuid.uuid4().hex)
    def __call__(self, x):
        return x + self.amount
    amount = 1

add = Add()

def scale(x):
    return add(x)
"""


def test_an_object_with_something_of_its_own_in_each_process_is_no_other(users: Users, caplog: Any) -> None:
    module = users("users_own", OWN)
    module.add.amount = 7
    code = sent(module.scale)
    told: set[str] = set()
    module.add.mine = "another"
    for _ in range(2):
        code.check_unchanged(told)
    assert len(told) == len(caplog.messages) == 1
    anew(code, "users_own")
    assert sys.modules["users_own"].scale(1) == 8


def test_nuls_at_the_end_of_numpys_text_travel_and_are_seen(users: Users) -> None:
    text = "import numpy as np\n\nKEY = np.bytes_(b'k')\n\ndef is_key(x):\n    return KEY == x\n"
    module = users("users_nuls", text)
    module.KEY = np.bytes_(b"k\0")
    code = sent(module.is_key)
    assert pickle.loads(code.values[0].pickled) == b"k\0"
    assert code.values[0].is_here
    module.KEY = np.bytes_(b"k")
    assert not code.values[0].is_here


def test_what_is_set_behind_the_source_is_an_error_where_a_stream_begins(users: Users) -> None:
    module = users("users_late", "SCALE = 1\n\ndef scale(x):\n    return x * SCALE\n")
    code = sent(module.scale)
    code.check_unchanged(set())
    module.SCALE = 7
    with pytest.raises(ValueError, match="users_late.SCALE was 1 when the RaySource was made.* 7 now.* Set it before"):
        code.check_unchanged(set())


HELD = """
import types

import numpy as np

class Scale:
    offset = 0
    def __init__(self, by, table, array):
        self.names = types.SimpleNamespace(size=0)
        self.by, self.table, self.array, self.seen, self.inner = by, table, array, 0, Inner()
    def set_by(self, by):
        self._by = by
    def map(self, x):
        self.seen += 1
        self.inner.count += 1
        return x * self.by + self.offset + self.names.size + self.array.sum() + self.table["k"]

class Inner:
    def __init__(self):
        self.count = self.size = 1

def scaled(by):
    def scale(x):
        return x * by
    def change(to):
        nonlocal by
        by = to
    return scale, change
"""


def test_so_is_what_a_transform_holds_that_is_set_behind_it(users: Users) -> None:
    module = users("users_held", HELD)
    scale = module.Scale(2, {"k": 1}, np.zeros(2))
    code, told = sent(scale), set[str]()
    scale.seen, scale.inner.count = 17, 18  # which its own code writes to
    code.check_unchanged(told)
    assert not told
    scale.table["k"], scale.array[:] = 2, 1  # a cache, or a buffer, perhaps
    code.check_unchanged(told)
    assert sorted(said.partition(" was ")[0] for said in told) == ["array of a Scale", "table of a Scale"]
    for owner, name, was in ((scale, "by", 2), (scale.inner, "size", 1)):
        setattr(owner, name, 7)
        with pytest.raises(ValueError, match=rf"{name} of a \w+ was {was} when the RaySource was made.* 7 now"):
            code.check_unchanged(told)
        setattr(owner, name, was)
    for owner, name in ((scale, "offset"), (scale.names, "size")):  # the class's until then, and of no class of users'
        setattr(owner, name, 7)
        with pytest.raises(ValueError, match=rf"{name} of a \w+ was 0 when the RaySource was made.* 7 now"):
            code.check_unchanged(told)
        delattr(owner, name) if owner is scale else setattr(owner, name, 0)
    scale.array = np.ones(2)
    with pytest.raises(ValueError, match="array of a Scale was .* when the RaySource was made"):
        code.check_unchanged(told)


def test_so_is_what_a_function_closes_over(users: Users) -> None:
    scale, change = users("users_closed", HELD).scaled(2)
    code = sent(scale)
    code.check_unchanged(set())
    change(7)
    with pytest.raises(ValueError, match="by, which scaled.<locals>.scale uses, was 2 when the RaySource was made"):
        code.check_unchanged(set())


@pytest.mark.parametrize("is_large", [False, True])
def test_functions_and_properties_of_the_script_with_a_cache_travel_as_those_without(
    users: Users, monkeypatch: Any, is_large: bool
) -> None:
    text = """
import functools

@functools.lru_cache(maxsize=7)
def sums(n):
    return n + sums(n - 1) if n else 0

class Scale:
    @functools.cache
    def factor(self, by):
        return 10 * by

    @functools.cached_property
    def table(self):
        "Of hundreds."
        return {x: 100 * x for x in range(9)}

    def map(self, x):
        return sums(x) + self.factor(2) + self.table[x]
"""
    monkeypatch.setattr(ray, "put", lambda value: types.SimpleNamespace(value=value))
    monkeypatch.setattr(ray, "get", lambda ref: ref.value)
    script = users("users_cached", text)
    ray.cloudpickle.register_pickle_by_value(script)
    try:
        table = np.zeros(17 * 2**20 if is_large else 1, np.uint8)
        box, code = boxed([script.Scale(), script.sums, table])  # type: ignore[arg-type]
    finally:
        ray.cloudpickle.unregister_pickle_by_value(script)
    monkeypatch.delitem(sys.modules, "users_cached")
    monkeypatch.setattr(sys, "path", [])
    found, sums, _ = unboxed(box)
    tried = pickle.loads(pickled(box, replace(code, watched=Watched())))[0]
    assert [found.map(4), tried.map(4)] == [10 + 20 + 400] * 2
    assert (vars(found).keys(), type(found).table.__doc__) == ({"table"}, "Of hundreds."), "it is kept"
    assert (sums(4), sums.cache_parameters()) == (10, {"maxsize": 7, "typed": False})
    assert sums.cache_info().currsize == 5, "it calls itself, not another one"


def test_so_is_what_a_script_sets_behind_it_which_travels_by_value(users: Users) -> None:
    text = (
        "SCALE, table = 1, {'k': 1}\n\ndef helper(x):\n    return x * SCALE\n\n"
        "def scale(x):\n    return helper(x) * table['k']\n"
    )
    script = users("users_by_value", text)
    ray.cloudpickle.register_pickle_by_value(script)
    try:
        code = sent(script.scale)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(script)
    told: set[str] = set()
    code.check_unchanged(told)
    script.table["k"] = 2
    code.check_unchanged(told)
    (said,) = told
    assert said.startswith("users_by_value.table was {'k': 1} when the RaySource was made")
    script.SCALE = 7
    with pytest.raises(
        ValueError, match="users_by_value.SCALE was 1 when the RaySource was made.* 7 now.* Set it before"
    ):
        code.check_unchanged(told)
    script.SCALE, helper = 1, script.helper
    script.helper = functools.wraps(helper)(lambda x: x)
    with pytest.raises(ValueError, match="users_by_value.helper was code of digest .* when the RaySource was made"):
        code.check_unchanged(told)
    script.helper = types.FunctionType(helper.__code__, vars(script))  # a cell that is run again
    code.check_unchanged(told)


EDITED = """
import functools

def logged(function):
    @functools.wraps(function)
    def around(x):
        return function(x)
    return around

def seen(function):
    cache = {}
    def around(x):
        cache[x] = function(x)
        return cache[x]
    return around

class Scale:
    def __call__(self, x):
        self.last = x
        return x

@logged
def inner(x):
    return x

twice, scale = seen(inner), Scale()

def outer(x):
    return inner(twice(scale(x)))
"""


def test_code_that_is_edited_later_is_what_it_was_where_a_stream_begins(users: Users, tmp_path: Path) -> None:
    module = users("users_edited", EDITED)
    code = sent(module.outer)
    (tmp_path / "users_edited.py").write_text("# one more line\n" * 2 + EDITED.replace("return", "assert True; return"))
    module.outer(3)
    code.check_unchanged(set())


def test_a_name_that_another_module_took_before_is_set_where_it_is_read(users: Users) -> None:
    users("users_taken.config", "SCALE = SIZE = 1\n").SCALE = 7
    text = "from .config import SCALE as FACTOR, SIZE\n\ndef scale(x):\n    return x * FACTOR * SIZE\n"
    late = users("users_taken.late", text)
    assert late.scale(1) == 7
    code = sent(late.scale)
    anew(code, "users_taken.late", "users_taken.config", "users_taken")
    assert sys.modules["users_taken.late"].scale(1) == 7
    assert sys.modules["users_taken.config"].SCALE == 1, "nothing reads it"


MADE_OUT = """
import os

HAS_CODEC = False
if os.environ.get("USERS_CODEC"):
    HAS_CODEC = True
RANK = 0
RANK += int(os.environ.get("USERS_RANK", 0))

class Map:
    fast = False
    try:
        import users_codec
        fast = True
    except ImportError:
        pass

    def map(self, x):
        return (x, HAS_CODEC, RANK, self.fast)
"""


def test_what_a_module_finds_out_as_it_is_imported_is_what_the_driver_found(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "users_made_out.py").write_text(MADE_OUT)
    (tmp_path / "users_codec.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("USERS_CODEC", "1")
        patch.setenv("USERS_RANK", "3")
        module = importlib.import_module("users_made_out")
    want = module.Map().map(0)
    assert want == (0, True, 3, True)
    code = sent(module.Map())
    (tmp_path / "users_codec.py").unlink()
    anew(code, "users_made_out", "users_codec")
    assert sys.modules["users_made_out"].Map().map(0) == want


FOLDER = """
import os

ROOT = os.path.dirname(os.path.dirname(__file__))
FILES = [os.path.join(ROOT, "words.txt")]

def words(x):
    return x, ROOT, FILES[0]
"""


def test_a_path_in_the_folder_of_the_code_is_that_of_each_host(tmp_path: Path, monkeypatch: Any) -> None:
    for host in ("driver", "node"):
        (tmp_path / host / "users_folder").mkdir(parents=True)
        (tmp_path / host / "users_folder" / "__init__.py").write_text("")
        (tmp_path / host / "users_folder" / "words.py").write_text(FOLDER)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "driver")
        driver: Any = importlib.import_module("users_folder.words")
        code = sent(driver.words)
    monkeypatch.syspath_prepend(tmp_path / "node")
    anew(code, "users_folder.words", "users_folder")
    node = str(tmp_path / "node")
    assert sys.modules["users_folder.words"].words(1) == (1, node, f"{node}/words.txt")


def test_a_path_that_the_code_names_in_full_is_the_same_on_hosts_that_have_the_code_elsewhere(
    tmp_path: Path, monkeypatch: Any
) -> None:
    for host in ("driver", "node"):
        (tmp_path / host).mkdir()
        text = f"WORDS = {str(tmp_path / 'driver' / 'words')!r}\n\ndef words(x):\n    return x, WORDS\n"
        (tmp_path / host / "users_named.py").write_text(text)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "driver")
        driver: Any = importlib.import_module("users_named")
        code = sent(driver.words)
    monkeypatch.syspath_prepend(tmp_path / "node")
    anew(code, "users_named")
    assert sys.modules["users_named"].words(1) == driver.words(1)


def test_a_file_of_the_code_is_the_one_that_the_program_chose_where_the_code_is_temporary_too(
    tmp_path: Path, monkeypatch: Any
) -> None:
    text = "import os, tempfile\n\nWORDS, SCRATCH = os.path.dirname(__file__) + '/a.txt', tempfile.mkdtemp()\n"
    (tmp_path / "users_job.py").write_text(text + "\ndef words(x):\n    return WORDS, SCRATCH\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path.parent))  # where the working_dir of a job lies
    module: Any = importlib.import_module("users_job")
    module.WORDS = str(tmp_path / "b.txt")
    code = sent(module.words)
    anew(code, "users_job")
    words, scratch = sys.modules["users_job"].words(0)
    assert words == str(tmp_path / "b.txt")
    assert scratch != module.SCRATCH
    assert code.digests.keys() == {"datarax_ray", "users_job", "users_job:WORDS"}, "trainers share actors"


AROUND = """
import functools, tempfile, threading

SCRATCH, lock, scale, size, offset = tempfile.mkdtemp(), threading.Lock(), 1, 1, 1

def locked(function):
    def around(x):
        with lock:
            return function(x)
    return around

@locked
def inner(x):
    return x * scale, SCRATCH

def sized(x, by):
    return x * by * size

class Add:
    def to(self, x):
        return x + offset

partly, add = functools.partial(sized, by=2), Add()

def outer(x):
    return inner(partly(add.to(x)))
"""


def test_a_function_with_another_around_it_stays_what_it_is_where_its_values_are_set(users: Users) -> None:
    module = users("users_around", AROUND)
    module.scale, module.size, module.offset = 7, 3, 4
    want = module.outer(1)[0]
    assert want == (1 + 4) * 2 * 3 * 7
    code = sent(module.outer)
    anew(code, "users_around")
    actors: Any = sys.modules["users_around"]
    assert actors.outer(1) == (want, actors.SCRATCH)
    assert actors.SCRATCH != module.SCRATCH


DECORATOR = """
import functools

FACTOR = OFFSET = 1

def plus(x):
    return x + OFFSET

def scaled(function):
    @functools.wraps(function)
    def around(x):
        return plus(function(x) * FACTOR)
    return around
"""


def test_what_a_decorator_reads_in_its_own_module_travels(users: Users) -> None:
    decorator = users("users_decorator", DECORATOR)
    text = "from users_decorator import scaled\n\n@scaled\ndef inner(x):\n    return x\n\n"
    text += "def outer(x):\n    return inner(x)\n\nclass Map:\n    @scaled\n    def map(x):\n        return x\n"
    module = users("users_decorated", text)
    decorator.FACTOR, decorator.OFFSET = 7, 3
    for read in (module.inner, module.outer, module.Map()):
        assert values_of(read).keys() >= {"users_decorator.FACTOR", "users_decorator.OFFSET"}
    code = sent(module.outer)
    anew(code, "users_decorated", "users_decorator")
    assert sys.modules["users_decorated"].outer(1) == 1 * 7 + 3


SHADOWED = """
class Config:
    scale = None

    def __repr__(self):
        return "of " + self.name

config = Config()
config.scale = 1
"""


def test_an_object_with_the_name_of_its_module_and_without_a_repr_has_its_values(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "users_shadowed").mkdir()
    (tmp_path / "users_shadowed" / "config.py").write_text(SHADOWED)
    text = "from .config import config\n\ndef scale(x):\n    return x * config.scale\n"
    (tmp_path / "users_shadowed" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("users_shadowed")
    module.config.scale = 7
    assert values_of(module.scale).keys() >= {"users_shadowed.config.scale"}
    code = sent(module.scale)
    anew(code, "users_shadowed", "users_shadowed.config")
    assert sys.modules["users_shadowed"].scale(1) == 7


METHODS = """
import functools

class Augment:
    def __init__(self):
        self.strength, self.words, self.count, self.unread, self.lock, self.made = 1, {}, 0, 0, None, None

    @property
    def lazy(self):
        self.made = self.made or 5
        return self.made

    @functools.cached_property
    def table(self):
        return {"a": 1}

    def apply(self, x):
        self.count += self.lazy and self.table["a"]
        return self._scaled(x)

    def _scaled(self, x):
        return [each * self.strength + self.words.get("k", 0) for each in [x]]

augment = Augment()

def outer(x):
    return augment.apply(x)
"""


def test_attributes_that_the_method_of_an_object_reads_travel(users: Users) -> None:
    module = users("users_methods", METHODS)
    module.augment.strength, module.augment.words, module.augment.lock = 7, {"k": 3}, threading.Lock()
    assert values_of(module.outer).keys() == {"users_methods.augment.strength", "users_methods.augment.words"}
    code = sent(module.outer)
    module.outer(5)
    code.check_unchanged(set())
    anew(code, "users_methods")
    assert sys.modules["users_methods"].outer(1) == [1 * 7 + 3]


ASKED = """
import configparser, functools, os
from collections import UserDict
from email.message import Message
from os import environ

class Config:
    def __init__(self):
        self._scale, self._size, self.unread = 1, 1, 1

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = value

    @functools.cached_property
    def twice(self):
        return 2 * self._scale

    def __getitem__(self, name):
        return {"size": self._size}[name]

class Settings(UserDict):
    pass

config, shared, nested = Config(), UserDict(a=1, b={"c": [1]}), Settings(scale=1)
parsed = configparser.ConfigParser()
parsed.read_string("[data]\\nscale = 1\\nbad = %(nobody has it)s")
cache, handed, headers = UserDict(), UserDict(a=1), Message()  # the last is no Mapping, as ml_collections' is none
headers["scale"] = "1"

def take(given):
    return given["a"]

def scale(x):
    cache[x] = x
    return [
        config.scale, config.twice, config["size"], shared["a"], shared.get("b"), nested.get("scale"),
        parsed.getint("data", "scale"), take(handed), headers["scale"], "HOME" in environ,
    ]
"""


def test_what_configs_are_asked_for_by_name_by_get_or_through_properties_travels(users: Users) -> None:
    module = users("users_asks", ASKED)
    module.config.scale, module.config._size, module.nested["scale"] = 7, 3, 5
    module.shared["a"], module.shared["b"]["c"], module.handed["a"] = 2, [4], 6
    module.parsed["data"]["scale"] = "8"
    module.headers.replace_header("scale", "9")
    names = {"config._scale", "config._size", "shared", "nested", "parsed", "handed", "headers", "take"}
    assert values_of(module.scale).keys() == {f"users_asks.{name}" for name in names}
    code = sent(module.scale)
    want = module.scale(1)
    assert want[:9] == [7, 14, 3, 2, {"c": [4]}, 5, 8, 6, "9"]
    anew(code, "users_asks")
    assert sys.modules["users_asks"].scale(1) == want


REGISTRY = """
KINDS = NAMES = ()

def register(cls):
    global KINDS, NAMES
    KINDS += (cls,)
    NAMES += (cls.__name__,)

class Map:
    def map(self, x):
        return isinstance(x, KINDS), NAMES
"""


def test_classes_that_more_modules_have_registered_in_the_driver_stay_there(users: Users) -> None:
    module = users("users_registry", REGISTRY)
    module.register(int)
    assert module.Map().map(3) == (True, ("int",))
    assert values_of(module.Map()).keys() == {"users_registry.NAMES"}


CARRIED = """
SCALE = 1

def scaled(x):
    return x * SCALE

def make():
    class Map:
        def map(self, x):
            return x * SCALE
    return Map(), lambda x: x * SCALE

def make_of_function():
    return lambda x: scaled(x)
"""


def test_what_travels_by_value_has_the_values_that_the_program_set(users: Users) -> None:
    module = users("users_carried", CARRIED)
    module.SCALE = 7
    assert values_of(*module.make()) == {}
    read = values_of(module.make_of_function())
    assert read.keys() == {"users_carried.SCALE"}, "the actors import what the lambda calls"


def test_the_process_that_tries_a_record_has_the_values_too(users: Users) -> None:
    module = users("users_tried", "SCALE = 1\n\ndef scale(x):\n    return x * SCALE\n")
    module.SCALE = 7
    tried = pickled(*boxed([module.scale]))  # type: ignore[arg-type]
    del sys.modules["users_tried"]
    assert pickle.loads(tried)[0](1) == 7


def test_what_a_module_sets_in_another_one_is_looked_at_once_both_are_imported(users: Users) -> None:
    config = users("users_config", "SIZE = 1\n")
    users("users_large", "import users_config\n\nusers_config.SIZE = 7\n")
    imports = "import users_config\nimport users_large\n\n"
    text = "class Map:\n    def map(self, x):\n        return x * users_config.SIZE\n"
    module = users("users_map", imports + text)
    config.SIZE = 9
    code = sent(module.Map())
    anew(code, "users_config", "users_large", "users_map")
    assert sys.modules["users_map"].Map().map(1) == 9


def test_a_table_of_any_length_is_told_in_full(users: Users) -> None:
    text = "WORDS = {str(i): i for i in range(20_000)}\n\ndef number(x):\n    return WORDS[x]\n"
    module = users("users_words", text)
    module.WORDS["19999"] = 7
    code = sent(module.number)
    anew(code, "users_words")
    assert sys.modules["users_words"].number("19999") == 7


TABLES = """
import collections, threading

LIKE = {str(i): {f"{i}a", f"{i}b", f"{i}c"} for i in range(11_000)}
COUNTS = collections.defaultdict(lambda: 0, {str(i): i for i in range(11_000)})
LOCKS = [threading.Lock() for _ in range(11_000)]

def number(x):
    with LOCKS[COUNTS[x]]:
        return sorted(LIKE[x])
"""


def test_a_long_table_of_sets_or_with_code_is_no_other_one_in_actors(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "users_tables.py").write_text(TABLES)
    monkeypatch.syspath_prepend(tmp_path)
    boxes = "import pickle, sys, users_tables; from datarax_ray.actors.description import boxed; "
    boxes += "sys.stdout.buffer.write(pickle.dumps(boxed([users_tables.number])[1]))"
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    driver = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path}
    code = pickle.loads(
        subprocess.run([sys.executable, "-c", boxes], stdout=subprocess.PIPE, check=True, env=driver).stdout
    )
    assert {value.name for value in code.values} == {"LIKE", "COUNTS"}
    module: Any = importlib.import_module("users_tables")
    like = module.LIKE
    code.check("here")
    assert module.LIKE is like, "nothing is set"


def test_what_is_too_large_to_travel_is_not_pickled_and_looked_at_once(
    users: Users, tmp_path: Path, monkeypatch: Any
) -> None:
    np.save(tmp_path / "tokens.npy", np.zeros(17 * 2**20, np.uint8))
    text = f"import numpy as np\n\nTOKENS = np.load({str(tmp_path / 'tokens.npy')!r}, mmap_mode='r')\n"
    module = users("users_mapped", text + "\ndef token(x):\n    return TOKENS[x]\n")
    monkeypatch.setattr(np.memmap, "__reduce_ex__", None)
    code = sent(module.token)
    assert [value.why_not for value in code.values] == ["it takes more than 16 MiB"]
    monkeypatch.setattr("datarax_ray.read.hazards.module_values.read_digests", None)
    code.check_unchanged(set())


LARGE = """
class Unreached:
    def __reduce__(self):
        raise AssertionError("pickled behind 16 MiB")

class Holder:
    def __init__(self):
        self.scale, self.parts = 1, [*(b"%02d" % i + bytes(2**20) for i in range(40)), Unreached()]

TABLE, holder = {str(i): "%09d" % i * 200 for i in range(20_000)}, Holder()

def scale(x):
    return TABLE[x], holder.scale
"""


def test_what_is_too_large_to_travel_is_pickled_no_further_than_that(users: Users) -> None:
    module = users("users_larger", LARGE)
    tracemalloc.start()
    code = sent(module.scale)
    assert tracemalloc.get_traced_memory()[1] < 34 * 2**20
    tracemalloc.stop()
    said = {value.name: value.why_not for value in code.values if value.name != "Unreached"}
    assert said == {"TABLE": "it takes more than 16 MiB", "holder": "it takes more than 16 MiB", "holder.scale": ""}


def test_where_more_is_read_than_is_followed_that_is_told_once(users: Users, caplog: Any) -> None:
    text = "".join(f"V{i} = {i}\n\ndef f{i}(x):\n    return f{i + 1}(x) + V{i}\n\n" for i in range(300))
    module = users("users_many", text + "def f300(x):\n    return x\n")
    for read in (module.f0, module.f1):
        sent(read)
    (said,) = caplog.messages
    assert said.startswith("code of users_many uses 500 functions, classes and values of your modules and more")


FLAGS = """
import types
from absl import flags

FLAGS, args = flags.FlagValues(), types.SimpleNamespace(data=None)
flags.DEFINE_integer("size", 1, "of a picture", flag_values=FLAGS)

class Resize:
    def __init__(self):
        self.size = FLAGS.size

    def map(self, x):
        return x, self.size, args.data.scale
"""


def test_flags_that_actors_have_not_parsed_and_objects_in_objects_are_what_the_program_has(users: Users) -> None:
    module = users("users_flags", FLAGS)
    module.FLAGS(["train.py", "--size=7"])
    module.args.data = argparse.Namespace(scale=3)
    box, code = boxed([module.Resize()])  # type: ignore[arg-type]
    anew(code, "users_flags")
    assert unboxed(box)[0].map(1) == (1, 7, 3)
    assert sys.modules["users_flags"].FLAGS.size == 7


LAZY = """
import functools, sys, threading
from dataclasses import dataclass

class Words:
    made = None

    @functools.cached_property
    def table(self):
        return {"a": 1}, threading.Lock()

    @property
    def lock(self):
        if self.made is None:
            self.made = threading.Lock()
        return self.made

    def __call__(self, x):
        with self.lock:
            return self.table[0].get(x)

@dataclass(frozen=True)
class Config:
    size: int = 2

    @functools.cached_property
    def area(self):
        return self.size**2

def log(x, file=sys.stderr):
    print(x, file=file)

def area(config):
    return config.area

words, config = Words(), Config()

def number(x):
    log(x)
    return words(x), area(config)
"""


def test_what_objects_make_when_they_are_first_asked_is_no_change_of_the_program(
    users: Users, monkeypatch: Any, caplog: Any
) -> None:
    module = users("users_asked", LAZY)
    before = sent(module.number)
    assert module.number("a") == (1, 4)
    before.check_unchanged(set())
    code = sent(module.number)
    with open(os.devnull, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)  # a notebook's is another one than an actor's
        anew(code, "users_asked")
    assert caplog.text == ""


CALLED = """
class Cache:
    def __init__(self):
        self.known = {}

    def of(self, x):
        return keep(self.known, x)

    def __call__(self, x):
        return self.of(x)

def keep(known, x):
    known[x] = known.get(x, 2 * x)
    return known[x]

twice = Cache()

def scale(x):
    return twice(x)
"""


def test_what_changes_inside_an_object_that_is_called_is_told_and_no_error(users: Users, caplog: Any) -> None:
    module = users("users_called", CALLED)
    code = sent(module.scale)
    assert module.scale(3) == 6
    code.check_unchanged(set())
    assert "users_called.twice was <users_called.Cache object at" in caplog.text
    module.twice = module.Cache()
    assert module.scale(4) == 8
    with pytest.raises(ValueError, match="users_called.twice was <users_called.Cache"):
        code.check_unchanged(set())


LATER = """
import functools

SCALE = 1

class Table(dict):
    @functools.cached_property
    def longest(self):
        return max(self)

TABLE = Table(b=1)

class Map:
    @functools.cached_property
    def table(self):
        return {"a": SCALE}

    def map(self, x):
        return self.table[x] + TABLE["b"]
"""


def test_what_a_cached_property_reads_travels_and_a_table_that_has_one(users: Users) -> None:
    module = users("users_later", LATER)
    module.SCALE, module.TABLE["b"] = 7, 3
    box, code = boxed([module.Map()])  # type: ignore[arg-type]
    anew(code, "users_later")
    assert unboxed(box)[0].map("a") == 7 + 3


BY_NAME = """
import os

def scaled(x, by=int(os.environ.get("USERS_SCALE", 1))):
    return x * by

def scale(x):
    return scaled(x)
"""


def test_a_function_that_travels_by_its_name_and_has_another_default_there_is_an_error(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "users_by_name.py").write_text(BY_NAME)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("USERS_SCALE", "7")
        module: Any = importlib.import_module("users_by_name")
    code = sent(module.scale)
    with pytest.raises(OtherCodeError, match="users_by_name.scaled is .*cannot be set there .it travels by its name"):
        anew(code, "users_by_name")


WRITTEN = """
import users_lazy

class Base:
    count = 0

    def bump(self):
        Base.count += 1

class First:
    def map(self, x):
        global is_open
        is_open = True
        return x

class Second(Base):
    def map(self, x):
        self.bump()
        return (x, self.count, is_open, users_lazy.codec if x is None else None)

is_open = False
"""


def test_what_any_of_the_transforms_sets_itself_does_not_travel(users: Users) -> None:
    users("users_lazy", "def __getattr__(name):\n    raise ImportError(f'no {name} here')\n")
    module = users("users_written", WRITTEN)
    first, second = module.First(), module.Second()
    assert second.map(first.map(1)) == (1, 1, True, None)
    assert values_of(first, second) == {}


def test_code_is_compared_as_it_is_on_the_disk_without_comments(tmp_path: Path, monkeypatch: Any) -> None:
    code = write_code(tmp_path / "code", 2)
    (code / "users_factor.py").rename(code / "later_factor.py")
    (code / "later_scale.py").write_text((code / "users_scale.py").read_text().replace("users_", "later_"))
    monkeypatch.syspath_prepend(code)
    importlib.import_module("later_scale")
    found = code_of(["later_scale", "numpy", "__main__"])
    assert set(found.each) == {"datarax_ray", "later_scale", "later_factor"}
    (code / "later_factor.py").write_text("FACTOR = 2  # two\n")
    found.check("here")
    (code / "later_factor.py").write_text("FACTOR = 3\n")
    with pytest.raises(OtherCodeError, match=f"later_factor on node here .*{code}/later_factor.py"):
        found.check("here")


def test_code_that_is_imported_late_is_compared_and_not_imported_for_that(tmp_path: Path, monkeypatch: Any) -> None:
    code = tmp_path / "code"
    (code / "late").mkdir(parents=True)
    (code / "late" / "__init__.py").write_text("")
    (code / "late" / "factor.py").write_text("from .of import FACTOR\n")
    (code / "late" / "of.py").write_text("FACTOR = 2\n")
    (code / "late_scale.py").write_text("def scale(x):\n    from late import factor\n    return x * factor.FACTOR\n")
    monkeypatch.syspath_prepend(code)
    importlib.import_module("late_scale")
    found = code_of(["late_scale"])
    assert set(found.each) == {"datarax_ray", "late_scale", "late", "late.factor", "late.of"}
    found.check("here")
    (code / "late" / "of.py").write_text("FACTOR = 3\n")
    with pytest.raises(OtherCodeError, match=f"late.of on node here .*{code}/late/of.py"):
        found.check("here")
    assert not {"late", "late.factor", "late.of"} & sys.modules.keys()


def test_code_that_a_function_of_the_script_imports_is_compared(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "later_of.py").write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    script: dict[str, Any] = {"__name__": "__main__"}
    exec("def scale(x):\n    from later_of import FACTOR\n    return x * FACTOR\n", script)
    code = sent(script["scale"])
    assert "later_of" in code.each


def test_a_module_that_an_actor_does_not_find_says_where_it_looks(users: Users) -> None:
    module = users("users_absent", "def scale(x):\n    return x\n")
    box, _ = boxed([module.scale])  # type: ignore[arg-type]
    del sys.modules["users_absent"]
    importlib.invalidate_caches()
    path, sys.path[:] = [*sys.path], [each for each in sys.path if not Path(each, "users_absent.py").exists()]
    try:
        with pytest.raises(ModuleNotFoundError, match="users_absent") as found:
            unboxed(box)
    finally:
        sys.path[:] = path
    assert "install it on all nodes" in found.value.__notes__[0]


class Torn:
    """What pickles, and cannot be made of that."""

    def __new__(cls, text: str) -> Torn:
        return super().__new__(cls)

    def __call__(self, element: Any) -> Any:
        return element


class Holds:
    def __init__(self, held: Any) -> None:
        self.settings, self.held = {"a": 1}, [1, held]

    def map(self, element: Any) -> Any:
        return element


def with_default(element: Any, torn: Any = None) -> Any:
    return element


@pytest.mark.parametrize(
    ("transform", "data", "said"),
    [
        (Holds(Torn("text")), 1, "Holds, a transform or what one holds, was pickled"),
        (Holds(Torn("text")).map, 1, "Holds, a transform "),
        (partial(with_default, torn=Holds(Torn("text"))), 1, "Holds, a transform "),
        (partial(with_default, torn=[Torn("text")]), 1, "What a transform or the data holds was pickled"),
        (Torn("text"), 1, "What a transform or the data holds was pickled"),
        (Holds(1), Torn("text"), "What a transform or the data holds was pickled"),
    ],
    ids=["held", "method", "partial", "list", "bare", "data"],
)
def test_a_transform_that_cannot_be_made_again_is_named_with_what_to_do(transform: Any, data: Any, said: str) -> None:
    others = [AddNoise() for _ in range(3)]
    box, _ = boxed(IndexedStream(RandomAccessReader([data]), order_of(1), transforms=(*others, transform, Holds(1))))
    with pytest.raises(TypeError, match="text") as found:
        unboxed(box)
    (note,) = found.value.__notes__
    assert note.startswith(said)
    assert "where it is first used" in note


REGISTERED = """
import pickle, sys
from datarax_ray.actors.description import _pickled

class Step:
    steps, order = {}, []
    def __init_subclass__(cls):
        Step.steps[cls.__name__] = cls
        Step.order.append(cls)
    def call(self, v):
        return v + 1

class Twice(Step):
    def call(self, v):
        return v * 2

class All(Step):
    def call(self, v):
        return v + 5
    def map(self, element):
        v = element["v"]
        for each in [*Step.steps.values(), *Step.order]:
            v = each().call(v)
        return v

open(sys.argv[1], "wb").write(_pickled(All(), set())[1])
print(All().map({"v": 3}))
"""
LOADED = """
import pickle, sys
for _ in range(2):
    found = pickle.loads(open(sys.argv[1], "rb").read())
    print(found.map({"v": 3}))
"""


def test_subclasses_that_a_base_of_the_script_registers_are_registered_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(REGISTERED)
    said = [
        subprocess.run(
            [sys.executable, *code, str(tmp_path / "box")], capture_output=True, text=True, check=True
        ).stdout
        for code in ([str(tmp_path / "script.py")], ["-c", LOADED])
    ]
    assert said == ["27\n", "27\n27\n"]
