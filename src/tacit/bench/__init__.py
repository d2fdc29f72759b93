"""Side-by-side speed: a private round compared with the same round without privacy, and with other tools.

Nothing here passes or fails by a clock; it measures and prints.
"""
