"""The script that made the data needs TensorFlow Datasets."""

collect_ignore = ["make.py"]
