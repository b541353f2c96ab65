"""What people misspell: each argument of each public name, and the answer that they get."""

import inspect

import numpy as np
import pytest

import datarax_ray
from datarax_ray import Pipeline, RandomAccessSource, RandomAccessSourceConfig, checkpoint

TAKE_NOTHING = ("Batch", "PipelineStats", "DecodeMaterialized")
CALLED = {name: getattr(datarax_ray, name) for name in datarax_ray.__all__ if name not in TAKE_NOTHING}
CALLED |= {"save_pipeline": checkpoint.save_pipeline, "restore_pipeline": checkpoint.restore_pipeline}
CALLED |= {"scan": Pipeline.scan}


@pytest.mark.parametrize("name", [name for name, called in CALLED.items() if callable(called)])
def test_a_misspelt_argument_is_answered_with_the_one_that_is_meant(name):
    parameters = inspect.signature(CALLED[name]).parameters.values()
    takes = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY and each.name != "self"]
    assert takes
    for meant in takes:
        misspelt = f"{meant[:-1]}{meant[-1] * 2}"
        with pytest.raises(TypeError, match=f"{name} takes no argument '{misspelt}'. Did you mean '{meant}'?"):
            CALLED[name](**{misspelt: None})


def test_whose_names_are_passed_on_is_answered_as_well():
    source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)})
    with pytest.raises(TypeError, match="Pipeline takes no argument 'prefech'. Did you mean 'prefetch'?"):
        Pipeline.from_dag(source=source, nodes={}, edges={}, sink="x", batch_size=2, prefech=1)


def test_a_name_that_is_like_none_is_answered_with_all():
    with pytest.raises(TypeError, match="DecodeRaw takes no argument 'height'. It takes dtype, shape, field"):
        datarax_ray.DecodeRaw("uint8", height=3)


def test_a_source_names_its_config_for_an_argument_of_that_and_the_reverse():
    with pytest.raises(TypeError, match=r"ParquetSourceConfig takes no argument 'columns'\. ParquetSource takes it"):
        datarax_ray.ParquetSourceConfig(columns=["x"])
    with pytest.raises(TypeError, match=r"CSVSource takes no argument 'column_types'\. CSVSourceConfig takes it"):
        datarax_ray.CSVSource(datarax_ray.CSVSourceConfig(), "a.csv", column_types={})
    with pytest.raises(TypeError, match=r"'shuffle'\. RandomAccessSourceConfig takes it"):
        RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)}, shuffle=True)
    with pytest.raises(TypeError, match=r"'delimiter'\. CSVSourceConfig, TextStreamSourceConfig take it"):
        datarax_ray.load("a.csv", delimiter=";")
    with pytest.raises(TypeError, match=r"load takes no argument 'batch_size'\. Pipeline takes it"):
        datarax_ray.load("a.csv", batch_size=8)


def test_a_source_that_is_given_no_data_says_what_it_is_called_with():
    said = r"CSVSource takes paths as well: CSVSource\(CSVSourceConfig\(seed=7, \.\.\.\), paths\)"
    with pytest.raises(TypeError, match=said):
        datarax_ray.CSVSource(datarax_ray.CSVSourceConfig())


def test_a_misspelt_name_of_the_package_is_answered_by_python():
    with pytest.raises(AttributeError, match="datarax_ray has no 'Pipline'") as raised:
        _ = datarax_ray.Pipline
    assert raised.value.name == "Pipline"  # by these it finds the name that may be meant
    assert raised.value.obj is datarax_ray


def test_arguments_without_a_name_where_none_are_taken_are_answered_with_the_names():
    source = RandomAccessSource(RandomAccessSourceConfig(), {"x": np.arange(4)})
    said = r"Pipeline takes no arguments without a name, got 2; write Pipeline\(source=\.\.\., batch_size=\.\.\.\)"
    with pytest.raises(TypeError, match=said):
        Pipeline(source, 2)
    with pytest.raises(TypeError, match=r"RaySource takes 1 argument without a name, got 2"):
        datarax_ray.RaySource(source, 2)


def test_what_a_class_of_ones_own_takes_is_its_own():
    class Counting(RandomAccessSource):
        def __init__(self, last, **given):
            super().__init__(RandomAccessSourceConfig(**given), {"x": np.arange(last)})

    assert len(Counting(3, seed=7)) == 3
    with pytest.raises(TypeError, match="RandomAccessSourceConfig takes no argument 'sed'. Did you mean 'seed'?"):
        Counting(3, sed=7)
