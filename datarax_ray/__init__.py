"""One exact stream of training batches from Ray actors to JAX, for any number of actors and trainers."""

import importlib.metadata
from typing import Any

import lazy_loader

# The names are in __init__.pyi, each loaded when it is first used: a Ray worker imports this package, and must load
# neither jax nor, for reading, ray.
_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_LOAD = "; load(paths) makes a source of files"
# Names of other packages, and what is here in their stead.
_ELSEWHERE = {
    "DataLoader": "; Grain's is datarax_ray.grain.DataLoader, and Pipeline(source=..., batch_size=...) makes batches",
    "Dataset": f"{_LOAD}, and RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), data) one of a dataset",
    **dict.fromkeys(("read_parquet", "read_csv", "read_json", "read_tfrecords", "read_webdataset"), _LOAD),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # it stands in pyproject.toml alone
        return importlib.metadata.version("datarax-ray")
    try:
        return _loaded(name)
    except AttributeError as error:  # Python asks which name may be meant, where it is told the wrong one
        said = f"{__name__} has no {name!r}{_ELSEWHERE.get(name, '')}"
        raise AttributeError(said, name=name, obj=__import__(__name__)) from error
