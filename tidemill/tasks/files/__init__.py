"""Reading files inside tasks: the very file that a stream has found, split and unpacked."""
