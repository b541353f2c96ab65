"""The in-process sources, as Flax NNX modules with datarax's names and signatures: faces over plan, read and feed."""

from datarax_ray.sources.array_record_source import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    TFDSSource,
    TFDSSourceConfig,
)
from datarax_ray.sources.base.files import RowGroupsConfig
from datarax_ray.sources.composed import MaterializedSource, MixtureSource
from datarax_ray.sources.hf_eager_source import HFEagerConfig, HFEagerSource
from datarax_ray.sources.hf_source import from_hf
from datarax_ray.sources.hf_streaming_source import HFStreamingConfig, HFStreamingSource
from datarax_ray.sources.random_access_source import RandomAccessSource, RandomAccessSourceConfig
from datarax_ray.sources.record_files_source import (
    MDSSource,
    MDSSourceConfig,
    TFRecordSource,
    TFRecordSourceConfig,
    WebDatasetSource,
    WebDatasetSourceConfig,
)
from datarax_ray.sources.tables import (
    CSVSource,
    CSVSourceConfig,
    JSONLinesSource,
    JSONLinesSourceConfig,
    LanceSource,
    LanceSourceConfig,
    ParquetSource,
    ParquetSourceConfig,
    TextLinesSource,
    TextLinesSourceConfig,
    TextStreamSource,
    TextStreamSourceConfig,
)

__all__ = [
    "ArrayRecordSourceConfig",
    "ArrayRecordSourceModule",
    "CSVSource",
    "CSVSourceConfig",
    "HFEagerConfig",
    "HFEagerSource",
    "HFStreamingConfig",
    "HFStreamingSource",
    "JSONLinesSource",
    "JSONLinesSourceConfig",
    "LanceSource",
    "LanceSourceConfig",
    "MDSSource",
    "MDSSourceConfig",
    "MaterializedSource",
    "MixtureSource",
    "ParquetSource",
    "ParquetSourceConfig",
    "RandomAccessSource",
    "RandomAccessSourceConfig",
    "RowGroupsConfig",
    "TFDSSource",
    "TFDSSourceConfig",
    "TFRecordSource",
    "TFRecordSourceConfig",
    "TextLinesSource",
    "TextLinesSourceConfig",
    "TextStreamSource",
    "TextStreamSourceConfig",
    "WebDatasetSource",
    "WebDatasetSourceConfig",
    "from_hf",
]
