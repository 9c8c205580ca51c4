"""What the server does with the updates of a round beside their mean: weights that balance labels, post-processing."""
