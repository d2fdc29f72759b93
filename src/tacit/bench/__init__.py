"""Side-by-side speed: what a private round costs beside the same round without privacy, and beside other tools.

Nothing here judges by a clock; it measures and prints.
"""
