"""The publisher of a cell: numbers publications and sees them through to the brokers."""
