"""What the server does with the direction that the messages add up to."""
