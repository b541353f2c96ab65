"""Hazards: what would give other elements than the state says, though data and code are told alike.

Chance, state that is kept from element to element, the order of a set; what the program has set since; other code or
settings on a node. Uses the digests of `identity`, which knows nothing of this room.
"""
