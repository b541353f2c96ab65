"""What every config refuses: settings that Python would take for something else."""

from typing import Any

import numpy as np
import pytest

from datarax_ray.pipeline import Pipeline
from datarax_ray.sources import (
    ArrayRecordSourceConfig,
    HFEagerConfig,
    HFStreamingConfig,
    ParquetSourceConfig,
    RandomAccessSource,
    RandomAccessSourceConfig,
    TFDSSourceConfig,
)

SHUFFLED = [HFEagerConfig, HFStreamingConfig, ParquetSourceConfig, RandomAccessSourceConfig, TFDSSourceConfig]


@pytest.mark.parametrize("config", SHUFFLED)
@pytest.mark.parametrize("value", ["no", "false", 1000])
def test_a_text_from_a_file_of_settings_does_not_shuffle(config: Any, value: Any) -> None:
    with pytest.raises(TypeError, match=f"shuffle is True or False, got {value!r}"):
        config(shuffle=value)


@pytest.mark.parametrize("name", ["shuffle_files", "local_files_only", "cacheable", "stochastic"])
def test_so_it_is_with_every_claim(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is True or False, got 'no'"):
        ArrayRecordSourceConfig(**{name: "no"})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["drop_remainder", "pad_remainder", "on_host"])
def test_a_text_does_not_drop_the_last_batch(name: str) -> None:
    source = RandomAccessSource(RandomAccessSourceConfig(num_epochs=1), {"x": np.arange(4)})
    with pytest.raises(TypeError, match=f"{name} is True or False, got 'no'"):
        Pipeline(source=source, batch_size=3, **{name: "no"})  # type: ignore[arg-type]


def test_a_number_of_epochs_is_a_whole_one() -> None:
    with pytest.raises(TypeError, match=r"num_epochs is a whole number, got 1\.5"):
        ArrayRecordSourceConfig(num_epochs=1.5)  # type: ignore[arg-type]
    endless = RandomAccessSourceConfig(num_epochs=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="num_epochs is a whole number, got None; -1 for endless"):
        RandomAccessSource(endless, [1, 2])
    with pytest.raises(TypeError, match="seed is a whole number, got '7'"):
        ArrayRecordSourceConfig(seed="7")  # type: ignore[arg-type]
