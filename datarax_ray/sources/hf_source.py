"""The Hugging Face sources, where datarax has them. Source: datarax.sources.hf_source."""

from datarax_ray.sources.hf_eager_source import HFEagerConfig, HFEagerSource
from datarax_ray.sources.hf_streaming_source import HFStreamingConfig, HFStreamingSource

__all__ = ["HFEagerConfig", "HFEagerSource", "HFStreamingConfig", "HFStreamingSource"]
