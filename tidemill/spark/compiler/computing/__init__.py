"""Computing a compiled plan: counting its rows, keeping them, binding its steps to one batch."""
