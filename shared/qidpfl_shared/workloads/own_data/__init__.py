"""Own data of an owner: files in common forms become records as the task's spec states, or one line says why not."""
