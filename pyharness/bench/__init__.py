"""Benches: stock whisper.cpp against our build, in one run.

Two builds cannot live in one process, so each has its own (libraries.py). They are asked in turns and one at a time,
and times are compared in pairs (paired.py).
"""
