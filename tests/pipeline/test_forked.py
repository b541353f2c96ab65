"""A process that is forked off in the middle of a stream: refused at once or right, and the other one goes on."""

import pytest

from tests.programs import python

# Each child says what came of it and how it ended; the parent goes on between them.
SCRIPT = """
import faulthandler, os, sys, warnings
warnings.simplefilter("ignore")  # JAX's, of os.fork
from datarax_ray import Pipeline, RaySource
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from datarax_ray.sources import RandomAccessSource, RandomAccessSourceConfig
from datarax_ray.read.forked import ForkedError
from tests.data import decode

def records():
    config = ArrayRecordSourceConfig(num_epochs=-1, shuffle_files=True)
    return ArrayRecordSourceModule(config, sys.argv[2:], transforms=[decode])

numbers = RandomAccessSource(RandomAccessSourceConfig(num_epochs=-1), [{"index": i} for i in range(50)])
begun, module = records(), records()
if sys.argv[1] == "ray":
    import ray
    ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    source = RaySource(module, num_actors=1, num_cpus=0.5)
else:
    source = module
pipeline = Pipeline(source=source, batch_size=8)
got = [pipeline.step()["index"].tolist()]
numbers.get_batch(4), begun.get_batch(4)

def new():
    return Pipeline(source=numbers, batch_size=8)

def ends(code):
    print("closes", flush=True)
    with pipeline:
        sys.exit(code)

asked = {
    "step": pipeline.step,
    "scan": lambda: pipeline.scan(lambda batch: batch, length=1),
    "loop": lambda: next(iter(pipeline)),
    "a new pipeline": new,
    "new readers": records,
    "readers that are open": lambda: begun.get_batch(500),
    "numbers": lambda: numbers.get_batch(4)["index"].tolist(),
    "ends in a with": lambda: ends(0),
    "ends with 3": lambda: sys.exit(3),
}
if sys.argv[1] == "ray":
    asked |= {"stats": source.stats, "a new source": lambda: RaySource(module, num_actors=1, num_cpus=0.5)}
# JAX's compiler has threads that a forked process has not; before JAX 0.10.1 it waited for them when that ended.
import ctypes
from jax._src.interpreters import mlir
ctypes.pythonapi.Py_IncRef(ctypes.py_object(mlir.global_thread_pool))
for name, ask in asked.items():
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(30, exit=True)
        try:
            said = ask()
        except ForkedError as error:
            said = str(error)
        print(f"{name}: {said}", flush=True)
        if name == "stats":
            raise ZeroDivisionError("told to nobody but the terminal")
        sys.exit()
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    got.append(pipeline.step()["index"].tolist())
if sys.argv[1] == "ray":
    print("lost", dict(source.recoveries.counts))
pipeline.close()
whole = records()
print("same", got == [whole.get_batch(8)["index"].tolist() for _ in got])
"""


@pytest.mark.parametrize("kind", ["here", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_forked_process_is_told_at_once_or_right_and_the_other_loses_nothing(files, kind):
    # never a cluster that happens to run on this machine
    done = python("-c", SCRIPT, kind, *files, RAY_ADDRESS="local")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    owners = {
        "step": "this Pipeline",
        "scan": "this Pipeline",
        "loop": "this Pipeline",
        "a new pipeline": "JAX",
        "new readers": "what reads ArrayRecord files",
        "readers that are open": "what reads ArrayRecord files",
        "numbers": None,
        "ends in a with": None,
        "ends with 3": None,
    } | ({"stats": "this RaySource", "a new source": "the connection to Ray"} if kind == "ray" else {})
    told = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines if ": " in line}
    for name, owner in owners.items():
        if owner is not None:
            assert told[name].startswith(f"{owner} belongs to process "), told[name]
            assert 'started by multiprocessing\'s "spawn" method' in told[name]
    assert told["numbers"] == "[4, 5, 6, 7]"
    codes = [int(line.split()[-1]) for line in lines if line.startswith("ended with")]
    assert dict(zip(owners, codes, strict=True)) == dict.fromkeys(owners, 0) | {"ends with 3": 3} | (
        {"stats": 1} if kind == "ray" else {}
    )
    assert "same True" in lines  # Ray may tell of the actor that was ended behind it
    assert kind == "here" or "lost {}" in lines
