"""Compiled building blocks over plain arrays; they know nothing of policies, Arrow or joins."""
