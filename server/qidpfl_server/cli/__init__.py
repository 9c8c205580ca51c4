"""The commands of the coordinator."""
