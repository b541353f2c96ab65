from .array_record_source import (
    ArrayRecordSourceConfig,
    ArrayRecordSourceModule,
    TFDSSource,
    TFDSSourceConfig,
)
from .base.files import RowGroupsConfig
from .composed import MaterializedSource, MixtureSource
from .hf_eager_source import HFEagerConfig, HFEagerSource
from .hf_source import from_hf
from .hf_streaming_source import HFStreamingConfig, HFStreamingSource
from .random_access_source import RandomAccessSource, RandomAccessSourceConfig
from .record_files_source import (
    MDSSource,
    MDSSourceConfig,
    TFRecordSource,
    TFRecordSourceConfig,
    WebDatasetSource,
    WebDatasetSourceConfig,
)
from .tables import (
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
