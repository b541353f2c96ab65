"""What data cannot do: run code, or have files opened. Over all of the package, and with a hostile checkpoint."""

import ast
import functools
import json
import sys
from pathlib import Path

import pytest

import datarax_ray
from datarax_ray import Pipeline
from datarax_ray.checkpoint import restore_pipeline, save_pipeline
from datarax_ray.plan.fingerprint import DriftError
from datarax_ray.plan.plain_values import digest
from datarax_ray.plan.state import _checksum
from datarax_ray.sources import ArrayRecordSourceConfig, ArrayRecordSourceModule
from tests.data import decode

_MODULES = sorted(Path(datarax_ray.__file__).parent.rglob("*.py"))
# Calls that turn data into code, whoever wrote the data.
_RUNS_CODE = {"eval", "exec", "compile"}
_UNPICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
# Of their own making: an error, to see that it survives the way to the driver; a dataset closed to give files back.
_ALLOWED = {
    ("actors/trial.py", "cloudpickle.loads(cloudpickle.dumps(error))"),
    ("actors/description.py", "pickle.loads(found)"),  # from the driver
    ("actors/description.py", "pickle.loads(description)"),
    ("actors/hosts.py", "pickle.loads(function)"),
    ("checking.py", "cloudpickle.loads(pickled)"),  # from this very process
    # between an actor and the process that it starts to try a position in, by files in memory that nobody else holds
    ("actors/trial.py", "pickle.loads(block)"),
    ("actors/trial.py", "pickle.loads(pickled)"),
    ("actors/trial.py", "pickle.load(asked)"),
    ("grain/engine/stream.py", "pickle.loads(data)"),  # elements from an actor, inside what Ray pickles
    ("read/formats/hugging_face/dataset.py", "pickle.loads(self._closed[0], buffers=self._closed[1])"),
}


@functools.cache
def calls():
    """The file of each call, the function and the call."""
    found = []
    for path in _MODULES:
        name = path.relative_to(_MODULES[0].parent).as_posix()
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        found += [(name, ast.unparse(node.func), node) for node in nodes]
    return found


def test_nothing_here_turns_data_into_code():
    found = []
    for name, function, call in calls():
        head, _, last = function.rpartition(".")
        runs = function in _RUNS_CODE or (head in _UNPICKLES and last in ("load", "loads", "Unpickler", "open"))
        if runs and (name, ast.unparse(call)) not in _ALLOWED:
            found.append((name, ast.unparse(call)))
    assert not found


def test_no_reader_is_told_to_trust_code_or_pickles():
    for name, function, call in calls():
        for keyword in call.keywords:
            if keyword.arg in ("trust_remote_code", "allow_pickle"):
                assert ast.unparse(keyword.value) == "False", (name, ast.unparse(call))
        if function in ("np.load", "numpy.load"):
            assert any(keyword.arg == "allow_pickle" for keyword in call.keywords), (name, ast.unparse(call))


_opened = None


def _note(event, args):
    if _opened is not None and event in ("open", "os.open", "os.listdir", "os.scandir"):
        _opened.append(str(args[0]))


def test_what_a_checkpoint_names_is_not_opened(files, tmp_path, monkeypatch):
    config = ArrayRecordSourceConfig(num_epochs=1)
    pipeline = Pipeline(source=ArrayRecordSourceModule(config, files, transforms=[decode]), batch_size=4)
    save_pipeline(tmp_path / "saved", pipeline)
    saved = tmp_path / "saved" / "datarax_ray.json"
    assert str(files[0].parent) not in saved.read_text()  # a state holds no paths; a hostile one may
    secret = tmp_path / "secret"
    secret.write_text("x")
    state = json.loads(saved.read_text())
    state.pop("checksum")
    state["settings"]["files"] = {"paths": [str(secret)], "digest": str(secret), "num_files": 1}
    state["rest"] = {"path": str(secret)}
    state["rest_checksum"] = _checksum(state["position"], state["rest"])
    saved.write_text(json.dumps(state | {"checksum": digest(state)}))
    sys.addaudithook(_note)  # for the life of the process: it does nothing where _opened is None
    opened = []
    monkeypatch.setattr(sys.modules[__name__], "_opened", opened)
    with pytest.raises(DriftError, match=r"files\.digest"):
        restore_pipeline(tmp_path / "saved", pipeline)
    monkeypatch.undo()
    assert any(path.endswith("datarax_ray.json") for path in opened)  # the hook hears
    assert not [path for path in opened if "secret" in path or "array_record" in path]
