"""What loaders of training data do where a run is killed, resized, cut off or slowed down, each by its own means."""
