"""What a program says when something fails: short on the terminal, whole in a file."""
