"""What was reserved, noised and sent, on the disk of the data owner."""
