"""padsink's harness: drives the patched libwhisper, compares selection rules, prints honest verdicts."""

__version__ = "0.1.0"
