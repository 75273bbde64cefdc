"""What faulty nodes really did: the truth that an audit is measured by."""
