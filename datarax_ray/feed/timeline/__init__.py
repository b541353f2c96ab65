"""What everybody did when, over a run, and the page that shows it."""
