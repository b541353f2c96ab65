"""datarax's module names: a program of datarax's needs another package name, and nothing else."""

from datarax_ray.core.config import DataraxModuleConfig, StructuralConfig
from datarax_ray.core.data_source import DataSourceModule
from datarax_ray.pipeline import Pipeline
from datarax_ray.sources import array_record_source, hf_source
from datarax_ray.sources.hf_source import HFEagerConfig, HFEagerSource, HFStreamingConfig, HFStreamingSource


def test_the_documented_modules_have_the_documented_names():
    import datarax_ray
    from datarax_ray import sources

    for module in (array_record_source, hf_source):
        for name in getattr(module, "__all__", ["ArrayRecordSourceConfig", "ArrayRecordSourceModule"]):
            assert getattr(module, name) is getattr(sources, name)
    assert datarax_ray.Pipeline is Pipeline


def test_every_config_and_source_has_datarax_s_bases():
    for config in (HFEagerConfig, HFStreamingConfig, array_record_source.ArrayRecordSourceConfig):
        assert issubclass(config, StructuralConfig)
        assert issubclass(config, DataraxModuleConfig)
    for source in (HFEagerSource, HFStreamingSource, array_record_source.ArrayRecordSourceModule):
        assert issubclass(source, DataSourceModule)
