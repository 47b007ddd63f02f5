"""What a relay may not decide alone: one function per kind of DecisionRequest."""
