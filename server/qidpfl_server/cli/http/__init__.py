"""How the coordinator accepts connections, reads requests from them, and stops."""
