"""The decisions that a relay asks for: one function for each kind of DecisionRequest."""
