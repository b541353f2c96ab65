"""A module that actors import: what the program sets in its own they do not know."""

import time

SCALE, SLOW_S = 1, 0.0


class Scale:
    def map(self, element):
        time.sleep(SLOW_S)
        return {"x": element["x"] * SCALE}
