"""How do I train on sound? DecodeAudio decodes it in the actors: one rate, mono, of one length for all.

Each sound is decoded from its bytes, here members of a tar file. The stream is exact, as with any other data.
"""

import io
import tarfile
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import soundfile
from flax import nnx

from datarax_ray import DecodeAudio, PadTo, Pipeline, WebDatasetSource, WebDatasetSourceConfig

RATE, LENGTH = 8_000, 4_000  # Hz, and samples: half a second
DECODE = [DecodeAudio(sample_rate=RATE, mono=True, duration_s=0.5, field="flac"), PadTo({"flac": LENGTH})]


def write_sounds(path):
    """Low and high tones, of many lengths and two rates, with their class beside each: N.flac, N.cls."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for index in range(80):
            label, rate = index % 2, (8_000, 16_000)[index % 3 == 0]
            at = np.arange(rng.integers(rate // 4, rate)) / rate
            tone = np.sin(2 * np.pi * (300 + 500 * label + rng.normal(0, 60)) * at) + rng.normal(0, 0.3, at.shape)
            soundfile.write(file := io.BytesIO(), 0.3 * tone, rate, format="FLAC")
            for extension, data in (("flac", file.getvalue()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{index:03d}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def spectrum(batch):
    """A stage: runs on the device, under jit."""
    strength = jnp.abs(jnp.fft.rfft(batch["flac"][:, :, 0]))[:, :512]
    return {"x": jnp.log1p(strength), "label": batch["cls"]}


model = nnx.Linear(512, 2, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, label):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), label).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


with tempfile.TemporaryDirectory() as directory:
    write_sounds(Path(directory) / "tones.tar")
    config = WebDatasetSourceConfig(shuffle=True, seed=1, num_epochs=6)
    source = WebDatasetSource(config, f"{directory}/tones.tar", transforms=DECODE)
    with Pipeline(source=source, stages=spectrum, batch_size=16) as pipeline:
        losses = [float(train_step(model, optimizer, batch["x"], batch["label"])) for batch in pipeline]

print(f"{len(losses)} batches, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert len(losses) == 30
assert losses[-1] < 0.5 * losses[0]
