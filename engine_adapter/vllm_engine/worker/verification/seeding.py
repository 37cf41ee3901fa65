"""Seeds of a request's noise: one for each token position."""

_MASK = (1 << 64) - 1


def position_seed(seed: int, position: int) -> int:
    """32 well-mixed bits of a request's seed and the position of the token that is sampled.

    CPU generators use no more than 32 bits. The mixing is that of SplitMix64 (its finalizer).
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 32
