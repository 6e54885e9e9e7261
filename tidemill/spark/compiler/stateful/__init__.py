"""The operators of a plan that keep state: where their steps go, and which keys they may have."""
