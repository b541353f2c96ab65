"""TensorFlow Datasets as they are prepared on disk, and its language of splits; without TensorFlow."""
